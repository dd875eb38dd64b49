"""The detector: one encoder, a head for who wrote the code, a head for what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from nbhelpers.budget.shapes import SMOKE_GRAPH
from nbhelpers.data.canonical import MARKS, WORDS
from nbhelpers.jobs.models.clones import head_dropout
from nbhelpers.jobs.models.encoders import (
    Tokeniser,
    build_encoder,
    fit,
    read_tokenizer,
    smoke_tokenizer,
)
from nbhelpers.jobs.models.encoding import (
    BlockMath,
    can_pack,
    compiled_math,
    encode,
    fused_math,
    wide,
)
from nbhelpers.jobs.models.inputs import TextBucket
from nbhelpers.jobs.models.weights import Weights
from nbhelpers.presets.jobs import DETECTOR
from nbhelpers.presets.packages import packaged_folder
from nbhelpers.presets.schema import DetectorSettings

# ------------------------------------------------------------------------------------------------
# The detector: one encoder, a head that says who wrote the code, a head that says what it does.
#
# The two heads share nothing but the encoder. Whether code is human or AI never enters the
# similarity head, and the task never enters the classifier.


# What the classifier sees side by side. A maximum tells that a token is there in however long a
# program; a mean dilutes it.
CLASSIFIER_POOLINGS = {"mean": ("mean",), "first": ("token",), "mean_max": ("mean", "max")}
HEADS = {"both": ("classifier", "projector"), "detect": ("classifier",), "similar": ("projector",)}


@dataclass(slots=True, kw_only=True)
class ProgramBatch:
    """A micro-batch on the device.

    Args:
        buckets: Programs by length; together they hold each row once.
        place: (rows,) int64: where each row's state stands among those of the buckets.
        labels: (rows,) float: 1 for AI, 0 for human.
        weights: (rows,) float: of a row in the cross-entropy; 0: it has no label, or is a stand-in.
        positions: (rows,) int64: of the rows in their optimizer step; empty for a stand-in.
        useful_tokens: Tokens that are not padding.
        padded_tokens: Tokens computed, padding included.
    """

    buckets: list[TextBucket]
    place: Tensor
    labels: Tensor
    weights: Tensor
    positions: Tensor
    useful_tokens: int
    padded_tokens: int


class ClassifierHead(nn.Module):
    """One logit from a program's state: AI against human."""

    def __init__(self, reads: int, hidden: int, dropout: float) -> None:
        """Make the head for states of size `reads`, with `hidden` units."""
        super().__init__()
        self.dense = nn.Linear(reads, hidden)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        """Map (rows, reads) to (rows,)."""
        inner = torch.tanh(self.dense(self.dropout(states)))
        return self.out_proj(self.dropout(inner)).squeeze(-1)


class ProjectionHead(nn.Module):
    """A unit vector from a program's state.

    It begins as a rotation (with fewer dimensions than the state has, a projection): the cosines
    are those of the states, and training only improves on them. A layer with random weights would
    first throw away what the encoder knows.
    """

    def __init__(self, hidden: int, size: int) -> None:
        """Make the head for states of size `hidden` and vectors of `size`."""
        super().__init__()
        self.out_proj = nn.Linear(hidden, size, bias=False)
        nn.init.orthogonal_(self.out_proj.weight)

    def forward(self, states: Tensor) -> Tensor:
        """Map (rows, hidden) to (rows, size), each of length 1, at least fp32."""
        return normalize(wide(self.out_proj(states)), dim=-1)


