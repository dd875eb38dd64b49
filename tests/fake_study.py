"""A fine-tuning preset without files, and a study of it by workers without torch.

`python -m fake_study RUN_DIR` runs a study.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nbhelpers.hardware.detection import Hardware
from nbhelpers.presets.preset import Draft, Preset, build_preset
from nbhelpers.runs import studies
from nbhelpers.runs.studies import run_study
from nbhelpers.runs.study_plan import plan_study
from nbhelpers.runs.study_results import StudyResult

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "NBHELPERS_WORKER_MODULE": "fake_adapter",
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


def drive(run_dir: str) -> int:
    study = plan_study(make_preset(), no_gpu(), adapters="r8,r16", run_dir=run_dir)
    found = run_quickly(study, Path(run_dir))
    sys.stdout.write(json.dumps({row.name: row.status for row in found.rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(drive(sys.argv[1]))
