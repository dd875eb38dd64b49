"""The siamese clone detector: one encoder for both functions, and a head that sees the pair.

Keys of the state dict are those of CodeXGLUE's script (`encoder.*`, `classifier.dense`,
`classifier.out_proj`), so that checkpoints made with it load here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class PairBatch:
    """Function pairs, as length buckets of their functions.

    Args:
        ids: One (rows, length) int64 tensor per bucket, padded on the right.
        last: One (rows,) int64 tensor per bucket: position of each row's end token.
        place: (2 * pairs,) int64: row, among the joined buckets, of left, right, left, right, ...
        labels: (pairs,) int64.
        weights: (pairs,) float: 0 for a stand-in row of a rank that has no example, else 1.
        useful_tokens: Tokens that are not padding.
        padded_tokens: Tokens computed, padding included.
    """

    ids: list[Tensor]
    last: list[Tensor]
    place: Tensor
    labels: Tensor
    weights: Tensor
    useful_tokens: int
    padded_tokens: int


class PairHead(nn.Module):
    """Two logits from two pooled states. It is not symmetric: (a, b) and (b, a) differ."""

    def __init__(self, hidden: int, dropout: float) -> None:
        """Make the head for pooled states of size `hidden`."""
        super().__init__()
        self.dense = nn.Linear(2 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(hidden, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (pairs, 2 * hidden) to (pairs, 2)."""
        states = torch.tanh(self.dense(self.dropout(pooled)))
        return self.out_proj(self.dropout(states))


class CloneModel(nn.Module):
    """A causal encoder whose state at the end token stands for the function."""

    def __init__(self, encoder: nn.Module, dropout: float) -> None:
        """Wrap a `GPT2Model`; `dropout` is the head's."""
        super().__init__()
        self.encoder = encoder
        self.classifier = PairHead(encoder.config.hidden_size, dropout)

    def encode(self, ids: Tensor, last: Tensor) -> Tensor:
        """Return (rows, hidden): the state at each row's end token.

        No mask is passed: attention is causal and padding stands on the right, so no token that
        counts ever sees padding, and the fast causal kernels stay available.

        Args:
            ids: (rows, length) int64.
            last: (rows,) int64.
        """
        states = self.encoder(input_ids=ids, use_cache=False).last_hidden_state
        return states[torch.arange(len(last), device=last.device), last]

    def forward(self, batch: PairBatch) -> Tensor:
        """Return (pairs, 2) logits."""
        pooled = torch.cat([self.encode(i, k) for i, k in zip(batch.ids, batch.last, strict=True)])
        return self.classifier(pooled[batch.place].view(len(batch.labels), -1))


def pair_loss_sum(logits: Tensor, batch: PairBatch) -> Tensor:
    """Return the summed cross-entropy over the pairs; the caller divides by the global batch."""
    losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    return (losses * batch.weights).sum()


def set_dropout(config: Any, dropout: float | None) -> None:
    """Set every dropout of a GPT-2 configuration, in place; None keeps the model's own."""
    if dropout is not None:
        config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout
