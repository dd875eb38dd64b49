"""The scores of generated code as `evaluate.Metric` objects, which score a run's answers.

They are made in code, so no hub is asked, and they work like any other: `compute`, `add`,
`add_batch`, `evaluate.combine([...])`. Importing this module imports `evaluate`, which takes a
second and loads torch: it belongs to the worker side.

    metric = load_metric("bleu")
    metric.compute(predictions=answers, references=references)  # {"bleu": 31.4, "signature": …}
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import datasets
import evaluate

from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError
from nbhelpers.metrics.generation import Generated, signatures

# Of each score, as in `metrics/registry.py`, its inputs; and the key that rows have for an input.
ANSWERS = ("predictions",)
INPUTS = {
    "syntax_accuracy": ANSWERS,
    "bleu": (*ANSWERS, "references"),
    "chrf": (*ANSWERS, "references"),
    "exact_match": (*ANSWERS, "references"),
    "pass@1": ("outcomes",),
}
KEYS = {"predictions": "answer", "references": "reference", "outcomes": "outcome"}


class CodeMetric(evaluate.Metric):
    """One score of `metrics.generation`: of Python code in answers, or of how programs ended.

    `compute` returns it by its name, with sacrebleu's `bleu_signature` or `chrf_signature`, or with
    the `syntax_errors` by kind. References may be None: such an answer takes no part. Nothing added
    is None, not 0.

    Args:
        name: syntax_accuracy, bleu, chrf, exact_match or pass@1.
        options: As in `evaluate.Metric`; what was added stays in memory.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.score_name, self.inputs = name, INPUTS[name]
        own = {"keep_in_memory": True, "experiment_id": uuid.uuid4().hex}
        super().__init__(**own | options)

    def _build_data_dir(self) -> str:
        """Make no folder where nothing will be written: a home may be full or read-only."""
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        # Texts as bytes: Arrow's own cannot hold the lone surrogates that a model may write.
        features = {name: datasets.Value("binary") for name in self.inputs}
        return evaluate.MetricInfo(
            description=f"{self.score_name} of generated Python code.",
            citation="",
            inputs_description=f"Inputs: {', '.join(self.inputs)}, one value a sample each.",
            features=datasets.Features(features),
        )

    def add(self, **sample: Any) -> None:
        """Add one sample: `prediction`, `reference` or `outcome`, also by their plural names."""
        named = {name if name in KEYS else f"{name}s": value for name, value in sample.items()}
        super().add(**{name: _storable(value) for name, value in named.items()})

    def add_batch(self, **columns: Any) -> None:
        """Add a list of samples by column.

        Raises:
            ConfigError: A column of this metric is missing, or a value is no text.
        """
        if missing := [name for name in self.inputs if columns.get(name) is None]:
            fix = f"give {' and '.join(self.inputs)}, one value a sample each"
            raise ConfigError(f"{self.score_name} got no {missing[0]}", fix=fix)
        super().add_batch(**{n: [_storable(value) for value in columns[n]] for n in self.inputs})

    def compute(self, **columns: Any) -> dict[str, Any] | None:
        """Return the score of all that was added; columns of other metrics are left aside.

        Raises:
            ConfigError: A name is no column of any of these metrics.
        """
        if unknown := sorted(set(columns) - set(KEYS)):
            fix = did_you_mean(unknown[0], self.inputs)
            raise ConfigError(f"{self.score_name} has no column {unknown[0]!r}", fix=fix)
        own = {name: columns.get(name) for name in self.inputs}
        if any(values is not None for values in own.values()):
            self.add_batch(**own)
        elif self.writer is None:
            self.add_batch(**{name: [] for name in self.inputs})
        return super().compute()

    def _compute(self, **columns: Any) -> dict[str, Any]:
        texts = {KEYS[name]: map(_text, columns[name]) for name in self.inputs}
        rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
        generated, name = Generated(rows), self.score_name
        score = {name: generated.counts(name).value}
        if name == "syntax_accuracy":
            score["syntax_errors"] = generated.error_counts
        elif name in (signed := signatures()):
            score[f"{name}_signature"] = signed[name]
        return score


def load_metric(name: str, **options: Any) -> CodeMetric:
    """Return a metric by the name of its score; `options` go to `CodeMetric`.

    Raises:
        ConfigError: There is no such metric.
    """
    if name not in INPUTS:
        raise ConfigError(f"there is no metric {name!r}", fix=did_you_mean(name, INPUTS))
    return CodeMetric(name, **options)


def compute_scores(names: Iterable[str], **columns: list[Any]) -> dict[str, Any]:
    """Return what the metrics of these names say of the columns; other names are left out."""
    metrics = [CodeMetric(name) for name in names if name in INPUTS]
    return evaluate.combine(metrics).compute(**columns)


def _storable(value: Any) -> bytes | None:
    if value is None:  # a sample without a reference, a task that was not run
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{value!r:.60} is no text", fix="give texts, and None where none is")
    return value.encode("utf-8", "surrogatepass")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogatepass")
