"""Micro-batches of causal models: padded to the right, or packed end to end into one row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nbhelpers.models.causal_text import IGNORED, TextTable

PADDING = -1  # the segment of padding
BLOCK = 128  # rows of flex_attention's blocks; packed rows are padded to a multiple


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples of a batch lie: (batch, seq_len) numbers; padding is a sample of its own.

    `positions` count from 0 in each sample. `starts` says where the sample of each token begins,
    and stays on the host: what follows from it costs no wait for the GPU.
    """

    segments: Tensor
    positions: Tensor
    starts: np.ndarray | None = None

    def first_tokens(self) -> np.ndarray:
        """Return (batch, seq_len) first tokens of each one's sample, each sample in one piece."""
        if self.starts is not None:
            return self.starts
        segments = self.segments.cpu().numpy()  # a host-device sync
        return first_tokens(segments)


def first_tokens(segments: np.ndarray) -> np.ndarray:
    """Return (batch, seq_len) where the run of equal numbers begins that each token is in.

    >>> first_tokens(np.array([[4, 4, 7, -1, -1]])).tolist()
    [[0, 0, 2, 3, 3]]
    """
    places = np.broadcast_to(np.arange(segments.shape[1]), segments.shape)
    begins = np.ones(segments.shape, dtype=bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return np.maximum.accumulate(np.where(begins, places, 0), axis=1)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host's tensor on a device; to a GPU, without waiting for what it is doing."""
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def supervised(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the next token is supervised, and those tokens.

    Args:
        labels: (batch, seq_len), `IGNORED` where nothing is to be learned.

    Returns:
        positions (n,) into the flattened (batch x seq_len) hidden states, targets (n,).
    """
    following = torch.full_like(labels, IGNORED)
    following[:, :-1] = labels[:, 1:]
    following = following.reshape(-1)
    positions = (following != IGNORED).nonzero().squeeze(1)
    return positions, following[positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-step's samples: (rows, width) each; `padded` packed rows count their padding.

    `learned` is what `supervised` finds in the labels. It is looked for when the batch is made,
    as a GPU would have to finish all it is doing to tell how many tokens there are; `labels` stay
    where they were made.
    """

    ids: Tensor
    labels: Tensor
    learned: tuple[Tensor, Tensor]
    layout: Layout
    samples: int
    useful_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Positions that are computed."""
        return self.ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return the batch on a device, without waiting for what a GPU is doing."""
        at, targets = self.learned
        layout = self.layout
        return MicroBatch(
            ids=send(self.ids, device),
            labels=self.labels,
            learned=(send(at, device), send(targets, device)),
            layout=Layout(
                send(layout.segments, device), send(layout.positions, device), layout.starts
            ),
            samples=self.samples,
            useful_tokens=self.useful_tokens,
        )


def make_batch(
    table: TextTable,
    rows: np.ndarray,
    *,
    pad_id: int,
    packed: bool,
    width: int | None = None,
    multiple: int = 8,
) -> MicroBatch:
    """Return samples as one micro-batch.

    Args:
        rows: Of `table`; none: a stand-in of two tokens that nothing is learned from.
        packed: All samples in one row, padded to a multiple of `multiple`.
        width: Pad each row to this (not when packed); None: to the longest.
        multiple: Of the width; flex_attention wants its block.
    """
    if not len(rows):
        return _stand_in(pad_id, padded_width(2, multiple))
    lengths = [len(table.ids[row]) for row in rows]
    places = _packed_places(lengths) if packed else [(row, 0) for row in range(len(rows))]
    longest = sum(lengths) if packed else max(lengths)
    wide = padded_width(longest, multiple) if width is None or packed else width
    shape = (1 if packed else len(rows), wide)
    ids, labels = np.full(shape, pad_id), np.full(shape, IGNORED)
    segments, positions = np.full(shape, PADDING), np.zeros(shape, dtype=np.int64)
    for number, (row, (line, at)) in enumerate(zip(rows, places, strict=True)):
        span = slice(at, at + lengths[number])
        ids[line, span], labels[line, span] = table.ids[row], table.labels(row)
        segments[line, span], positions[line, span] = number, np.arange(lengths[number])
    return MicroBatch(
        ids=torch.from_numpy(ids),
        labels=torch.from_numpy(labels),
        learned=supervised(torch.from_numpy(labels)),
        layout=Layout(
            torch.from_numpy(segments), torch.from_numpy(positions), first_tokens(segments)
        ),
        samples=len(rows),
        useful_tokens=sum(lengths),
    )


def _packed_places(lengths: list[int]) -> list[tuple[int, int]]:
    starts = np.cumsum([0, *lengths[:-1]])
    return [(0, int(start)) for start in starts]


def _stand_in(pad_id: int, width: int) -> MicroBatch:
    blank = torch.full((1, width), PADDING)
    labels = torch.full((1, width), IGNORED)
    return MicroBatch(
        ids=torch.full((1, width), pad_id),
        labels=labels,
        learned=supervised(labels),
        layout=Layout(blank, torch.zeros_like(blank)),
        samples=0,
        useful_tokens=0,
    )


def padded_width(longest: int, multiple: int) -> int:
    """Return the width of rows whose longest has so many tokens.

    Rows in blocks have two at least: torch.compile takes a single one for a case of its own.

    >>> padded_width(5, 8), padded_width(300, 128), padded_width(100, 128)
    (8, 384, 256)
    """
    width = -(-longest // multiple) * multiple
    return max(width, 2 * BLOCK) if multiple == BLOCK else width


def row_multiple(kernel: str, packed: bool) -> int:
    """Return what the width of a row must be a multiple of."""
    return BLOCK if kernel == "flex" else 8 if packed else 1
