"""What a study measured: its runs side by side, compared with intervals, and its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.time import TimeBudget
from nbhelpers.common.display import Cell, Table
from nbhelpers.common.formatting import duration
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import Generation
from nbhelpers.errors import ConfigError, JobFailed, NbhelpersError, from_kind
from nbhelpers.metrics.registry import FINETUNE_SCORES, TASKS, TITLES
from nbhelpers.runs.gpu_baseline import BaselineCheck
from nbhelpers.runs.run import Run, RunResult
from nbhelpers.runs.study_plan import FINISHED, REFUSED, PlannedRun, Study

if TYPE_CHECKING:
    import pandas as pd

    from nbhelpers.presets.schema import FinetuneSettings


GENERATIONS = "generations.jsonl"
REFERENCE = "r16"  # what the other adapters are compared with, where it is one of them
HEADLINE = tuple(f"{split}.{name}" for split, name in FINETUNE_SCORES.headline)
METRICS = tuple(
    (split, name) for split in FINETUNE_SCORES.splits for name in FINETUNE_SCORES.names(split)
)
SHOWN = FINETUNE_SCORES.compared

# What is shown of a run, in this order: scores first, as a notebook's page is narrow.
HEADS = {
    **{"run": "adapter", "seed": "seed", "status": "status", "trainable_parameters": "trainable"},
    **{f"{split}.{name}": FINETUNE_SCORES.title_of(split, name) for split, name in SHOWN},
    **{"time_s": "time", "predicted_time": "predicted time"},
    **{"peak_measured_bytes": "peak memory", "peak_predicted_bytes": "predicted memory"},
    **{"useful_tokens_per_s": "useful tokens/s", "train_loss": "train loss"},
    **{"valid_loss": "valid loss", "energy_wh": "energy Wh", "rank": "rank", "alpha": "alpha"},
    **{"gpu_after": "GPU after it"},
}
FORMS = {
    **{"seed": "d", "trainable_parameters": "count", "time_s": "duration"},
    **{"peak_measured_bytes": "size", "peak_predicted_bytes": "size"},
    **{"useful_tokens_per_s": "count", "train_loss": ".4f", "valid_loss": ".4f"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One run of a study as its folder tells it now; `error`: why it ended without a result.

    `baseline`: whether the GPU was free again after it; None without a GPU, or where nobody looked.
    """

    name: str
    planned: PlannedRun
    run: Run
    status: str
    result: RunResult | None
    error: NbhelpersError | None
    baseline: BaselineCheck | None = None

    @property
    def time_s(self) -> float | None:
        """Seconds of the run without pre-training, which is done once for all runs, or None."""
        total = self.number("timing", "total_s")
        return None if total is None else total - (self.number("timing", "pretrain_s") or 0.0)

    @property
    def predicted(self) -> TimeBudget | None:
        """The time that was predicted before it ran; None where it had been finished by then.

        At its launch, as its own report has it, else when the study was planned.
        """
        time = self.planned.time
        if time.basis in (FINISHED, REFUSED):
            return None
        return TimeBudget.from_record(self.run.record or {}) or time

    @property
    def settings(self) -> FinetuneSettings:
        """What was asked of it."""
        return self.planned.preset.settings

    def number(self, *path: str) -> float | None:
        """Return a number of its result by its place, such as ("timing", "total_s"), or None."""
        value: Any = self.result.data if self.result is not None else None
        for name in path:
            value = (value or {}).get(name)
        return value

    def has_scores(self, split: str) -> bool:
        """Whether it was evaluated on this split."""
        return self.result is not None and split in self.result.scores

    def metric(self, split: str, name: str) -> float | None:
        """Return a metric of a split, or None."""
        return self.number("scores", split, "metrics", name)

    def interval(self, split: str, metric: str) -> tuple[float, float] | None:
        """Return the edges of a metric's interval over samples, or None."""
        scores = self.result.scores.get(split) if self.result is not None else None
        edges = ((scores or {}).get("intervals") or {}).get(metric)
        return (edges[0], edges[1]) if edges else None

    def valid_loss(self) -> float | None:
        """Return the last loss on the held-out rows, or None."""
        evals = self.result.training.get("evals") if self.result is not None else None
        losses = [
            evaluation["loss"] for evaluation in evals or [] if evaluation.get("loss") is not None
        ]
        return losses[-1] if losses else None

    def facts(self) -> dict[str, Any]:
        """Return everything that is compared, as numbers with their units in the names."""
        s, time = self.settings, self.predicted
        is_base = self.planned.is_base
        columns = {
            "run": self.name,
            "adapter": self.planned.adapter,
            "method": s.method,
            "rank": None if is_base else s.lora_r,
            "alpha": None if is_base else s.alpha,
            "seed": s.seed,
            "status": self.status,
            "trainable_parameters": self.number("adapter", "trainable_parameters"),
            "predicted_s": time.expected_s if time else None,
            "predicted_low_s": time.low_s if time else None,
            "predicted_high_s": time.high_s if time else None,
            "time_s": self.time_s,
            "pretrain_s": self.number("timing", "pretrain_s"),
            "train_s": self.number("timing", "train_s"),
            "energy_joules": self.number("energy", "joules"),
            "peak_predicted_bytes": self.number("memory", "predicted_bytes"),
            "peak_measured_bytes": self.number("memory", "measured_bytes"),
            "peak_error_percent": self.number("memory", "error_percent"),
            "useful_tokens_per_s": self.number("throughput", "useful_tokens_per_s"),
            "mfu_4n": self.number("throughput", "mfu_4n"),
            "train_loss": self.number("training", "last_loss"),
            "valid_loss": self.valid_loss(),
        }
        for split, metric in METRICS:
            value = self.metric(split, metric)
            if value is None:
                continue
            low, high = self.interval(split, metric) or (None, None)
            name = f"{split}.{metric}"
            columns |= {name: value, f"{name}.low": low, f"{name}.high": high}
        excess = self.baseline.excess_bytes if self.baseline else None
        return columns | {
            "gpu_excess_bytes": excess,
            "gpu_is_back": self.baseline.is_back if self.baseline else None,
        }

    def cells(self) -> dict[str, Cell]:
        """Return what is shown of it, by the names of `HEADS`."""
        facts, s, joules = self.facts(), self.settings, self.number("energy", "joules")
        cells = {name: Cell(facts[name], form) for name, form in FORMS.items()}
        cells["status"] = Cell("" if self.status == "finished" else self.status)
        cells["energy_wh"] = Cell(None if joules is None else joules / 3600, ".1f")
        is_timed = facts["time_s"] is not None and self.predicted is not None
        cells["predicted_time"] = Cell(self.predicted.words() if is_timed else "")
        cells["gpu_after"] = Cell(self.baseline.words() if self.baseline else "")
        for split, metric in SHOWN:
            name, form = f"{split}.{metric}", f".{FINETUNE_SCORES.metric(metric).decimals}f"
            cells[name] = Cell(facts.get(name), form, self.interval(split, metric))
        cells["run"] = Cell(self.name)
        cells["rank"] = Cell("" if self.planned.is_base else str(s.lora_r))
        cells["alpha"] = Cell("" if self.planned.is_base else f"{s.alpha:g}")
        return cells


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudyResult:
    """The runs of a study with what each found; `path` is the study's folder.

    It is read from the run folders, so it can be made again at any time (`open_study`).
    """

    study: Study
    path: Path
    rows: tuple[StudyRow, ...]

    @property
    def finished(self) -> tuple[StudyRow, ...]:
        """The runs that have a result."""
        return tuple(row for row in self.rows if row.result is not None)

    @property
    def failures(self) -> tuple[StudyRow, ...]:
        """The runs that ended without a result."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def best(self) -> StudyRow:
        """The trained run with the lowest loss on `valid`, which no score looks at.

        The first finished run where none was trained, or none has such a loss.

        Raises:
            NbhelpersError: No run has a result; as `require_complete`.
        """
        if not self.finished:
            self.require_complete()
        trained = [row for row in self.finished if not row.planned.is_base]
        known = [row for row in trained if row.valid_loss() is not None]
        return min(known, key=StudyRow.valid_loss) if known else (trained or self.finished)[0]

    @property
    def is_complete(self) -> bool:
        """Whether every run has a result."""
        return len(self.finished) == len(self.rows)

    def require_complete(self) -> StudyResult:
        """Return this result if every run has its own.

        Raises:
            NbhelpersError: Of the class of the first failure; its details name all of them.
        """
        if self.is_complete:
            return self
        count = f"{len(self.finished)} of {len(self.rows)} runs of {self.study.id} are finished"
        if not self.failures:
            fix = "run the study again: finished runs are used, a running one is followed"
            raise JobFailed(f"{count}; the others have not ended.", fix=fix)
        first = self.failures[0]
        raise from_kind(
            type(first.error).__name__,
            f"{count}; {first.name} failed first: {first.error.message}",
            fix=first.error.fix,
            details="\n".join([*self.failure_lines()[1:], first.error.details]).strip(),
        )

    def failure_lines(self) -> list[str]:
        """Name each failed run with its error, one line each."""
        errors = ((row.name, row.error) for row in self.failures)
        heads = ((name, error, error.message.partition("\n")[0]) for name, error in errors)
        return [f"{name}: {type(error).__name__}: {text}" for name, error, text in heads]

    def notes(self) -> list[str]:
        """Say what the figures leave out."""
        taken = ((row.name, row.number("timing", "pretrain_s")) for row in self.finished)
        parts = ", ".join(f"{duration(seconds)} in {name}" for name, seconds in taken if seconds)
        text = "Times leave out the pre-training of the smoke model, done once for all runs"
        return [f"{text} ({parts})."] if parts else []

    @property
    def table(self) -> pd.DataFrame:
        """All runs with all figures; units stand in the names, `.low` and `.high` are edges."""
        import pandas as pd

        rows = [row.facts() for row in self.rows]
        names = dict.fromkeys(name for row in rows for name in row)
        return pd.DataFrame(rows, columns=list(names))

    def cells(self) -> list[dict[str, Cell]]:
        """Return the rows as people read them; columns that tell nothing are left out."""
        rows = [row.cells() for row in self.rows]
        if len({row.settings.seed for row in self.rows}) == 1:
            rows = [{name: c for name, c in row.items() if name != "seed"} for row in rows]
        full = [name for name in HEADS if any(str(row[name]) for row in rows if name in row)]
        return [{name: row[name] for name in full} for row in rows]

    def compare(
        self, metric: str = "syntax_accuracy", *, baseline: str | None = None
    ) -> dict[str, Any]:
        """Compare the adapters of the finished runs with one of them, on the same samples.

        Args:
            metric: Such as `bleu` (of the test split), `pass@1` (of the first set of problems that
                was run) or `mbpp.pass@1`.
            baseline: An adapter; None: `base`, else the first one.

        Returns:
            What `compare.compare_runs` returns, or with several seeds `compare_over_seeds`; and
            the `split` that was compared.

        Raises:
            ConfigError: The metric or the baseline is none of the study's, or nothing was
                generated.
            DataError: A run's generations cannot be compared.
        """
        from nbhelpers.metrics.compare import compare_over_seeds, compare_runs

        split, name = self._split_of(metric)
        rows = [row for row in self.finished if row.has_scores(split)]
        answers: dict[str, dict[int, list[dict[str, Any]]]] = {}  # by adapter and seed
        scores: dict[str, dict[int, Any]] = {}
        for row in rows:
            adapter, seed = row.planned.adapter, row.settings.seed
            scores.setdefault(adapter, {})[seed] = row.result.scores[split]
            lines = read_lines(Generation, row.run.path / GENERATIONS)
            if of_split := [line for line in lines if line["split"] == split]:
                answers.setdefault(adapter, {})[seed] = of_split
        if not answers:
            text = f"No run of {self.study.id} has answers of the split {split}."
            raise ConfigError(text, fix="run the study with evaluate=text or all")
        settings = rows[0].settings
        baseline = baseline or ("base" if "base" in answers else next(iter(answers)))
        options = {"metric": name, "baseline": baseline, "seed": settings.seed}
        options |= {"resamples": settings.bootstrap_samples}
        if max(len(of_seed) for of_seed in answers.values()) > 1:
            fixed = {row.planned.adapter for row in rows if row.planned.is_base}
            compared = compare_over_seeds(answers, fixed=fixed, scored=scores, **options)
        else:
            one = {adapter: next(iter(of_seed.values())) for adapter, of_seed in answers.items()}
            scored = {adapter: list(of_seed.values())[-1] for adapter, of_seed in scores.items()}
            compared = compare_runs(one, scored=scored, **options)
        return {"split": split} | compared

    def _split_of(self, metric: str) -> tuple[str, str]:
        """The split and the bare name that a metric means in this study."""
        split, _, name = metric.rpartition(".")
        if not split and name == "pass@1":
            has = [t for t in TASKS if any(row.has_scores(t) for row in self.finished)]
            split = has[0] if has else TASKS[0]
        split = split or "test"
        if split not in ("test", *TASKS):
            named = ", ".join(f"{task}.{name}" for task in TASKS)
            fix = f"write {name} (of the test split), or one of: {named}"
            raise ConfigError(f"There is no split `{split}` in a study.", fix=fix)
        return split, name

    def verdicts(self, *metrics: str) -> list[str]:
        """Return a sentence for each pair that matters: all against base, then the adapters.

        The words account for all comparisons of one metric with one baseline (Holm); the intervals
        are of 95 % each. A metric that no run has is left out; of no metric: syntax accuracy and
        pass@1.
        """
        sentences = []
        for metric in metrics or HEADLINE:
            split, _, name = metric.rpartition(".")
            rows = [r.planned for r in self.finished if r.metric(split, name) is not None]
            names = dict.fromkeys(row.adapter for row in rows)
            trained = list(dict.fromkeys(row.adapter for row in rows if not row.is_base))
            bases = [adapter for adapter in names if adapter not in trained][:1]
            if len(trained) > 1:
                bases.append(REFERENCE if REFERENCE in trained else trained[0])
            for baseline in bases if len(names) > 1 else ():
                sentences += self._sentences(metric, baseline, trained)
        return sentences

    def _sentences(self, metric: str, baseline: str, trained: list[str]) -> Iterator[str]:
        split, _, name = metric.rpartition(".")
        title = TITLES.get(name, name) if split == "test" else f"{TITLES[split]} {name}"
        try:
            against = self.compare(metric, baseline=baseline)["against"]
        except NbhelpersError as error:
            yield f"{title}, against {baseline}: not compared ({error.message})"
            return
        for adapter, comparison in against.items():
            if adapter in trained:
                words = f"{adapter} against {baseline}: {comparison['verdict_holm']}"
                yield f"{title}, {words}{_difference(comparison, name)}"

    def __repr__(self) -> str:
        count = f"{len(self.finished)} of {len(self.rows)} runs finished"
        failed = f", {len(self.failures)} without a result" if self.failures else ""
        return f"StudyResult({self.study.id}: {count}{failed})"

    def shown(self, title: str = "") -> Table:
        """Return the runs as one table, with failures, verdicts and notes below."""
        rows = self.cells()
        heads = [HEADS[name] for name in rows[0]]
        notes = [*self.failure_lines(), *self.verdicts(), *self.notes()]
        return Table(heads, [list(row.values()) for row in rows], title, notes)

    def __str__(self) -> str:
        return self.shown().text()

    def _repr_html_(self) -> str:
        return self.shown(repr(self)).html()


def _difference(comparison: dict[str, Any], metric: str) -> str:
    if comparison["difference"] is None:
        return f" ({comparison['reason']})" if comparison.get("reason") else ""
    number_format = f"{{:+.{FINETUNE_SCORES.metric(metric).decimals}f}}"
    text = number_format.format(comparison["difference"])
    if edges := comparison["interval"]:
        text += f" [{number_format.format(edges[0])}, {number_format.format(edges[1])}]"
    return f" ({text})"
