"""The scores of `metrics.generation` as `evaluate.Metric` objects, which score a run's answers.

They are made in code, so no hub is asked, and they work like any other: `compute`, `add`,
`add_batch`, several batches, `evaluate.combine([...])`. By default what was added stays in memory,
so two metrics, or two processes, never meet in a cache file. Importing this module imports
`evaluate`, which loads torch: it belongs to the worker side.

    metric = load_metric("code_bleu")
    metric.add_batch(predictions=answers, references=references)
    metric.compute()  # {"bleu": 31.4, "bleu_signature": "nrefs:1|..."}
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import datasets
import evaluate

from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError
from nbhelpers.metrics import generation

# Texts as bytes: Arrow's own texts cannot hold the lone surrogates that a model may write.
ANSWERS = {"predictions": datasets.Value("binary")}
TEXTS = ANSWERS | {"references": datasets.Value("binary")}
OUTCOMES = {"outcomes": datasets.Value("binary")}
INPUTS = (*TEXTS, *OUTCOMES)  # what any of these metrics may be given


class CodeMetric(evaluate.Metric):
    """What the metrics of this module share; `inputs`, `meaning` and `score` make one of it.

    Args:
        num_process: Processes that add to one score; more than one share files in `cache_dir`.
        process_id: Of this process; `compute` returns the score on 0 and None elsewhere.
        experiment_id: One name for all processes of one evaluation, such as the run's id.
        keep_in_memory: False writes what was added to a file of its own in `cache_dir`.
        options: As in `evaluate.Metric`.

    Raises:
        ConfigError: Several processes without an `experiment_id` in common.
    """

    inputs: dict[str, datasets.Value]
    score_name: str  # of its main figure, in what `compute` returns and in a run's result
    meaning: str

    def __init__(
        self,
        *,
        num_process: int = 1,
        process_id: int = 0,
        experiment_id: str | None = None,
        keep_in_memory: bool | None = None,
        **options: Any,
    ) -> None:
        if num_process > 1 and not experiment_id:
            raise ConfigError(
                f"{type(self).__name__} of {num_process} processes has no experiment_id",
                fix="Give every process the same experiment_id, such as the run's id.",
            )
        in_memory = num_process == 1 if keep_in_memory is None else keep_in_memory
        super().__init__(
            num_process=num_process,
            process_id=process_id,
            experiment_id=experiment_id or uuid.uuid4().hex,
            keep_in_memory=in_memory,
            **options,
        )

    def _build_data_dir(self) -> str:
        """Make no folder where nothing will be written: a home may be full or read-only."""
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.meaning,
            citation="",
            inputs_description=f"Inputs: {', '.join(self.inputs)}, one value a sample each.",
            features=datasets.Features(self.inputs),
        )

    def add(self, **sample: Any) -> None:
        """Add one sample: `prediction`, `reference` or `outcome`, also by their plural names."""
        named = {name if name in INPUTS else f"{name}s": value for name, value in sample.items()}
        super().add(**{name: _storable(value) for name, value in named.items()})

    def add_batch(self, **columns: Any) -> None:
        """Add a list of samples by column.

        Raises:
            ConfigError: A column of this metric is missing.
        """
        missing = [name for name in self.inputs if columns.get(name) is None]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} got no {missing[0]}",
                fix=f"Give {' and '.join(self.inputs)}, one value a sample each.",
            )
        filled = {name: values for name, values in columns.items() if values is not None}
        super().add_batch(**{name: [_storable(v) for v in filled[name]] for name in filled})

    def compute(self, **arguments: Any) -> dict[str, Any] | None:
        """Return the score of all that was added; without any sample it is None.

        Columns of other metrics, as `evaluate.combine` passes them to all, are left aside.

        Raises:
            ConfigError: An argument is no column of any of these metrics.
        """
        unknown = sorted(set(arguments) - set(INPUTS))
        if unknown:
            raise ConfigError(
                f"{type(self).__name__}.compute has no argument {unknown[0]!r}",
                fix=did_you_mean(unknown[0], self.inputs),
            )
        columns = {name: arguments.get(name) for name in self.inputs}
        if any(values is not None for values in columns.values()):
            self.add_batch(**columns)
        elif self.writer is None:
            self.add_batch(**{name: [] for name in self.inputs})
        return super().compute()

    def _compute(self, **columns: Any) -> dict[str, Any]:
        texts = {name: [_text(value) for value in columns[name]] for name in self.inputs}
        return self.score(**texts)

    def score(self, **columns: list[Any]) -> dict[str, Any]:
        """Return the scores of the columns."""
        raise NotImplementedError(f"{type(self).__name__} says no score")


class SyntaxAccuracy(CodeMetric):
    """Share of predictions whose code parses, with the kinds of error; needs no references."""

    inputs, score_name = ANSWERS, "syntax_accuracy"
    meaning = "Share of texts whose Python code parses."

    def score(self, predictions: list[str]) -> dict[str, Any]:
        """See `generation.syntax_accuracy`."""
        return {
            "syntax_accuracy": generation.syntax_accuracy(predictions),
            "syntax_errors": generation.syntax_errors(predictions),
        }


class CodeBleu(CodeMetric):
    """Corpus BLEU over code tokens, with its signature; a reference may be None."""

    inputs, score_name = TEXTS, "bleu"
    meaning = "sacrebleu's corpus BLEU over the tokens of Python code, 0 to 100."

    def score(self, predictions: list[str], references: list[str | None]) -> dict[str, Any]:
        """See `generation.code_bleu`."""
        return {
            "bleu": generation.code_bleu(predictions, references),
            "bleu_signature": generation.bleu_signature(),
        }


class CodeChrf(CodeMetric):
    """chrF of the code, with its signature; a reference may be None."""

    inputs, score_name = TEXTS, "chrf"
    meaning = "sacrebleu's chrF of Python code, 0 to 100."

    def score(self, predictions: list[str], references: list[str | None]) -> dict[str, Any]:
        """See `generation.code_chrf`."""
        return {
            "chrf": generation.code_chrf(predictions, references),
            "chrf_signature": generation.chrf_signature(),
        }


class ExactMatch(CodeMetric):
    """Share of predictions whose code is the reference's, white space at line ends aside."""

    inputs, score_name = TEXTS, "exact_match"
    meaning = "Share of texts whose code equals the reference's."

    def score(self, predictions: list[str], references: list[str | None]) -> dict[str, Any]:
        """See `generation.exact_match`."""
        return {"exact_match": generation.exact_match(predictions, references)}


