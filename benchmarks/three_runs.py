"""Runs of each job on one GPU: the memory that was simulated before the model, and the measured.

    python benchmarks/three_runs.py OUT [--data DATA] [NAME ...]

DATA holds `bigclonebench_10pct`, `detector` and `instructions` (the environment variable
NBHELPERS_DATA names it too). Shapes of published models with random weights; nothing comes from a
hub. Each run prints one JSON line: bytes predicted and measured with the error in per cent
(allocated, reserved, each phase), how long the run waited for the simulation, and what was in use
of the card when its model began to load. Without names: clones, detector, finetune,
detector-compiled, qlora.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from clones_gpu import shape_folder

import nbhelpers as nb

EVERY_S = 0.1  # the card's memory is read
COMMON = {"random_weights": True, "track": "none", "logging_steps": 5, "epochs": 1}
CLONES = COMMON | {"max_train_samples": 1280, "max_eval_pairs": 400, "floors": False}
CLONES |= {"bootstrap_samples": 100, "train_fraction": 1.0}
DETECTOR = COMMON | {"augment": [], "augment_share": 0.0, "edit_suite": False, "floors": False}
DETECTOR |= {"pretrain_steps": 0, "epochs": 2, "freeze_epochs": 1, "on_failed_audit": "go_on"}
DETECTOR |= {"max_train_samples": 3840, "bootstrap_samples": 100, "compile_layers": "off"}
FINETUNE = COMMON | {"model": "gemma-2-2b", "template": "alpaca", "max_train_samples": 320}
FINETUNE |= {"eval_samples": 16, "max_new_tokens": 16, "valid_samples": 32}
USUAL = ("clones", "detector", "finetune", "detector-compiled", "qlora")


def configurations(data: Path, out: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return job and overrides by name."""
    pairs = {"data": str(data / "bigclonebench_10pct"), "model": str(shape_folder("codegpt", out))}
    graphs = pairs | {"model": str(shape_folder("graphcodebert", out)), "data_flow_length": 128}
    programs = {"data": str(data / "detector/paired.jsonl")}
    programs |= {"model": str(shape_folder("codebert", out))}
    rows = {"data": str(data / "instructions/code_alpaca_python.jsonl")}
    return {
        "clones": ("clones", CLONES | pairs | {"seq_len": 1024}),
        "clones-400": ("clones", CLONES | pairs | {"seq_len": 400}),
        "clones-graphs": ("clones", CLONES | graphs | {"seq_len": 384}),
        "clones-accumulated": (
            "clones",
            CLONES | pairs | {"seq_len": 400, "per_device_train_batch_size": 16},
        ),
        "detector": ("detector", DETECTOR | programs),
        "detector-compiled": ("detector", DETECTOR | programs | {"compile_layers": "on"}),
        "finetune": ("finetune", FINETUNE | rows),
        "finetune-compiled": ("finetune", FINETUNE | rows | {"compile_layers": "on"}),
        "finetune-compiled-checkpointed": (
            "finetune",
            FINETUNE | rows | {"compile_layers": "on", "gradient_checkpointing": True},
        ),
        "qlora": ("finetune", FINETUNE | rows | {"method": "qlora", "compile_layers": "off"}),
    }


class CardWatch:
    """Reads what is in use of the first GPU, in a thread."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, int]] = []  # (unix seconds, bytes)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(EVERY_S):
            gpu = nb.detect_hardware().gpus[0]
            self.readings.append((time.time(), gpu.memory_total_bytes - gpu.memory_free_bytes))

    def __enter__(self) -> CardWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def at(self, seconds: float) -> int | None:
        """Return the reading before a time."""
        return next((size for t, size in reversed(self.readings) if t <= seconds), None)


def run_one(name: str, job: str, overrides: dict[str, Any], out: Path) -> None:
    """Run one configuration and print its line, or its failure."""
    hardware = nb.detect_hardware()
    try:
        preset = nb.load_preset(job, "h100", hardware=hardware, overrides=overrides)
        plan = nb.plan_batch(preset, hardware)
        budget = nb.predict_memory(preset, plan, hardware)
        with CardWatch() as watch:
            run = nb.launch(
                preset, plan, budget, hardware=hardware, run_dir=out / "runs", force=True
            )
            result = nb.follow(run)
    except nb.NbhelpersError as error:
        print(json.dumps({"name": name, "failed": f"{type(error).__name__}: {error}"}), flush=True)
        return
    lines = (run.path / "events-rank0.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    loads = [e["t"] for e in events if e["type"] == "phase" and e.get("name") == "model"]
    memory = result.data["memory"]
    names = ("predicted_bytes", "measured_bytes", "error_percent")
    row = {
        "name": name,
        "gpu": hardware.gpu.name,
        "source": memory["source"],
        "allocated": [memory[key] for key in names],
        "reserved": [memory["reserved"][key] for key in names],
        "phases": {line["phase"]: [line[key] for key in names] for line in memory["phases"]},
        "simulated_s": memory.get("simulated_s"),
        "in_use_before_bytes": watch.readings[0][1] if watch.readings else None,
        "in_use_at_load_bytes": watch.at(loads[0]) if loads else None,
        "launch_budget_bytes": budget.allocated_bytes,
        "model": result.data.get("model", {}).get("compiled"),
        "total_s": result.data["timing"]["total_s"],
        "warnings": result.data["warnings"],
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    """Run what is named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, default=os.environ.get("NBHELPERS_DATA"))
    options = parser.parse_intermixed_args()
    if options.data is None:
        parser.error("give --data, or set NBHELPERS_DATA")
    options.out.mkdir(parents=True, exist_ok=True)
    known = configurations(Path(options.data).resolve(), options.out.resolve())
    for name in options.names or USUAL:
        run_one(name, *known[name], options.out.resolve())


if __name__ == "__main__":
    main()
