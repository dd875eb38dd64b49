"""The clone detector's training and scoring under simulation."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.pairs import ClonePairs
from nbhelpers.jobs.clones import PAIRS_PER_CHUNK, Inputs, PairTask
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.models.encoders import build_clone_model
from nbhelpers.jobs.simulated.inputs import graph_table, longest, text_table
from nbhelpers.jobs.simulated.step import OneStep, one_step, step_examples
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.schema import ClonesSettings

if TYPE_CHECKING:
    from nbhelpers.jobs.models.encoders import Tokeniser

# Functions whose states are kept while pairs are scored, at most: of data that is not known here.
# Source: BigCloneBench in CodeXGLUE's form, data.jsonl.
MOST_FUNCTIONS = 9126
SCORED_BATCHES = 2


def build_clones(
    context: RunContext, tokeniser: Tokeniser, *, lengths: Sequence[int] | None = None
) -> tuple[OneStep, Any]:
    """Return the loop over synthetic pairs, and what scores the longest functions.

    Args:
        lengths: Of the functions of one optimizer step: left, right, left, right, ...; None: each
            as long as the settings allow, in at most two micro-steps.
    """
    settings, plan = context.settings, context.plan
    train = longest(settings, 2 * step_examples(plan)) if lengths is None else np.asarray(lengths)
    scored = longest(settings, 2 * settings.per_device_eval_batch_size * SCORED_BATCHES)
    inputs = Inputs(
        data=_pairs(len(train), len(scored), settings.max_eval_pairs or PAIRS_PER_CHUNK),
        table=_table(settings, tokeniser, np.concatenate([train, scored])),
        found=tokeniser,
    )
    model = build_clone_model(settings.model_copy(update={"random_weights": True}), tokeniser)
    tflops = context.gpu_tflops  # which the length buckets of a batch are made for
    task = PairTask(settings, inputs, context.accelerator, model, gpu_tflops=tflops)
    step = one_step(context, task, model, len(train) // 2)

    def evaluate() -> None:
        head = model.classifier.out_proj
        # The states of the functions that are not encoded here.
        other_states = head.weight.new_empty(_functions(settings, len(scored)), head.in_features)
        task.predict(inputs.data.splits["valid"])
        del other_states

    return step, evaluate


def _functions(settings: ClonesSettings, encoded: int) -> int:
    """Return how many functions validation needs beside those that are encoded."""
    if settings.data in SAMPLES:
        return 0
    pairs = settings.max_eval_pairs
    most = MOST_FUNCTIONS if pairs is None else min(MOST_FUNCTIONS, 2 * pairs)
    return max(0, most - encoded)


def _pairs(train: int, scored: int, most: int) -> Any:
    """Return pairs of neighbours for training, and pairs of the functions behind them to score."""
    order = np.arange(train, dtype=np.int32)
    # Enough that each of these functions is encoded, and as many as are scored at once.
    count = max(scored, min(most, PAIRS_PER_CHUNK))
    left = (train + np.arange(count) % scored).astype(np.int32)
    right = (train + (np.arange(count) * 7 + 1) % scored).astype(np.int32)
    splits = {"train": _labelled(order[::2], order[1::2]), "valid": _labelled(left, right)}
    return SimpleNamespace(splits=splits, ids=[str(row) for row in range(train + scored)])


def _labelled(left: np.ndarray, right: np.ndarray) -> ClonePairs:
    label = (np.arange(len(left)) % 2).astype(np.int8)
    return ClonePairs(left=left, right=right, label=label)


def _table(settings: ClonesSettings, tokeniser: Tokeniser, lengths: np.ndarray) -> Any:
    vocab = tokeniser.config.vocab_size
    if settings.data_flow_length is None:
        return text_table(lengths, seq_len=settings.seq_len, vocab=vocab)
    return graph_table(
        lengths,
        seq_len=settings.seq_len,
        data_flow_length=settings.data_flow_length,
        positions=tokeniser.config.max_position_embeddings,
        vocab=vocab,
    )
