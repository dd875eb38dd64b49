"""Train the shape of a published encoder (random weights, own BPE) on a local BigCloneBench folder.

    python benchmarks/clones_gpu.py DATA OUT --shape codegpt --seq-len 400 1024 [--set KEY=JSON ...]
    python benchmarks/clones_gpu.py DATA OUT --shape graphcodebert --seq-len 400 --data-flow 128 0

Every configuration is a run of its own, started as a notebook starts it. Each result is copied to
OUT as JSON, and one line per run is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import nbhelpers as nb

_ROBERTA = {
    "model_type": "roberta",
    "architectures": ["RobertaModel"],
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "vocab_size": 8000,
}
SHAPES = {
    "codegpt": {
        "model_type": "gpt2",
        "architectures": ["GPT2Model"],
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 8000,
    },
    "graphcodebert": _ROBERTA,
    "codebert": _ROBERTA,
}


def shape_folder(shape: str, out: Path) -> Path:
    """Write the configuration of a published model without weights or tokenizer."""
    folder = out / f"{shape}-shape"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    return folder


def run_one(name: str, preset: str, overrides: dict[str, Any], out: Path) -> None:
    """Run one configuration and print its line, or its failure."""
    hardware = nb.detect_hardware()
    chosen = nb.load_preset("clones", preset, hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(chosen, hardware)
    budget = nb.predict_memory(chosen, plan, hardware)
    print(f"== {name}: {plan}; {budget}", flush=True)
    try:
        run = nb.launch(chosen, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
        result = nb.follow(run)
    except nb.NbhelpersError as error:
        print(f"{name} FAILED {type(error).__name__}: {error}", flush=True)
        return
    shutil.copy(run.result_path, out / f"{name}.json")
    print(json.dumps(line(name, result.data)), flush=True)


def line(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that go into the log."""
    test = data["scores"]["test"]
    given = test["orders"]["given"]
    return {
        "name": name,
        "f1": given["f1"],
        "f1_interval": test["intervals"]["f1"],
        "f1_macro": given["f1_macro"],
        "roc_auc": given["roc_auc"],
        "reversed_f1": test["orders"]["reversed"]["f1"],
        "mean_f1": test["orders"]["mean"]["f1"],
        "natural": test["at_prior"].get("natural"),
        "strata": {k: (v["n_pairs"], v["f1"], v["roc_auc"]) for k, v in test["strata"].items()},
        "floors": {k: v.get("f1") for k, v in test.get("floors", {}).items()},
        "timing": data["timing"],
        "throughput": data["throughput"],
        "memory": data["memory"],
        "gpu": data["gpu"],
    }


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="h100")
    parser.add_argument("--seq-len", type=int, nargs="+", default=[400, 1024])
    parser.add_argument("--max-train-samples", type=int)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="overrides")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="codegpt")
    parser.add_argument("--data-flow", type=int, nargs="*", help="nodes per function; 0: off")
    parser.add_argument("--name")
    given = parser.parse_args()
    common = {"model": str(shape_folder(given.shape, given.out)), "random_weights": True}
    common |= {"data": str(given.data), "train_fraction": 1.0, "learning_rate": 2e-4}
    if given.max_train_samples:
        common["max_train_samples"] = given.max_train_samples
    common |= {k: json.loads(v) for k, _, v in (text.partition("=") for text in given.set)}
    for seq_len in given.seq_len:
        for nodes in given.data_flow or [None]:
            lengths = {"seq_len": seq_len, "data_flow_length": nodes}
            name = f"{given.name or given.shape}-{seq_len}" + ("" if nodes is None else f"+{nodes}")
            run_one(name, given.preset, common | lengths, given.out)


if __name__ == "__main__":
    main()
