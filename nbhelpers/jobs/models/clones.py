"""The siamese clone detector: one encoder for both functions, and a head that sees the pair.

Keys of the state dict are those of CodeXGLUE's script (`encoder.*`, `classifier.dense`,
`classifier.out_proj`), so that checkpoints made with it load here. GraphCodeBERT's script has
`encoder.roberta.*` in their place, and an unused classifier; `published_keys` maps them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nbhelpers.jobs.models.encoding import (
    BlockMath,
    can_pack,
    compiled_math,
    encode,
    masked_attention,
    plain_math,
)
from nbhelpers.jobs.models.inputs import Bucket


@dataclass(slots=True)
class PairBatch:
    """Function pairs, as length buckets of their functions.

    Args:
        buckets: Each distinct function of the pairs, once.
        place: (2 * pairs,) int64: row, among the joined buckets, of left, right, left, right, ...
        labels: (pairs,) int64.
        weights: (pairs,) float: 0 for a stand-in row of a rank that has no example, else 1.
        useful_tokens: Tokens that are not padding.
        padded_tokens: Tokens computed, padding included.
    """

    buckets: list[Bucket]
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
    """An encoder that gives one state per function, and the pair's head."""

    def __init__(self, encoder: nn.Module, dropout: float, *, packed: bool = True) -> None:
        """Wrap a `GPT2Model` or `RobertaModel`.

        Args:
            dropout: The head's.
            packed: Work without padding where the encoder's blocks are known.
        """
        super().__init__()
        self.encoder, self.packed = encoder, packed
        self.classifier = PairHead(encoder.config.hidden_size, dropout)
        self._math: BlockMath | None = None

    @property
    def can_compile(self) -> bool:
        """Whether the encoder's blocks are known, so that they can be compiled."""
        return self.packed and can_pack(self.encoder.config)

    @property
    def masks_ragged(self) -> bool:
        """Whether data-flow graphs are computed end to end, in one bucket."""
        return self._math is not None and self._math.masked is not None

    def compile_blocks(self, is_on: bool) -> None:
        """Train with compiled blocks and masked attention in one kernel, or with plain ones.

        The modules and their names stay as they are.
        """
        self._math = self._with_kernels(compiled_math(self.encoder)) if is_on else None

    def use_kernels(self) -> None:
        """Train with masked attention in one kernel, and plain blocks."""
        self._math = self._with_kernels(plain_math(self.encoder))

    def _with_kernels(self, math: BlockMath) -> BlockMath:
        is_causal = self.encoder.config.model_type == "gpt2"
        return replace(math, masked=None if is_causal else masked_attention(self.encoder))

    def states(self, buckets: list[Bucket]) -> Tensor:
        """Return (rows of all buckets, hidden) as training computes them."""
        return encode(self.encoder, buckets, packed=self.packed, math=self._math)

    def encode(self, bucket: Bucket) -> Tensor:
        """Return (rows, hidden)."""
        return encode(self.encoder, [bucket], packed=self.packed)

    def forward(self, batch: PairBatch) -> Tensor:
        """Return (pairs, 2) logits."""
        pooled = self.states(batch.buckets)
        return self.classifier(pooled[batch.place].view(len(batch.labels), -1))


def pair_loss_sum(logits: Tensor, batch: PairBatch) -> Tensor:
    """Return the summed cross-entropy over the pairs; the caller divides by the global batch."""
    losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    return (losses * batch.weights).sum()


_DROPOUTS = {
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "roberta": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "t5": ("dropout_rate",),
    "modernbert": ("embedding_dropout", "mlp_dropout", "attention_dropout", "classifier_dropout"),
}
# What checkpoints of scripts carry beside the weights that are used: causal masks, ids of positions
# and types, the classifier and pooler of the class that the encoder was taken from.
_UNUSED = (".attn.bias", ".attn.masked_bias", ".position_ids", ".pooler.dense.weight")
_UNUSED += (".pooler.dense.bias", ".token_type_ids")
_UNUSED_HEADS = ("encoder.classifier.", "encoder.score.", "encoder.lm_head.")


def set_dropout(config: Any, dropout: float | None) -> None:
    """Set every dropout of a configuration, in place; None keeps the model's own."""
    if dropout is not None:
        for name in _DROPOUTS[config.model_type]:
            setattr(config, name, dropout)


def head_dropout(config: Any) -> float:
    """Return the dropout of the head, which the scripts take from the encoder."""
    names = {"gpt2": "attn_pdrop", "t5": "dropout_rate", "modernbert": "classifier_dropout"}
    return getattr(config, names.get(config.model_type, "hidden_dropout_prob"))


def published_keys(state: dict[str, Tensor], own: set[str]) -> dict[str, Tensor]:
    """Return the state dict of a script with our names, without what no one uses.

    Args:
        own: The names of our model; they are never dropped.
    """
    tensors = {}
    for key, value in state.items():
        for outer in ("encoder.roberta.", "encoder.transformer."):
            if key.startswith(outer):
                key = "encoder." + key.removeprefix(outer)
        is_unused = key.endswith(_UNUSED) or key.startswith(_UNUSED_HEADS)
        if key in own or not is_unused:
            tensors[key] = value
    return tensors


def is_of_graph_script(state: dict[str, Tensor]) -> bool:
    """Whether a state dict has the names of GraphCodeBERT's script rather than CodeXGLUE's."""
    return any(key.startswith("encoder.roberta.") for key in state)