class DetectorModel(nn.Module):
    """An encoder with the heads of an objective."""

    def __init__(
        self,
        encoder: nn.Module,
        *,
        dropout: float,
        projection_size: int,
        pooling: str,
        similarity_pooling: str = "same",
        objective: str = "both",
        packed: bool = True,
    ) -> None:
        """Wrap an encoder.

        Args:
            dropout: The classifier's.
            projection_size: Dimensions of the similarity space.
            pooling: What the classifier sees; see `CLASSIFIER_POOLINGS`.
            similarity_pooling: What the projector sees: the `same`, or a mean in which a token
                weighs by its `rarity` in the train programs.
            objective: Which heads there are; see `HEADS`.
            packed: Work without padding where the encoder's blocks are known.
        """
        super().__init__()
        hidden = encoder.config.hidden_size
        self.encoder, self.packed = encoder, packed
        heads = HEADS[objective]
        own = CLASSIFIER_POOLINGS[pooling] if "classifier" in heads else ()
        self.has_rarity = similarity_pooling == "rarity" and "projector" in heads
        self.token_poolings = own or (() if self.has_rarity else CLASSIFIER_POOLINGS[pooling][:1])
        self.reads, self.hidden = len(own) * hidden, hidden
        rarity = torch.ones(encoder.config.vocab_size) if self.has_rarity else None
        self.register_buffer("rarity", rarity)
        reads = self.reads
        self.classifier = ClassifierHead(reads, hidden, dropout) if "classifier" in heads else None
        self.projector = ProjectionHead(hidden, projection_size) if "projector" in heads else None
        width = hidden * (len(self.token_poolings) + self.has_rarity)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.is_frozen = False
        self._math: BlockMath | None = None

    @torch.no_grad()
    def standardise(self, states: Tensor) -> None:
        """Let the heads see states with mean 0 and deviation 1, as these have them now.

        An encoder's mean states all point in nearly one direction, and cosines between them tell
        nothing: a contrastive loss then stays where it began. Set once, before training.

        Args:
            states: (rows, hidden) as `states` gives them of some training programs, before this.
        """
        self.centre.copy_(states.mean(0))
        self.spread.copy_(states.std(0, correction=0).clamp(min=1e-4))

    def freeze(self, is_frozen: bool) -> None:
        """Leave the encoder as it is, without gradients and dropout, or let it learn."""
        self.is_frozen = is_frozen
        self.encoder.requires_grad_(not is_frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> DetectorModel:
        """Set the mode; a frozen encoder has no dropout in either."""
        super().train(mode)
        if self.is_frozen:
            self.encoder.eval()
        return self

    @property
    def can_compile(self) -> bool:
        """Whether the encoder's blocks are known, so that they can be compiled."""
        return self.packed and can_pack(self.encoder.config)

    def compile_blocks(self, is_on: bool) -> None:
        """Use fused or compiled blocks, or plain ones; modules and their names stay as they are."""
        self._math = (fused_math(self.encoder) or compiled_math(self.encoder)) if is_on else None

    @property
    def poolings(self) -> tuple[str | Tensor, ...]:
        """How tokens become states: the classifier's ways first, the projector's own last."""
        return (*self.token_poolings, self.rarity) if self.has_rarity else self.token_poolings

    def states(self, buckets: list[TextBucket]) -> Tensor:
        """Return (rows of all buckets, width): a state for each of the `poolings`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_frozen):
            # Scoring is too short for graphs of its own. A first pass without gradients is none:
            # it must draw the dropout of the pass that follows.
            math = self._math if self.training or torch.is_grad_enabled() else None
            pooled_states = encode(
                self.encoder, buckets, packed=self.packed, poolings=self.poolings, math=math
            )
            return self.scaled(pooled_states)

    def scaled(self, states: Tensor) -> Tensor:
        """Return (rows, width) as the heads see them; see `standardise`."""
        return (wide(states) - self.centre) / self.spread

    def logits(self, states: Tensor) -> Tensor | None:
        """Map (rows, width) to (rows,): AI against human; None without a classifier."""
        if self.classifier is None:
            return None
        return wide(self.classifier(states[:, : self.reads]))

    def project(self, states: Tensor) -> Tensor:
        """Map (rows, width) to unit vectors; without a projector, those of the states."""
        if self.projector is None:
            return normalize(wide(states), dim=-1)
        first = -self.hidden if self.has_rarity else 0
        return self.projector(states[:, first:][:, : self.hidden])

    def forward(self, batch: ProgramBatch) -> tuple[Tensor | None, Tensor | None]:
        """Return (rows,) logits and (rows, size) vectors of the heads that there are."""
        states = self.states(batch.buckets)[batch.place]
        vectors = self.project(states) if self.projector is not None else None
        return self.logits(states), vectors


def label_loss(logits: Tensor, batch: ProgramBatch) -> Tensor:
    """Return the summed, weighted cross-entropy; the caller divides by the global batch."""
    losses = binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    return (losses * batch.weights).sum()


def class_weights(labels: Any, groups: Any) -> np.ndarray:
    """Return (rows,) the weight of each row that makes both classes count alike in each group.

    So where a program comes from says nothing of its label. A group with one class keeps weight 1:
    nothing can balance it. The mean over the labelled rows is 1.

    Args:
        labels: (rows,) numbers: 0 human, 1 AI, -1 without a label.
        groups: (rows,) such as source and language.

    >>> class_weights([0, 0, 0, 1], ["a"] * 4).round(2).tolist()
    [0.67, 0.67, 0.67, 2.0]
    """
    y = np.asarray(labels)
    weights = np.zeros(len(y))
    weights[y >= 0] = 1.0
    names = np.asarray(groups, dtype=object)
    for group in sorted(set(groups)):
        own = [np.flatnonzero((names == group) & (y == label)) for label in (0, 1)]
        total = sum(map(len, own))
        for rows in own:
            if 0 < len(rows) < total:
                weights[rows] = total / (2 * len(rows))
    return weights


# ------------------------------------------------------------------------------------------------
# Build the detector's tokenizer and model: the hub's weights, a folder, a package, or `smoke`.


FACTS_FILE = "detector.json"
FAMILIES = DETECTOR.models.families


def build_detector_tokenizer(settings: DetectorSettings, train_texts: Sequence[str]) -> Tokeniser:
    """Return tokenizer and configuration; `smoke` and bare folders train a tokenizer first.

    Raises:
        ConfigError: Not an architecture that this job encodes, a package is missing, or seq_len
            exceeds the positions.
    """
    collapse = settings.canonical == "flat"
    if settings.model in DETECTOR.models.embedded:
        tokeniser = smoke_tokenizer(SMOKE_GRAPH, train_texts, collapse=collapse)
    else:
        weights = None
        if settings.model in DETECTOR.models.packaged:
            folder = packaged_folder(settings.model)
            weights = Weights(folder=folder, name=settings.model, revision=None)
        tokeniser = read_tokenizer(
            settings, train_texts, families=FAMILIES, weights=weights, collapse=collapse
        )
    fit(tokeniser, settings)
    return tokeniser


def reading_form(tokenizer: Any, form: str, objective: str) -> str:
    """Return the form in which a tokenizer is given programs.

    A tokenizer that makes one of `aB` and `ab` was made for prose; it drops line ends too. A
    classifier needs them: they are put as marks. For similarity alone names become words.
    """
    is_blind = (
        tokenizer("aB", add_special_tokens=False)["input_ids"]
        == tokenizer("ab", add_special_tokens=False)["input_ids"]
    )
    if not is_blind or form == "raw":
        return form
    return form + (WORDS if objective == "similar" else MARKS)


def build_detector(
    settings: DetectorSettings,
    tokeniser: Tokeniser,
    *,
    pretrain: Callable[[Any], Any] | None = None,
) -> DetectorModel:
    """Return the detector in fp32: an encoder and new heads. Seed before you call.

    Args:
        pretrain: Given the configuration, returns an encoder pre-trained from random weights.
    """
    is_random = settings.model in DETECTOR.models.embedded or settings.random_weights
    encoder = build_encoder(
        settings,
        tokeniser,
        is_random=is_random,
        pretrain=pretrain if is_random and settings.pretrain_steps else None,
    )
    return DetectorModel(
        encoder,
        dropout=head_dropout(tokeniser.config),
        projection_size=settings.projection_size,
        pooling=settings.pooling,
        similarity_pooling=settings.similarity_pooling,
        objective=settings.objective,
        packed=settings.padding == "dynamic",
    )


def facts_of(settings: DetectorSettings, form: str) -> dict[str, Any]:
    """Return what a checkpoint's folder must tell so that its weights can be used.

    Args:
        form: In which the tokenizer is given programs (`reading_form`).
    """
    return {
        "format": 1,
        "objective": settings.objective,
        "pooling": settings.pooling,
        "similarity_pooling": settings.similarity_pooling,
        "canonical": form,
        "seq_len": settings.seq_len,
        "projection_size": settings.projection_size,
        "heads": list(HEADS[settings.objective]),
        "classes": ["human", "ai"],
    }
