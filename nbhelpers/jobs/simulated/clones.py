"""The clone detector's training and scoring under simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.pairs import ClonePairs
from nbhelpers.jobs.clones import PAIRS_PER_CHUNK, Inputs, PairTask
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.models.encoders import build_clone_model
from nbhelpers.jobs.simulated.inputs import graph_table, longest_sizes, text_table
from nbhelpers.jobs.simulated.step import OneStep, one_step, parts_of
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.schema import ClonesSettings

if TYPE_CHECKING:
    from nbhelpers.jobs.models.encoders import Tokeniser

# Functions whose states are kept while pairs are scored, at most: of data that is not known here.
# Source: BigCloneBench in CodeXGLUE's form, data.jsonl.
MOST_FUNCTIONS = 9126
SCORED_BATCHES = 2


def build_clones(
    context: RunContext, tokeniser: Tokeniser, shapes: dict[str, Any] | None
) -> tuple[OneStep, Any]:
    """Return the loop over synthetic pairs, and what scores the longest functions.

    Args:
        shapes: As `jobs.clones.batch_shapes` says; None: as long as the settings allow.
    """
    settings, world = context.settings, context.plan.world_size
    shapes = shapes or _longest_shapes(settings, context.plan, tokeniser.config)
    pairs, scored = np.repeat(shapes["pairs"], world, axis=0), len(shapes["scored"])
    inputs = Inputs(
        data=_data(pairs, len(shapes["functions"]), scored, shapes["scored_pairs"]),
        table=_table(settings, tokeniser, shapes["functions"] + shapes["scored"]),
        found=tokeniser,
    )
    model = build_clone_model(settings.model_copy(update={"random_weights": True}), tokeniser)
    tflops = context.gpu_tflops  # which the length buckets of a batch are made for
    task = PairTask(settings, inputs, context.accelerator, model, gpu_tflops=tflops)
    if settings.compile_layers == "on" and model.can_compile:
        model.to(context.accelerator.device)
        model.use_kernels()  # the blocks stay plain, which needs about as much
        task.lay_out()
    step = one_step(context, task, model, len(pairs))

    def evaluate() -> None:
        if not scored:
            return
        head = model.classifier.out_proj
        # The states of the functions that are not encoded here.
        others = max(0, shapes["scored_functions"] - scored)
        other_states = head.weight.new_empty(others, head.in_features)
        task.predict(inputs.data.splits["valid"])
        del other_states

    return step, evaluate


def _longest_shapes(settings: ClonesSettings, plan: BatchPlan, config: Any) -> dict[str, Any]:
    parts, pairs = parts_of(plan), settings.max_eval_pairs
    scored = 2 * settings.per_device_eval_batch_size * SCORED_BATCHES
    most = MOST_FUNCTIONS if pairs is None else min(MOST_FUNCTIONS, 2 * pairs)
    return {
        "functions": longest_sizes(settings, 2 * sum(parts), config),
        "pairs": np.arange(2 * sum(parts)).reshape(-1, 2).tolist(),
        "parts": parts,
        "scored": longest_sizes(settings, scored, config),
        "scored_functions": 0 if settings.data in SAMPLES else most,
        "scored_pairs": pairs or PAIRS_PER_CHUNK,
    }


def _data(pairs: np.ndarray, functions: int, scored: int, scored_pairs: int) -> Any:
    """Return pairs for training, and pairs of the functions behind theirs to score."""
    # Enough that each of these functions is encoded, and as many as are scored at once.
    order = np.arange(max(scored, min(scored_pairs, PAIRS_PER_CHUNK)) if scored else 0)
    splits = {
        "train": _labelled(*pairs.T),
        "valid": _labelled(functions + order % scored, functions + (order * 7 + 1) % scored),
    }
    return SimpleNamespace(splits=splits, ids=[str(row) for row in range(functions + scored)])


def _labelled(left: np.ndarray, right: np.ndarray) -> ClonePairs:
    label = (np.arange(len(left)) % 2).astype(np.int8)
    return ClonePairs(left=left.astype(np.int32), right=right.astype(np.int32), label=label)


def _table(settings: ClonesSettings, tokeniser: Tokeniser, sizes: list[list[int]]) -> Any:
    vocab, seq_len = tokeniser.config.vocab_size, settings.seq_len
    if settings.data_flow_length is None:
        return text_table([code for code, _ in sizes], seq_len=seq_len, vocab=vocab)
    return graph_table(sizes, length=seq_len + settings.data_flow_length, vocab=vocab)
