"""Score every pair of 912 functions (415,416) with weights of a published shape, from a file.

    python benchmarks/evaluate_full.py DATA OUT --shape graphcodebert [--preset h100]

The weights are random and saved as the legacy scripts save theirs; labels are made up: what is
measured is time and memory. Printed: the whole command, its phases, and the worker's peak memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from clones_gpu import SHAPES, shape_folder

import nbhelpers as nb
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.encoders import encoder_class
from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, SPECIAL_TOKENS, train_bpe

FUNCTIONS = 912


def write_data(source: Path, folder: Path) -> list[str]:
    """Write the first functions of a BigCloneBench folder and all their pairs; return the texts."""
    folder.mkdir(parents=True, exist_ok=True)
    with (source / "data.jsonl").open(encoding="utf-8") as file:
        lines = list(itertools.islice(file, FUNCTIONS))
    rows = [json.loads(line) for line in lines]
    (folder / "data.jsonl").write_text("".join(lines), encoding="utf-8")
    pairs = itertools.combinations((row["idx"] for row in rows), 2)
    with (folder / "test.txt").open("w") as file:
        file.writelines(f"{a}\t{b}\t{int(n % 7 == 0)}\n" for n, (a, b) in enumerate(pairs))
    return [row["func"] for row in rows]


def write_weights(shape: str, texts: list[str], out: Path) -> Path:
    """Write configuration, tokenizer and a random state dict; return the state dict's path."""
    from transformers import AutoConfig

    folder = shape_folder(shape, out)
    is_gpt2 = SHAPES[shape]["model_type"] == "gpt2"
    special = SPECIAL_TOKENS if is_gpt2 else ROBERTA_TOKENS
    train_bpe(texts, 8000, special_tokens=special).save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    build, options = encoder_class(config)
    path = out / "model.bin"
    torch.save(CloneModel(build(config, **options), dropout=0.1).state_dict(), path)
    return path


def main() -> None:
    """Parse the command line, run the evaluation, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="graphcodebert")
    parser.add_argument("--preset", default="h100")
    given = parser.parse_args()
    texts = write_data(given.data, given.out / "data")
    weights = write_weights(given.shape, texts, given.out)
    overrides: dict[str, Any] = {"model": str(given.out / f"{given.shape}-shape")}
    overrides |= {"data": str(given.out / "data"), "seq_len": 400, "num_gpus": 1}
    if given.shape == "graphcodebert":
        overrides["data_flow_length"] = 128
    started = time.monotonic()
    hardware = nb.detect_hardware()
    chosen = nb.load_preset("clones", given.preset, hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(chosen, hardware)
    run = nb.launch(
        chosen,
        plan,
        nb.predict_memory(chosen, plan, hardware),
        hardware=hardware,
        run_dir=given.out / "runs",
        job_mode="evaluate",
        checkpoint=weights,
        fresh=True,
        force=True,
    )
    result = nb.follow(run)
    seconds = time.monotonic() - started
    lines = sum(1 for _ in run.predictions_path.open())
    rss = max(rank["rss_bytes"] for rank in result.data["memory"]["per_rank"])
    facts = {"shape": given.shape, "seconds": seconds, "predictions": lines, "rss_gib": rss / 2**30}
    print(json.dumps(facts | {"timing": result.data["timing"]}), flush=True)


if __name__ == "__main__":
    main()
