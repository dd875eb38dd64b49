"""Promise: how a global batch is split over processes does not change what is learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_probe
from ranks import in_ranks
from safetensors.numpy import load_file

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
    "pair_order": "random",
    "padding": "dynamic",
    "per_device_eval_batch_size": 4,
}
# 45 pairs and a global batch of 8: the last step of an epoch has 5.
CASES = [  # family, optimizer, precision, limit
    ("gpt2", "sgd", "float32", 1e-5),
    ("gpt2", "adamw", "float64", 1e-10),
    ("graph", "adamw", "float64", 1e-10),
]
SPLITS = {"1x8x1": (1, 8), "1x4x2": (1, 4), "2x2x2": (2, 2), "3x2x2": (3, 2)}


Played = tuple[dict[str, np.ndarray], dict[str, Any]]  # weights, facts


def config(folder: Path, name: str, family: str, optimizer: str, dtype: str) -> dict[str, Any]:
    rate = 0.05 if optimizer == "sgd" else 1e-3
    return {
        "settings": SETTINGS | {"learning_rate": rate},
        "dropout": 0.0,
        "optimizer": optimizer,
        "dtype": dtype,
        "pairs": 45,
        "per_device": SPLITS[name][1],
        "family": family,
        "out": str(folder / f"{family}-{optimizer}-{name}.safetensors"),
    }


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Played]:
    """What each case comes to on each split: one start for each number of processes."""
    folder = tmp_path_factory.mktemp("splits")
    results = {}
    for world in (1, 2, 3):
        keys = [(c, name) for c in CASES for name, (other, _) in SPLITS.items() if other == world]
        configs = [config(folder, name, *case[:3]) for case, name in keys]
        if world == 1:
            for one in configs:
                training_probe.main(one)
            torch.set_default_dtype(torch.float32)
        else:
            in_ranks(world, lambda configs=configs: [training_probe.main(one) for one in configs])
        for (case, name), one in zip(keys, configs, strict=True):
            out = Path(one["out"])
            results[*case[:2], name] = (
                load_file(out),
                json.loads(out.with_suffix(".json").read_text()),
            )
    return results


def distance(a: dict, b: dict) -> float:
    """Largest norm of the difference over all tensors."""
    assert a.keys() == b.keys()
    return max(float(np.linalg.norm(a[k].astype(np.float64) - b[k].astype(np.float64))) for k in a)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "optimizer", "dtype", "limit"), CASES)
def test_every_split_of_the_global_batch_gives_the_same_weights(
    family: str, optimizer: str, dtype: str, limit: float, played: dict
) -> None:
    runs = {name: played[family, optimizer, name] for name in SPLITS}
    reference, facts = runs["1x8x1"]
    moved = {k: v for k, v in reference.items() if np.abs(v).max() > 0}
    assert len(moved) > 10 and facts["state"]["step"] == 12
    for name, (weights, other) in runs.items():
        assert distance(reference, weights) <= limit, name
        assert other["state"]["examples"] == 90, name
        for order in ("p", "p_reversed"):
            assert np.allclose(facts[order], other[order], atol=10 * limit), name
    assert not np.allclose(facts["p"], facts["p_reversed"], atol=1e-6)
