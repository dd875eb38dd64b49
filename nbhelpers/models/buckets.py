"""Rows of functions of like length as tensors: what an encoder reads.

Everything here is small and is made on the CPU; masks, which are large, are made on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Tensors:
    """Moves every tensor field; other fields stay."""

    def to(self, put: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with `put` applied to each tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {k: put(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        return type(self)(**moved)


@dataclass(slots=True, kw_only=True)
class TextBucket(_Tensors):
    """Functions as plain text.

    Args:
        ids: (rows, width) int64, padded on the right.
        last: (rows,) int64: position of each row's end token.
        slots: (T,) int64: row * width + column of every token that is not padding, row by row.
    """

    ids: Tensor
    last: Tensor
    slots: Tensor

    @property
    def rows(self) -> int:
        """How many functions there are."""
        return len(self.last)


@dataclass(slots=True, kw_only=True)
class GraphBucket(_Tensors):
    """Functions as code followed by the nodes of their data flow, then padding.

    Shapes: N nodes and M links over all rows, P tokens of nodes.

    Args:
        ids: (rows, width) int64; a node has the id of the unknown word.
        code: (rows,) int64: tokens of code, `<s>` and `</s>` included.
        used: (rows,) int64: tokens of code and nodes.
        node_at: (N,) int64: row * width + column of a node.
        node_start: (N,) int64: first column of the code that the node stands for.
        node_end: (N,) int64: the column after it; equal to the first where that code was cut off.
        links: (M,) int64: (row * width + node's column) * width + column of the node it reads.
        bag_ids: (P,) int64: ids of the code of all nodes, one node after the other.
        bag_starts: (N,) int64: where each node begins in `bag_ids`.
        pad_weight: (rows,) float32: log of (padding of the published form) / (padding here).
        slots: (T,) int64: row * width + column of every column that is needed, row by row.
    """

    ids: Tensor
    code: Tensor
    used: Tensor
    node_at: Tensor
    node_start: Tensor
    node_end: Tensor
    links: Tensor
    bag_ids: Tensor
    bag_starts: Tensor
    pad_weight: Tensor
    slots: Tensor

    @property
    def rows(self) -> int:
        """How many functions there are."""
        return len(self.code)


def packed_slots(lengths: NDArray[np.int64], width: int) -> Tensor:
    """Return (T,) row * width + column of the first `lengths` columns of each row.

    >>> packed_slots(np.array([2, 1]), 4).tolist()
    [0, 1, 4]
    """
    ends = np.cumsum(lengths)
    column = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    return torch.from_numpy(np.repeat(np.arange(len(lengths)) * width, lengths) + column)


Bucket = TextBucket | GraphBucket
