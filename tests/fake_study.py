"""A fine-tuning preset without files, and a worker without torch that writes a result like its own.

`python -m fake_study RUN_FOLDER` is the worker: FAKE_FAIL names adapters that fail, FAKE_KIND the
error, FAKE_SLOW adapters that take a while. `python -m fake_study drive RUN_DIR` runs a study.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nbhelpers.common.processes import die_with_parent
from nbhelpers.hardware.detection import Hardware
from nbhelpers.presets.preset import Draft, Preset, build_preset
from nbhelpers.runs import studies
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run, write_json
from nbhelpers.runs.studies import run_study
from nbhelpers.runs.study_plan import plan_study
from nbhelpers.runs.study_results import StudyResult

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "NBHELPERS_WORKER_MODULE": "fake_study",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "NBHELPERS_STOP_GRACE_S": "5",
}
SETTINGS: dict[str, Any] = {
    **{"model": "smoke", "data": "smoke", "on_bad_rows": "stop", "train_fraction": 1.0},
    **{"seq_len": 128, "padding": "dynamic", "epochs": 2, "global_batch_size": 16},
    **{"per_device_train_batch_size": 4, "allow_uneven_split": False, "num_gpus": "auto"},
    **{"per_device_eval_batch_size": 4, "learning_rate": 2e-4, "lr_schedule": "linear"},
    **{"warmup_ratio": 0.1, "weight_decay": 0.01, "adam_epsilon": 1e-8, "max_grad_norm": 1.0},
    **{"seed": 3, "precision": "auto", "attention": "auto", "gradient_checkpointing": False},
    **{"logging_steps": 5, "save_minutes": 10.0, "save_total_limit": 2, "max_skipped_steps": 5},
    **{"track": "none", "bootstrap_samples": 100, "method": "lora", "lora_r": 16},
    **{"lora_dropout": 0.0, "lora_target_modules": ["all-linear"], "packing": False},
    **{"loss": "auto", "compile_layers": "off", "template": "alpaca", "remove_duplicates": False},
    **{"valid_samples": 32, "eval_samples": 32, "evaluate": "text", "tasks": ["humaneval"]},
    **{"mbpp_data": "google-research-datasets/mbpp", "run_generated_code": "never"},
    **{"max_new_tokens": 64, "generation_batch_size": 16},
}
GEMMA = {"model": "google/gemma-2-2b", "data": "iamtarun/python_code_instructions_18k_alpaca"}


def make_preset(**changes: Any) -> Preset:
    values = SETTINGS | changes
    draft = Draft(values=dict(values), provenance={}, places={}, why={}, reference=dict(SETTINGS))
    origin = SimpleNamespace(
        job="finetune",
        name="smoke",
        notes=(),
        gpu=None,
        num_target_gpus=1,
        about="A preset of the tests.",
        base=dict(SETTINGS),
    )
    return build_preset(draft, origin=origin)


def no_gpu(**facts: Any) -> Hardware:
    known = {"gpus": (), "driver_version": None, "reason": "a test", "is_planned": False}
    known |= {"platform": "shell", "cpu_count": 2, "ram_total_bytes": 0, "ram_available_bytes": 0}
    return Hardware(**known | facts)


def run_quickly(study: Any, run_dir: Path, **options: Any) -> StudyResult:
    """Run a study that is looked at often."""
    studies.follow = partial(studies.follow, refresh_s=0.05)
    try:
        return run_study(study, run_dir=run_dir, **{"hardware": no_gpu()} | options)
    finally:
        studies.follow = studies.follow.func


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


def drive(run_dir: str) -> int:
    study = plan_study(make_preset(), no_gpu(), adapters="r8,r16", run_dir=run_dir)
    found = run_quickly(study, Path(run_dir))
    sys.stdout.write(json.dumps({row.name: row.status for row in found.rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(drive(sys.argv[2]) if sys.argv[1] == "drive" else work(sys.argv[1]))
