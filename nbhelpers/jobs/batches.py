"""Rows of a token table as batches on the device, and the scores of many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nbhelpers.budget.formulas import BatchExtent, is_packed
from nbhelpers.jobs.models.encoding import has_ragged_kernel
from nbhelpers.jobs.models.inputs import Bucket, GraphTable, TokenTable, length_buckets

RATIO = 0.8  # of a bucket's longest row: a shorter one begins the next bucket
ALIGNED = 16  # bytes: tensors of one transfer begin there
Report = Callable[[int, int], None]


def runs_ragged(settings: Any, accelerator: Any) -> bool:
    """Whether plain text is computed without any padding: packed, by a kernel for rows."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = half.get(accelerator.mixed_precision, torch.float32)
    return has_ragged_kernel(accelerator.device, dtype) and is_packed(settings)


class RowBatches:
    """Makes batches of rows; where rows are scored, each rank has its share."""

    def __init__(
        self,
        settings: Any,
        table: TokenTable | GraphTable,
        accelerator: Any,
        *,
        min_tokens: int,
        is_ragged: bool = False,
    ) -> None:
        """Prepare for this device.

        Args:
            min_tokens: Of a bucket on a GPU: kernels should outlast their launches.
            is_ragged: No padding is computed at all, so one bucket does for all rows.
        """
        self.settings, self.table, self.accelerator = settings, table, accelerator
        self.device, self.lengths = accelerator.device, table.lengths
        self.is_cuda, self.is_ragged = self.device.type == "cuda", is_ragged
        self._min_tokens = min_tokens if self.is_cuda else 0
        self.multiple = 8 if self.is_cuda else 1  # of a bucket's columns

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a host's tensor on the device, without waiting for it."""
        return self.put_all([tensor])[0]

    def put_all(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return a host's tensors on the device, in one transfer, without waiting for it."""
        if not self.is_cuda or not tensors:
            return tensors
        # By NumPy: torch wakes a thread for each core of the host, which took 17 ms of a step.
        parts = [np.ascontiguousarray(t.numpy()).reshape(-1).view(np.uint8) for t in tensors]
        padded = [np.pad(part, (0, -len(part) % ALIGNED)) for part in parts]
        joined = torch.from_numpy(np.concatenate(padded).view(np.int64)).pin_memory()
        moved = joined.to(self.device, non_blocking=True).view(torch.uint8)
        moved = moved.split([len(part) for part in padded])
        return [
            own[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for own, tensor in zip(moved, tensors, strict=True)
        ]

    def buckets(self, rows: np.ndarray) -> tuple[list[Bucket], torch.Tensor, int]:
        """Return rows in buckets of like length on the device.

        Returns:
            The buckets, (rows,) where each row stands among theirs, and the tokens that are
            computed, padding included.
        """
        lengths, buckets, padded = self.lengths[rows], [], 0
        groups = self._groups(lengths)
        for group in groups:
            width = self._width(int(lengths[group].max()))
            buckets.append(self.table.bucket(rows[group], width).to(self.put_all))
            padded += width * len(group)
        place = np.empty(len(rows), dtype=np.int64)
        place[np.concatenate(groups)] = np.arange(len(rows))
        computed = int(lengths.sum()) if self.is_ragged else padded
        return buckets, torch.from_numpy(place), computed

    def bucket(self, rows: np.ndarray) -> Bucket:
        """Return rows in one bucket on the device."""
        width = self._width(int(self.lengths[rows].max()))
        return self.table.bucket(rows, width).to(self.put_all)

    def _groups(self, lengths: np.ndarray) -> list[np.ndarray]:
        if self.is_ragged:  # kernels that work row by row end sooner if the long ones begin
            return [np.argsort(-lengths, kind="stable")]
        if self.settings.padding == "fixed":
            return [np.arange(len(lengths))]
        return length_buckets(lengths, ratio=RATIO, min_tokens=self._min_tokens)

    def _width(self, longest: int) -> int:
        if self.settings.padding == "fixed":
            return self.table.seq_len
        return min(-(-longest // self.multiple) * self.multiple, self.table.seq_len)

    def extent(self, rows: np.ndarray) -> BatchExtent:
        """Return how large the batch of these rows is when it is computed."""
        lengths = self.lengths[rows]
        sizes = [(len(g), self._width(int(lengths[g].max()))) for g in self._groups(lengths)]
        padded = sum(n * width for n, width in sizes)
        tokens, last = padded, sizes[-1][0] * sizes[-1][1]
        if is_packed(self.settings):
            tokens = last = int(lengths.sum())
        return BatchExtent(
            tokens=tokens,
            padded_tokens=tokens if self.is_ragged else padded,
            squares=sum(n * width**2 for n, width in sizes),
            last_tokens=last,
        )

    def longest_first(self, rows: np.ndarray) -> np.ndarray:
        """Return places among these rows in the order in which they are scored."""
        return np.argsort(-self.lengths[rows], kind="stable")

    def score(
        self,
        rows: np.ndarray,
        size: int,
        compute: Callable[[np.ndarray], torch.Tensor],
        *,
        outputs: torch.Tensor | None = None,
        report: Report = lambda done, total: None,
    ) -> torch.Tensor | None:
        """Return (rows, width): what `compute` gives, in the order of the rows, on every rank.

        The batches do not depend on how many ranks there are.

        Args:
            size: Rows of a batch.
            compute: Given rows, returns (rows, width).
            outputs: Zeros that take the results; None: as the first batch's.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        order = self.longest_first(rows)
        for number, start in enumerate(range(0, len(order), size)):
            if outputs is not None and number % world != rank:
                continue
            part = order[start : start + size]
            values = compute(rows[part])
            if outputs is None:  # every rank computes the first batch: now its width is known
                outputs = values.new_zeros(len(rows), values.shape[1])
            if number % world == rank:
                outputs[torch.from_numpy(part).to(self.device)] = values.to(outputs.dtype)
            report(min(start + size, len(order)), len(order))
        return None if outputs is None else self.accelerator.reduce(outputs, "sum")
