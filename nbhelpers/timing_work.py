"""How much a run has to do: examples, tokens, answers; from earlier runs where there are any.

What is known of public data sets before they are read stands here, each figure with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nbhelpers.job_specs import ADAPTER, spec_of

if TYPE_CHECKING:
    from nbhelpers.schema import Settings
    from nbhelpers.speeds import SpeedRow

DEFAULT_DATA = "iamtarun/python_code_instructions_18k_alpaca"
# Source: the data set's page (rows of its only split), and its rows under Gemma's tokenizer.
DEFAULT_ROWS, DEFAULT_ROW_TOKENS = 18_612, 210
SAMPLE, SAMPLE_ROWS = "smoke", 1200  # of the bundled sample's training split
TASK_PROBLEMS = {"humaneval": 164, "mbpp": 500, "sample": 60}
# What changes neither the work nor its speed.
UNTIMED = {"seed", "split_seed", "lora_r", "lora_alpha", "lora_dropout", "learning_rate", "targets"}
UNTIMED |= {"lr_schedule", "warmup_ratio", "warmup_steps", "weight_decay", "adam_epsilon", "track"}
UNTIMED |= {"max_grad_norm", "dropout", "bootstrap_samples", "logging_steps", "max_skipped_steps"}
UNTIMED |= {"encoder_learning_rate", "temperature", "contrastive_weight", "priors", "prevalences"}
UNTIMED |= {"target_fpr", "target_miss_rate", "class_weights", "similarity_pooling", "pooling"}
ROWS_BY = ("data", "data_revision", "train_fraction", "max_train_samples", "on_bad_rows")
ROWS_BY += ("valid_samples", "eval_samples", "remove_duplicates", "languages", "hold_out", "split")
TOKENS_BY = ("data", "data_revision", "model", "template", "seq_len", "data_flow_length")

GRAPH_SHARE = 612 / 430  # of a pair with data flow and of one without
# Source: 20 to 35 % of the tokens were padding where samples of like length shared a batch.
PADDED_SHARE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Examples of an epoch, useful tokens of each, and the share of computed tokens that is useful.

    `is_bound`: the tokens are an upper bound. `examples` is None while nobody knows.
    """

    examples: int | None
    example_tokens: float
    useful_share: float
    is_bound: bool
    notes: tuple[str, ...]


def training_rows(settings: Settings) -> int | None:
    """Return the rows of training as far as they are known before the data is read."""
    limit, spec = settings.max_train_samples, spec_of(settings)
    if spec.formulas == ADAPTER:
        held_out = settings.valid_samples + settings.eval_samples
        whole = {DEFAULT_DATA: DEFAULT_ROWS - held_out, SAMPLE: SAMPLE_ROWS}.get(settings.data)
    else:
        whole = spec.time.train_examples.get(settings.data) if spec.time else None
    if whole is None:
        return limit
    rows = int(whole * settings.train_fraction)
    return max(1, min(rows, limit) if limit else rows)


def answers(settings: Settings) -> int:
    """Return how many answers the evaluation of a fine-tuning generates."""
    if spec_of(settings).formulas != ADAPTER or settings.evaluate == "none":
        return 0
    problems = 0
    if settings.evaluate == "all":
        most = settings.max_task_problems
        sizes = [TASK_PROBLEMS[name] for name in settings.tasks]
        problems = sum(min(size, most) if most else size for size in sizes)
    return settings.eval_samples + problems


def work_of(
    settings: Settings,
    rows: Sequence[SpeedRow] = (),
    *,
    examples: int | None = None,
    example_tokens: float | None = None,
) -> Work:
    """Return the work of a run: what is given, else what runs on this data counted, else guesses.

    Args:
        settings: Of any job.
        rows: Measured speeds; those with settings tell examples and tokens.
        examples: Training examples, where they are known.
        example_tokens: Mean useful tokens of one, where they are known.
    """
    values = settings.model_dump(mode="json")
    notes, count, tokens = [], examples, example_tokens
    for row in (each for each in rows if each.settings):
        if row.job != spec_of(settings).name:
            continue
        if count is None and row.examples and _agree(row.settings, values, ROWS_BY):
            count = row.examples
        if tokens is None and _agree(row.settings, values, TOKENS_BY):
            tokens = row.example_tokens
            notes.append(f"{tokens:,.0f} tokens per example, measured by {row.source}")
    count = training_rows(settings) if count is None else count
    is_bound = False
    if tokens is None:
        tokens, is_bound, note = _guessed_tokens(settings)
        notes.append(note)
    if count is not None:
        notes.insert(0, f"{count:,} training examples x {settings.epochs} epochs")
    share = _share(settings, tokens)
    return Work(
        examples=count,
        example_tokens=tokens,
        useful_share=share,
        is_bound=is_bound,
        notes=tuple(notes),
    )


def settings_rows(settings: Settings) -> int:
    """Return the texts of one example: two of a pair of functions, else one."""
    return int(getattr(settings, "rows_per_example", 1))


def _agree(found: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(found.get(name) == wanted.get(name) for name in names)


def is_same_work(row: SpeedRow, settings: Settings) -> bool:
    """Whether a run did exactly this work, so that its seconds are this run's."""
    values = settings.model_dump(mode="json")
    return bool(row.seconds) and _agree(
        row.settings, values, [n for n in values if n not in UNTIMED]
    )


def _guessed_tokens(settings: Settings) -> tuple[float, bool, str]:
    spec, length = spec_of(settings), settings.seq_len
    if settings.data == SAMPLE and spec.time:
        tokens = float(min(spec.time.sample_tokens, settings.seq_len * settings_rows(settings)))
        tokens *= GRAPH_SHARE if getattr(settings, "data_flow_length", None) else 1.0
        return tokens, False, f"about {tokens:,.0f} tokens per example of the bundled sample"
    if spec.formulas == ADAPTER:
        if settings.data == DEFAULT_DATA:
            tokens = float(min(DEFAULT_ROW_TOKENS, length))
            return (
                tokens,
                False,
                f"about {tokens:,.0f} tokens per row of {settings.data} (estimate)",
            )
        return float(length), True, f"every row as long as seq_len={length} (upper bound)"
    if spec.time is None or settings.data not in spec.time.train_examples:
        tokens = float(settings_rows(settings) * length)
        return tokens, True, f"every text as long as seq_len={length} (upper bound)"
    tokens = _between(spec.time.example_tokens, length) * (
        GRAPH_SHARE if getattr(settings, "data_flow_length", None) else 1.0
    )
    return tokens, False, f"about {tokens:,.0f} tokens per example of {settings.data} (estimate)"


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """Return the value of a broken line; beyond its last point it is level.

    >>> _between(((0, 0.0), (10, 5.0)), 4), _between(((0, 0.0), (10, 5.0)), 40)
    (2.0, 5.0)
    """
    for (x, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - x) / (right - x)
    return points[-1][1]


def _share(settings: Settings, tokens: float) -> float:
    """Return the share of useful tokens among those that are computed."""
    spec = spec_of(settings)
    nodes = getattr(settings, "data_flow_length", None) or 0
    full = (settings.seq_len + nodes) * settings_rows(settings)
    if settings.padding == "fixed" and not getattr(settings, "packing", False):
        return min(1.0, tokens / full)
    if spec.formulas == ADAPTER:
        return 1.0 if settings.packing else max(PADDED_SHARE, min(1.0, tokens / full))
    return spec.time.useful_share if spec.time else 1.0
