"""What each micro-step of a fine-tuning sees: the same samples, however a step is split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from nbhelpers.batching import BatchPlan
from nbhelpers.jobs.schedule import epoch_windows, learning_rate_at, micro_batches
from nbhelpers.models.causal_batches import MicroBatch, make_batch
from nbhelpers.models.causal_text import TextTable

if TYPE_CHECKING:
    from nbhelpers.schema import FinetuneSettings


@dataclass(slots=True, kw_only=True)
class Recipe:
    """What decides each micro-batch: the samples, how they are split, and how they are laid out."""

    settings: FinetuneSettings
    plan: BatchPlan
    table: TextTable
    pad_id: int
    multiple: int
    rank: int = 0
    only: list[np.ndarray] | None = None  # the samples of each step of a probe

    @property
    def windows_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return math.ceil(len(self.table) / self.settings.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.settings.epochs * self.windows_per_epoch

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps of the warm-up."""
        s = self.settings
        if s.warmup_steps is not None:
            return min(s.warmup_steps, self.total_steps)
        return math.ceil(s.warmup_ratio * self.total_steps)

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Return the samples of each optimizer step of an epoch."""
        s = self.settings
        if self.only is not None:
            return self.only
        return epoch_windows(len(self.table), s.global_batch_size, seed=s.seed, epoch=epoch)

    def micro(self, window: np.ndarray, rank: int | None = None) -> list[np.ndarray]:
        """Return the samples of each micro-step of a window on this rank, or on another."""
        return micro_batches(
            window,
            self.table.lengths,
            rank=self.rank if rank is None else rank,
            world_size=self.plan.world_size,
            per_device=self.plan.per_device_train_batch_size,
        )

    def batch(self, rows: np.ndarray) -> MicroBatch:
        """Return samples as a micro-batch."""
        s = self.settings
        return make_batch(
            self.table,
            rows,
            pad_id=self.pad_id,
            packed=s.packing,
            width=s.seq_len if s.padding == "fixed" else None,
            multiple=self.multiple,
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a 0-based optimizer step."""
        s = self.settings
        return learning_rate_at(
            step,
            self.total_steps,
            peak=s.learning_rate,
            warmup_steps=self.warmup_steps,
            schedule=s.lr_schedule,
        )


class Rows(Dataset):  # type: ignore[type-arg]
    """Micro-batches by their samples' numbers; the trainer's loader asks for one at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __len__(self) -> int:
        return len(self.recipe.table)

    def __getitem__(self, rows: Any) -> dict[str, Any]:
        if isinstance(rows, int):  # the trainer looks at the first sample to learn the columns
            if rows >= len(self):
                raise IndexError(rows)
            rows = [rows]
        batch = self.recipe.batch(np.array(rows, dtype=np.int64))
        return {"input_ids": batch.ids, "labels": batch.labels, "batch": batch}


class EpochOrder:
    """A batch sampler: each item is one micro-step's samples, in the order of the epoch."""

    batch_size = 1
    drop_last = False

    def __init__(self, recipe: Recipe, epoch: Callable[[], int]) -> None:
        self.recipe, self.epoch = recipe, epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self.recipe.table), self.recipe.settings.global_batch_size)
        plan = self.recipe.plan
        share = plan.world_size * plan.per_device_train_batch_size
        return full * plan.gradient_accumulation_steps + math.ceil(rest / share)

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        for window in self.recipe.windows(self.epoch()):
            for rows in self.recipe.micro(window):
                yield [tuple(int(row) for row in rows)]
