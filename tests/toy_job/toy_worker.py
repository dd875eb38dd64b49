"""The worker of the toy job: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from nbhelpers.jobs import outcome
from nbhelpers.jobs.loop import PlainTask
from nbhelpers.jobs.training import train_task


class ToyTask(PlainTask):
    selects_by = "accuracy"

    def __init__(self, settings: Any, splits: dict[str, Any], model: Any) -> None:
        self.settings, self.splits, self.raw = settings, splits, model
        self.costs = np.ones(len(splits["train"][0]), dtype=np.int64)

    def batch(self, rows: np.ndarray) -> Any:
        x, y = (column[rows] for column in self.splits["train"])
        return SimpleNamespace(x=x, y=y, useful_tokens=len(rows), padded_tokens=len(rows))

    def loss_sum(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(batch.x)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.y, reduction="sum"
        )
        return loss, loss[None]

    @torch.no_grad()
    def evaluate(self, step: int) -> dict[str, float]:
        return self.scores("valid")

    @torch.no_grad()
    def scores(self, split: str) -> dict[str, float]:
        x, y = self.splits[split]
        logits = self.raw(x)[:, 0]
        right = ((logits > 0) == (y > 0)).double().mean()
        return {"accuracy": float(right), "mean_distance": float(logits.abs().mean())}

    def describe(self, rows: np.ndarray) -> str:
        return f"points {rows.tolist()}"


def check(settings: Any) -> list[str]:
    return []


def build_data(session: Any) -> dict[str, Any]:
    draw = np.random.default_rng(session.settings.seed)
    splits = {}
    for name in ("train", "valid", "test"):
        x = draw.normal(size=(session.settings.points, 3)).astype(np.float32)
        splits[name] = torch.from_numpy(x), torch.from_numpy((x[:, 0] > x[:, 1]).astype(np.float32))
    return splits


def build_model(session: Any, splits: dict[str, Any]) -> Any:
    return torch.nn.Linear(3, 1)


def train(session: Any, splits: dict[str, Any], model: Any) -> Any:
    task = ToyTask(session.settings, splits, model)
    return train_task(
        session, task, model, predict=lambda windows: None, save_files=lambda folder: None
    )


def evaluate(session: Any, splits: dict[str, Any], model: Any, training: Any) -> None:
    task, ranks = ToyTask(session.settings, splits, model), outcome.gather_memory(session, training)
    scores = {
        name: {"n_samples": len(splits[name][0]), "metrics": task.scores(name)}
        for name in ("valid", "test")
    }
    if session.is_main:
        outcome.write_result(
            session, training, ranks, {"scores": scores, "model": {"name": "linear"}}
        )
