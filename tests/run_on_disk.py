"""A made-up run folder as a worker leaves it, for the tests of what reads one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.metrics.pairs import score_pairs
from nbhelpers.metrics.predictions import PredictionWriter

MIB = 2**20
SETTINGS = {
    "model": "codegpt",
    "data": "google/code_x_glue_cc_clone_detection_big_clone_bench",
    "seq_len": 512,
    "padding": "dynamic",
    "global_batch_size": 64,
    "learning_rate": 5.0e-5,
    "precision": "bf16",
    "num_gpus": 2,
    "targets": {"f1": 0.85, "roc_auc": 0.999},
}
PLAN = {
    "world_size": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "global_batch_size": 64,
}
BUDGET = {
    "lines": [
        {"name": "weights", "size_bytes": 480 * MIB, "note": "fp32"},
        {"name": "gradients", "size_bytes": 480 * MIB, "note": ""},
        {"name": "optimizer", "size_bytes": 960 * MIB, "note": "two moments"},
        {"name": "activations", "size_bytes": 2600 * MIB, "note": "8 x 512 tokens"},
    ],
    "total_bytes": 4520 * MIB,
    "capacity_bytes": 16 * 1024 * MIB,
    "verdict": "fits",
}


def split_scores(seed: int, *, n_functions: int = 60, quality: float = 2.5) -> dict[str, Any]:
    """Return labels and both probabilities of a made-up split, and its scores."""
    rng = np.random.default_rng(seed)
    left, right = np.triu_indices(n_functions, 1)
    label = (rng.random(len(left)) < 0.3).astype(int)
    logit = rng.normal(size=len(left)) + quality * (2 * label - 1) * 0.6
    p, q = (1 / (1 + np.exp(-(logit + rng.normal(size=len(left)) * 0.1))) for _ in range(2))
    scores = score_pairs(
        left,
        right,
        label,
        p,
        q,
        0.45,
        seen=rng.integers(0, 3, len(left)),
        priors={"natural": 0.14},
        bootstrap_samples=100,
        seed=seed,
    )
    return {"left": left, "right": right, "label": label, "p": p, "q": q, "scores": scores}


def floors(f1: float, **extra: Any) -> dict[str, Any]:
    """Return three made-up floors, TF-IDF at the given F1."""
    plain = {"precision": 0.31, "recall": 1.0, "f1": 0.473, "roc_auc": 0.5, "threshold": 0.5}
    return {
        "always_yes": plain,
        "identifier_overlap": plain | {"precision": 0.6, "recall": 0.8, "f1": 0.69},
        "tfidf_mlp": plain | {"precision": f1, "recall": f1, "f1": f1, "roc_auc": 0.9} | extra,
    }


def result(valid: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    """Return a whole result as a worker writes it."""
    ranks = [
        {
            "rank": r,
            "peak_allocated_bytes": (4200 + 90 * r) * MIB,
            "peak_reserved_bytes": 5000 * MIB,
        }
        for r in range(2)
    ]
    splits = {"pairs": 1770, "clones": 531, "functions": 60}
    return {
        "schema": 1,
        "run_id": "clones-codegpt-0123456789",
        "job": "clones",
        "mode": "train",
        "preset": "2x-t4",
        "settings": SETTINGS,
        "plan": PLAN,
        "budget": BUDGET,
        "command": "nbhelpers train clones --preset 2x-t4",
        "versions": {"python": "3.12.1", "torch": "2.9.0", "nbhelpers": "0.1.0"},
        "seed": 3,
        "git_commit": "abcdef0123456789",
        "data": {
            "source": SETTINGS["data"],
            "revision": "r1",
            "fingerprint": "f" * 64,
            "licence": "C-UDA",
            "note": "standard 10 % sample",
            "splits": {"train": splits, "valid": splits, "test": splits},
            "problems": "no problems found\nrepeated rows: 12",
        },
        "model": {"name": "microsoft/CodeGPT-small-java-adaptedGPT2", "parameters": 125_000_000},
        "threshold": {"value": 0.45, "chosen_on": "valid", "criterion": "f1"},
        "scores": {
            "valid": valid["scores"],
            "test": test["scores"] | {"floors": floors(0.8)},
        },
        "training": {
            "optimizer_steps": 200,
            "epochs": 2,
            "first_loss": 0.69,
            "last_loss": 0.12,
            "history": [
                {"step": s, "loss": 0.69 * 0.985**s, "learning_rate": 5e-5}
                for s in range(1, 201, 5)
            ],
            "evals": [
                {"step": s, "split": "valid", "scores": {"f1": 1 - 40 / (s + 60)}}
                for s in (100, 200)
            ],
            "best_step": 200,
        },
        "timing": {"check_s": 0.2, "data_s": 8.1, "train_s": 640.0, "total_s": 733.0},
        "throughput": {
            "pairs_per_s": 141.2,
            "useful_tokens_per_s": 58_000.0,
            "useful_share": 0.913,
            "fixed_padding_useful_share": 0.437,
        },
        "memory": {
            "device": "cuda",
            "what": "allocator peak",
            "per_rank": ranks,
            "predicted_bytes": 4520 * MIB,
            "measured_bytes": 4290 * MIB,
            "error_percent": 5.36,
        },
        "gpu": [
            {
                "index": i,
                "name": "Tesla T4",
                "mean_utilisation_percent": 91.0 + i,
                "peak_memory_used_bytes": 5600 * MIB,
            }
            for i in range(2)
        ],
        "warnings": ["12 repeated <train> rows"],
    }


def loss_of(second: int) -> dict[str, Any]:
    """Return what a step of the clone detector tells."""
    return {"total_steps": 200, "epoch": 0, "loss": 0.7 - second / 1000}


def write_events(
    folder: Path,
    extra: list[dict[str, Any]] = (),
    *,
    step: Callable[[int], dict[str, Any]] = loss_of,
    every: int = 10,
    memory_bytes: int = 4000 * MIB,
    num_gpus: int = 2,
) -> None:
    """Write the events of a run of ten minutes; `step`: what a step tells, by its second."""
    events: list[dict[str, Any]] = [{"t": 1000.0, "type": "start", "rank": 0}]
    phases = ((0, "check"), (1, "data"), (9, "train"))
    events += [{"t": 1000.0 + at, "type": "phase", "rank": 0, "name": name} for at, name in phases]
    for s in range(10, 601, every):
        busy = [
            {"index": i, "utilisation_percent": 90 - 5 * i + s % 7, "memory_used_bytes": MIB}
            for i in range(num_gpus)
        ]
        events.append({"t": 1000.0 + s, "type": "gpu", "gpus": busy})
        told = {"t": 1000.0 + s, "type": "step", "rank": 0, "step": s // 10}
        events.append(told | {"memory_bytes": memory_bytes} | step(s))
    lines = [json.dumps(event) for event in [*events, *extra]]
    (folder / "events-rank0.jsonl").write_text("\n".join(lines) + "\n")


def write_facts(folder: Path, data: dict[str, Any], gpu: str, why: str, seq_len: int) -> None:
    """Write the result and the record of a run whose preset changed `seq_len`, for a reason."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(data))
    settings = data["settings"]
    preset = {"name": gpu, "settings": settings, "base": {**settings, "seq_len": seq_len}}
    preset |= {"why": {"seq_len": why}, "provenance": {"seq_len": f"{gpu}.yaml"}}
    record = {"run_id": folder.name, "job": data["job"], "mode": "train", "plan": data["plan"]}
    record |= {"budget": data["budget"], "preset": preset, "command": data["command"]}
    (folder / "run.json").write_text(json.dumps(record))


def write_run(folder: Path, *, data: dict[str, Any] | None = None) -> Path:
    """Write a finished run folder."""
    valid, test = split_scores(1), split_scores(2)
    data = data or result(valid, test)
    write_facts(folder, data, "2x-t4", "19.5 % of functions exceed 400 tokens", 400)
    write_events(folder)
    with PredictionWriter(folder / "predictions.jsonl") as writer:
        writer.write_chunk(
            split="test",
            start=0,
            id1=[str(left) for left in test["left"]],
            id2=[str(right) for right in test["right"]],
            label=test["label"],
            p=test["p"],
            p_reversed=test["q"],
            prediction=[p > 0.45 for p in test["p"]],
        )
    return folder
