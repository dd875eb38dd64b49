"""Compare 200 functions with each other on this CPU, with a clone model of a published shape.

    python benchmarks/clones_folder.py DATA OUT --shape graphcodebert [--functions 200]

DATA is a BigCloneBench folder. The weights are random: what is measured is time. Printed: seconds
to load the model's process, and for all pairs, from reading the files to the ranked table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from evaluate_full import SHAPES, write_weights
from safetensors.torch import save_file

from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.model_config import CLONES_TYPE, own_config
from nbhelpers.use.clones import load_clones

SETTINGS = {"codegpt": (1024, None), "graphcodebert": (400, 128)}


def write_folder(shape: str, texts: list[str], out: Path) -> Path:
    """Write a folder with random weights as `export` does; return it."""
    weights = torch.load(write_weights(shape, texts, out), weights_only=True)
    folder = out / f"{shape}-shape"
    save_file({name: x.contiguous() for name, x in weights.items()}, folder / "model.safetensors")
    config = read_json(folder / "config.json") or {}
    write_json(folder / "config.json", own_config(CLONES_TYPE, config))
    seq_len, nodes = SETTINGS[shape]
    facts: dict[str, Any] = {"format": 1, "seq_len": seq_len, "data_flow_length": nodes}
    write_json(folder / "clones.json", facts)
    return folder


def main() -> None:
    """Parse the command line, compare, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="graphcodebert")
    parser.add_argument("--functions", type=int, default=200)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.data / "data.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["func"] for line in itertools.islice(file, given.functions)]
    code = given.out / "code"
    code.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (code / f"{number}.java").write_text(text, encoding="utf-8")
    folder = write_folder(given.shape, texts, given.out)
    start = time.perf_counter()
    with load_clones(folder, device="cpu") as model:
        loaded = time.perf_counter() - start
        clones = model.clones_of(code, progress=False)
    facts = {"shape": given.shape, "functions": len(clones.members), "pairs": clones.n_pairs}
    facts |= {"load_s": round(loaded, 1), "seconds": round(clones.seconds, 1)}
    print(json.dumps(facts | {"cores": os.cpu_count(), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
