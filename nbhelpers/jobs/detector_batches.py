"""Rows of the token table as batches on the device, and the scores of many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nbhelpers.ledger import BatchExtent, is_packed
from nbhelpers.models.buckets import TextBucket
from nbhelpers.models.detector import DetectorModel, ProgramBatch
from nbhelpers.models.inputs import TokenTable, length_buckets
from nbhelpers.models.packed import has_ragged_kernel
from nbhelpers.schema import DetectorSettings

MIN_BUCKET_TOKENS = 4096  # on a GPU: kernels should outlast their launches


class Batches:
    """Makes micro-batches and scores rows; on several ranks each has its share."""

    def __init__(self, settings: DetectorSettings, table: TokenTable, accelerator: Any) -> None:
        """Prepare for this device."""
        self.settings, self.table, self.accelerator = settings, table, accelerator
        self.device = accelerator.device
        self.is_cuda = self.device.type == "cuda"
        self.lengths = table.lengths
        self._multiple = 8 if self.is_cuda else 1

    def make(
        self, rows: np.ndarray, *, labels: np.ndarray, weights: np.ndarray, positions: np.ndarray
    ) -> ProgramBatch:
        """Return table rows on the device, each in a bucket of its length."""
        groups = self._groups(self.lengths[rows])
        buckets, padded = [], 0
        for group in groups:
            width = self._width(int(self.lengths[rows[group]].max()))
            buckets.append(self.table.bucket(rows[group], width).to(self._put))
            padded += width * len(group)
        useful = int(self.lengths[rows].sum())
        place = np.empty(len(rows), dtype=np.int64)
        place[np.concatenate(groups)] = np.arange(len(rows))
        return ProgramBatch(
            buckets=buckets,
            place=self._put(torch.from_numpy(place)),
            labels=self._put(torch.from_numpy((labels == 1).astype(np.float32))),
            weights=self._put(torch.from_numpy(weights.astype(np.float32))),
            positions=self._put(torch.from_numpy(positions.astype(np.int64))),
            useful_tokens=useful if len(positions) else 0,
            padded_tokens=useful if self._is_ragged() else padded,
        )

    def _is_ragged(self) -> bool:
        """Whether no padding is computed at all."""
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = half.get(self.accelerator.mixed_precision, torch.float32)
        return is_packed(self.settings) and has_ragged_kernel(self.device, dtype)

    def _groups(self, lengths: np.ndarray) -> list[np.ndarray]:
        if self.settings.padding == "fixed" or self._is_ragged():
            return [np.arange(len(lengths))]
        least = MIN_BUCKET_TOKENS if self.is_cuda else 0
        return length_buckets(lengths, ratio=0.8, min_tokens=least)

    def _width(self, longest: int) -> int:
        if self.settings.padding == "fixed":
            return self.table.seq_len
        return min(-(-longest // self._multiple) * self._multiple, self.table.seq_len)

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def extent(self, rows: np.ndarray) -> BatchExtent:
        """Return how large the micro-batch of these table rows is when it is computed."""
        lengths = self.lengths[rows]
        sizes = [(len(g), self._width(int(lengths[g].max()))) for g in self._groups(lengths)]
        padded = sum(n * width for n, width in sizes)
        tokens, last = padded, sizes[-1][0] * sizes[-1][1]
        if is_packed(self.settings):
            tokens = last = int(lengths.sum())
        return BatchExtent(
            tokens=tokens,
            padded_tokens=tokens if self._is_ragged() else padded,
            squares=sum(n * width**2 for n, width in sizes),
            last_tokens=last,
        )

    def predict(
        self,
        model: DetectorModel,
        rows: np.ndarray,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows,) logits and (rows, size) unit vectors, the same on every rank.

        The batches do not depend on how many ranks there are. Without a classifier the logits are
        NaN.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        size, total = self.settings.per_device_eval_batch_size, len(rows)
        order = np.argsort(-self.lengths[rows], kind="stable")
        was_training = model.training
        model.eval()
        found = None
        with torch.no_grad():
            for number, start in enumerate(range(0, total, size)):
                if found is not None and number % world != rank:
                    continue
                part = order[start : start + size]
                scored = self._scored(model, rows[part])
                if found is None:  # every rank scores the first batch: now the sizes are known
                    found = scored.new_zeros(total, scored.shape[1])
                if number % world == rank:
                    found[torch.from_numpy(part).to(self.device)] = scored
                report(min(start + size, total), total)
        model.train(was_training)
        if found is None:
            return np.zeros(0), np.zeros((0, 1))
        values = self.accelerator.reduce(found, "sum").cpu().numpy()
        return values[:, 0], values[:, 1:]

    def states(self, model: DetectorModel, rows: np.ndarray) -> torch.Tensor:
        """Return (rows, hidden) without dropout and gradients."""
        was_training = model.training
        model.eval()
        width = self._width(int(self.lengths[rows].max()))
        bucket: TextBucket = self.table.bucket(rows, width).to(self._put)
        with torch.no_grad(), self.accelerator.autocast():
            found = model.states([bucket])
        model.train(was_training)
        return found

    def _scored(self, model: DetectorModel, rows: np.ndarray) -> torch.Tensor:
        """Return (rows, 1 + size): the logit, then the vector."""
        width = self._width(int(self.lengths[rows].max()))
        bucket: TextBucket = self.table.bucket(rows, width).to(self._put)
        with self.accelerator.autocast():
            states = model.states([bucket])
            logits, vectors = model.logits(states), model.project(states)
        if logits is None:
            logits = vectors.new_full((len(rows),), float("nan"))
        return torch.cat([logits[:, None], vectors], dim=1)
