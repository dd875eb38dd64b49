"""The same runs with two checkouts of this package, in turn, on one GPU: losses, speed, memory.

    python benchmarks/compare_trees.py OUT OLD NEW --pairs BCB --programs paired.jsonl \
        --rows rows.jsonl clones-400:onno finetune:on

OLD and NEW are checkouts; `onno` is the order of the runs (o: OLD, n: NEW). Shapes of published
models with random weights, no dropout in the adapters. Each run adds a line to OUT/rows.jsonl and
prints its useful tokens per second and median step from the sixth step on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

STEPS, BATCH, PAIRS, LONG = 30, 16, 64, "long.jsonl"
FINETUNE = {"model": "gemma-2-2b", "random_weights": True, "template": "alpaca", "track": "none"}
FINETUNE |= {"eval_samples": 4, "max_new_tokens": 4, "valid_samples": 16, "epochs": 1}
FINETUNE |= {"logging_steps": 1, "lora_dropout": 0.0, "max_train_samples": STEPS * BATCH}
ENCODER = {"random_weights": True, "track": "none", "logging_steps": 1, "epochs": 1}
CLONES = ENCODER | {"max_train_samples": STEPS * PAIRS, "max_eval_pairs": 200}
CLONES |= {"learning_rate": 2e-4, "train_fraction": 1.0}
DETECTOR = ENCODER | {"augment": [], "augment_share": 0.0, "edit_suite": False, "floors": False}
DETECTOR |= {"pretrain_steps": 0, "epochs": 3, "freeze_epochs": 1, "on_failed_audit": "go_on"}


def configurations(options: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return job and overrides by name."""
    long, out = options.out / LONG, options.out
    pairs = {"model": str(out / "codegpt-shape"), "data": str(options.pairs)}
    programs = {"model": str(out / "codebert-shape"), "data": str(options.programs)}
    return {
        "finetune": ("finetune", FINETUNE | {"data": str(options.rows)}),
        "finetune-1024": ("finetune", FINETUNE | {"data": str(long), "seq_len": 1024}),
        "clones-400": ("clones", CLONES | pairs | {"seq_len": 400}),
        "clones-1024": ("clones", CLONES | pairs | {"seq_len": 1024}),
        "detector": ("detector", DETECTOR | programs),
    }


def prepare(options: argparse.Namespace) -> None:
    """Write the shapes of the models, and rows longer than any `seq_len`, into OUT."""
    from clones_gpu import shape_folder
    from finetune_gpu import long_rows

    for shape in ("codegpt", "codebert"):
        shape_folder(shape, options.out)
    long_rows(options.rows, options.out / LONG, (STEPS + 1) * BATCH + 40, 1600)


def run_one(name: str, label: str, options: argparse.Namespace) -> None:
    """Run one configuration with the package that this process imports."""
    import nbhelpers as nb

    job, overrides = configurations(options)[name]
    hardware = nb.detect_hardware()
    preset = nb.load_preset(job, "h100", hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(preset, hardware)
    budget = nb.predict_memory(preset, plan, hardware)
    folder = options.out / f"runs-{name}-{label}-{os.getpid()}"
    run = nb.launch(preset, plan, budget, hardware=hardware, run_dir=folder, owner_pid=os.getpid())
    result = nb.follow(run)
    lines = (run.path / "events-rank0.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, lines) if event["type"] == "step"]
    seconds = [step["elapsed_s"] for step in steps]
    memory = result.data["memory"]
    row = {
        "name": name,
        "tree": label,
        "losses": [step["loss"] for step in steps],
        "seconds": seconds,
        "allocated_bytes": memory["measured_bytes"],
        "reserved_bytes": memory["per_rank"][0]["peak_reserved_bytes"],
        "total_s": result.data["timing"]["total_s"],
    }
    with (options.out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    tokens = steps[-1]["useful_tokens"] - steps[5]["useful_tokens"]
    times = [after - before for before, after in pairwise(seconds[5:])]
    print(
        f"{name} {label}: {tokens / (seconds[-1] - seconds[5]):,.0f} tokens/s, median step "
        f"{median(times) * 1e3:.1f} ms, {memory['measured_bytes']:,} bytes, losses "
        f"{row['losses'][0]:.6f} to {row['losses'][-1]:.6f}, {row['total_s']:.0f} s in all",
        flush=True,
    )


def main() -> None:
    """Run each named configuration in the order that is asked for, one process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("out", "old", "new"):
        parser.add_argument(name, type=Path)
    for name in ("--pairs", "--programs", "--rows"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("orders", nargs="+", metavar="NAME:ORDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if label := os.environ.get("COMPARED_TREE"):
        run_one(options.orders[0].partition(":")[0], label, options)
        return
    prepare(options)
    for name, _, order in (each.partition(":") for each in options.orders):
        for label in order:
            tree = options.old if label == "o" else options.new
            paths = [str(tree.resolve()), os.environ.get("PYTHONPATH", "")]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COMPARED_TREE": label}
            command = [sys.executable, *sys.argv[: -len(options.orders)], f"{name}:{label}"]
            subprocess.run(command, env=env, check=False)


if __name__ == "__main__":
    main()
