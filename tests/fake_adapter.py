"""A worker of a fine-tuning without torch, that writes a result like its own; it starts at once.

FAKE_FAIL names adapters that fail, FAKE_KIND the error, FAKE_SLOW adapters that take a while.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from nbhelpers.common.processes import die_with_parent
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run, write_json


def result_of(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """What a worker would write; ranks differ a little, so that a table can be checked."""
    is_base, rank = settings["method"] == "base", settings["lora_r"]
    accuracy = 0.4 if is_base else 0.8 + rank / 1000
    scores = {
        "n_samples": 32,
        "metrics": {"syntax_accuracy": accuracy, "bleu": 20.0 + rank / 10, "exact_match": 0.1},
        "intervals": {"syntax_accuracy": [accuracy - 0.1, accuracy + 0.1]},
    }
    trained = {
        "training": {
            "last_loss": 0.5,
            "history": [],
            "evals": [{"step": 9, "loss": 0.6}],
            "optimizer_steps": 12,
            "epochs": 2,
            "examples": 200,
        },
        "throughput": {
            "useful_tokens_per_s": 1000.0 + rank,
            "samples_per_s": (1000.0 + rank) / 50,
        },
        "energy": {"joules": 7200.0, "watts_mean": 100.0},
    }
    return {
        "schema": 1,
        "run_id": run.id,
        "job": "finetune",
        "settings": settings,
        "scores": {"test": scores},
        "adapter": {"trainable_parameters": 0 if is_base else 1000 * rank},
        "memory": {"predicted_bytes": 2 << 30, "measured_bytes": 1 << 30, "error_percent": 100.0},
        "data": {
            "splits": {"train": {"samples": 100, "tokens": 5000}},
            "fingerprint": "made up",
            "example": [["ask", False], ["answer", True]],
            "lengths": {"edges": [0, 9], "counts": [100], "seq_len": 128, "cut_share": 0.0},
        },
        "timing": {"train_s": 4.0, "evaluate_s": 2.0, "total_s": 10.0},
    } | ({} if is_base else trained)


def answers_of(run: Run, settings: dict[str, Any]) -> None:
    """Answers of 32 samples, so many of which parse as the method and the rank decide."""
    good = 12 if settings["method"] == "base" else 26 + settings["lora_r"] // 30
    lines = [
        {
            "split": "test",
            "id": f"t{at}",
            "prompt": "write x",
            "reference": f"x = {at}",
            "answer": f"x = {at}" if at < good else "x = (",
            "new_tokens": 4,
            "stopped": True,
            "outcome": None,
            "detail": None,
        }
        for at in range(32)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.path / "generations.jsonl").write_text(text)


def work(folder: str) -> int:
    die_with_parent()
    run = Run(Path(folder))
    settings = run.read_json()["preset"]["settings"]
    named = {"base": "base", "lora": f"r{settings['lora_r']}"}.get(settings["method"], "qlora")
    with EventWriter(run.path, 0) as writer:
        writer.write("start", rank=0, world_size=1, device="cpu", pid=os.getpid())
        if named in os.environ.get("FAKE_FAIL", "").split():
            kind = os.environ.get("FAKE_KIND", "OutOfMemory")
            writer.write("error", kind=kind, message="it was too much", fix="ask for less")
            return 4
        until = time.monotonic() + (3000 if named in os.environ.get("FAKE_SLOW", "").split() else 0)
        step = 0
        while time.monotonic() < until and not (run.path.parent / "hurry").exists():
            step += 1
            writer.write("step", step=step, total_steps=600, loss=1.0)
            time.sleep(0.05)
            if run.stop_path.exists():
                writer.write("stopped", step=step)
                return 0
        answers_of(run, settings)
        write_json(run.result_path, result_of(run, settings))
        writer.write("end")
    return 0


if __name__ == "__main__":
    sys.exit(work(sys.argv[1]))