class PassAt1(CodeMetric):
    """Share of tasks whose one answer passed; its input is `outcomes`, as the sandbox says them."""

    inputs, score_name = OUTCOMES, "pass@1"
    meaning = "Share of tasks whose one greedy answer passed its tests."

    def score(self, outcomes: list[str | None]) -> dict[str, Any]:
        """See `generation.pass_at_1`."""
        return {"pass@1": generation.pass_at_1(outcomes)}


MODULES: dict[str, type[CodeMetric]] = {
    "syntax_accuracy": SyntaxAccuracy,
    "code_bleu": CodeBleu,
    "code_chrf": CodeChrf,
    "exact_match": ExactMatch,
    "pass_at_1": PassAt1,
}


def compute_scores(score_names: Iterable[str], **columns: list[Any]) -> dict[str, Any]:
    """Return what the metrics of these figures say of the columns; figures of others are left out.

    Args:
        score_names: As in `CodeMetric.score_name`.
        columns: `predictions`, `references` and `outcomes`, one value a sample each.
    """
    wanted = set(score_names)
    metrics = [kind() for kind in MODULES.values() if kind.score_name in wanted]
    return evaluate.combine(metrics).compute(**columns)


def load_metric(name: str, **options: Any) -> CodeMetric:
    """Return a metric by name; `options` go to `CodeMetric`.

    Raises:
        ConfigError: There is no such metric.
    """
    if name not in MODULES:
        raise ConfigError(f"there is no metric {name!r}", fix=did_you_mean(name, MODULES))
    return MODULES[name](**options)


def _storable(value: Any) -> bytes | None:
    if value is None:  # a sample without a reference, a task that was not run
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{value!r:.60} is no text", fix="give texts, and None where none is")
    return value.encode("utf-8", "surrogatepass")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogatepass")
