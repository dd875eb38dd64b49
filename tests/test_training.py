"""Promise: how a global batch is split over processes does not change what is learnt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROBE = Path(__file__).with_name("training_probe.py")
SETTINGS = {
    "seed": 3,
    "epochs": 2,
    "global_batch_size": 8,
    "learning_rate": 0.05,
    "lr_schedule": "linear",
    "warmup_ratio": 0.1,
    "max_grad_norm": 1.0,
    "max_skipped_steps": 5,
    "logging_steps": 1,
    "eval_steps": None,
    "save_steps": None,
    "max_eval_pairs": None,
    "padding": "dynamic",
    "per_device_eval_batch_size": 4,
}
# 45 pairs and a global batch of 8: the last step of an epoch has 5.
SPLITS = {"1x8x1": (1, 8), "1x4x2": (1, 4), "2x4x1": (2, 4), "2x2x2": (2, 2), "3x2x2": (3, 2)}


def train(
    folder: Path, name: str, *, optimizer: str, dtype: str, family: str = "gpt2"
) -> tuple[dict, dict]:
    """Run the probe in `world` processes; return (weights, facts)."""
    from safetensors.numpy import load_file

    world, per_device = SPLITS[name]
    out = folder / f"{name}.safetensors"
    rate = 0.05 if optimizer == "sgd" else 1e-3
    config = {
        "settings": SETTINGS | {"learning_rate": rate},
        "dropout": 0.0,
        "optimizer": optimizer,
        "dtype": dtype,
        "pairs": 45,
        "per_device": per_device,
        "family": family,
        "out": str(out),
    }
    file = folder / f"{name}.config.json"
    file.write_text(json.dumps(config))
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command = [sys.executable, *(start if world > 1 else []), str(PROBE), str(file)]
    cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    env = os.environ | cpu
    root = str(Path(__file__).parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([root, env.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out), json.loads(out.with_suffix(".json").read_text())


def distance(a: dict, b: dict) -> float:
    """Largest norm of the difference over all tensors."""
    assert a.keys() == b.keys()
    return max(float(np.linalg.norm(a[k].astype(np.float64) - b[k].astype(np.float64))) for k in a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "optimizer", "dtype", "limit"),
    [
        ("gpt2", "sgd", "float32", 1e-5),
        ("gpt2", "adamw", "float64", 1e-10),
        ("graph", "adamw", "float64", 1e-10),
    ],
)
def test_every_split_of_the_global_batch_gives_the_same_weights(
    tmp_path: Path, family: str, optimizer: str, dtype: str, limit: float
) -> None:
    runs = {
        name: train(tmp_path, name, optimizer=optimizer, dtype=dtype, family=family)
        for name in SPLITS
    }
    reference, facts = runs["1x8x1"]
    moved = {k: v for k, v in reference.items() if np.abs(v).max() > 0}
    assert len(moved) > 10 and facts["state"]["step"] == 12
    for name, (weights, other) in runs.items():
        assert distance(reference, weights) <= limit, name
        assert other["state"]["examples"] == 90, name
        for order in ("p", "p_reversed"):
            assert np.allclose(facts[order], other[order], atol=10 * limit), name
    assert not np.allclose(facts["p"], facts["p_reversed"], atol=1e-6)
