"""Comparisons inside a study: on the same samples, over seeds, and in one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.json_models import read_lines
from nbhelpers.metric_registry import FINETUNE_SCORES, TASKS, TITLES
from nbhelpers.result_files import Generation

if TYPE_CHECKING:
    from nbhelpers.study_table import StudyResult, StudyRow

GENERATIONS = "generations.jsonl"
REFERENCE = "r16"  # what the other adapters are compared with, where it is one of them
HEADLINE = tuple(f"{split}.{name}" for split, name in FINETUNE_SCORES.headline)


def compare_study(
    found: StudyResult, metric: str = "syntax_accuracy", *, baseline: str | None = None
) -> dict[str, Any]:
    """Compare the adapters of a study with one of them, on the same samples.

    Args:
        found: The study; its finished runs are compared.
        metric: Such as `bleu` (of the test split), `pass@1` (of the first set of problems that was
            run) or `mbpp.pass@1`.
        baseline: An adapter; None: `base`, else the first one.

    Returns:
        What `code_compare.compare_runs` returns, or with several seeds `compare_over_seeds`; and
        the `split` that was compared.

    Raises:
        ConfigError: The metric or the baseline is none of the study's, or nothing was generated.
        DataError: A run's generations cannot be compared.
    """
    from nbhelpers.code_compare import compare_over_seeds, compare_runs

    split, name = _split_of(found, metric)
    rows = [row for row in found.finished if _has_scores(row, split)]
    by_adapter: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        answers = _answers(row.run.path / GENERATIONS, split)
        if answers:
            by_adapter.setdefault(row.planned.adapter, {})[row.settings.seed] = answers
    if not by_adapter:
        text = f"No run of {found.study.id} has answers of the split {split}."
        raise ConfigError(text, fix="run the study with evaluate=text or all")
    settings = rows[0].settings
    baseline = baseline or ("base" if "base" in by_adapter else next(iter(by_adapter)))
    options = {"metric": name, "baseline": baseline, "seed": settings.seed}
    options |= {"resamples": settings.bootstrap_samples}
    if max(len(of) for of in by_adapter.values()) > 1:
        fixed = {row.planned.adapter for row in rows if row.settings.method == "base"}
        told: dict[str, dict[int, Any]] = {}
        for row in rows:
            scores = row.result.scores[split]
            told.setdefault(row.planned.adapter, {})[row.settings.seed] = scores
        return {"split": split} | compare_over_seeds(
            by_adapter, fixed=fixed, scored=told, **options
        )
    one = {adapter: next(iter(of.values())) for adapter, of in by_adapter.items()}
    scored = {row.planned.adapter: row.result.scores[split] for row in rows}
    return {"split": split} | compare_runs(one, scored=scored, **options)


def verdicts(found: StudyResult, metrics: Iterable[str] = HEADLINE) -> list[str]:
    """Return a sentence for each pair that matters: all against base, then the adapters.

    The words account for all comparisons of one metric with one baseline (Holm); the intervals are
    of 95 % each. A metric that no run has is left out.
    """
    sentences = []
    for metric in metrics:
        split, _, name = metric.rpartition(".")
        rows = [row for row in found.finished if _metric(row, split, name) is not None]
        names = list(dict.fromkeys(row.planned.adapter for row in rows))
        trained = [n for n in names if n in {r.planned.adapter for r in rows if _is_trained(r)}]
        bases = [n for n in names if n not in trained][:1]
        if len(trained) > 1:
            bases.append(REFERENCE if REFERENCE in trained else trained[0])
        for baseline in bases if len(names) > 1 else ():
            sentences += _sentences(found, metric, baseline, trained)
    return sentences


def _sentences(found: StudyResult, metric: str, baseline: str, trained: list[str]) -> Iterator[str]:
    split, _, name = metric.rpartition(".")
    title = TITLES.get(name, name) if split == "test" else f"{TITLES[split]} {name}"
    try:
        against = compare_study(found, metric, baseline=baseline)["against"]
    except NbhelpersError as error:
        yield f"{title}, against {baseline}: not compared ({error.message})"
        return
    for adapter, each in against.items():
        if adapter in trained:
            words = f"{adapter} against {baseline}: {each['verdict_holm']}"
            yield f"{title}, {words}{_difference(each, name)}"


def _difference(each: dict[str, Any], metric: str) -> str:
    if each["difference"] is None:
        return f" ({each['reason']})" if each.get("reason") else ""
    form = f"{{:+.{FINETUNE_SCORES.metric(metric).decimals}f}}"
    text = form.format(each["difference"])
    if edges := each["interval"]:
        text += f" [{form.format(edges[0])}, {form.format(edges[1])}]"
    return f" ({text})"


def _answers(path: Path, split: str) -> list[dict[str, Any]]:
    """Return the generations of one split; none where there is no file."""
    return [row for row in read_lines(Generation, path) if row["split"] == split]


def _split_of(found: StudyResult, metric: str) -> tuple[str, str]:
    """The split and the bare name that a metric means in this study."""
    split, _, name = metric.rpartition(".")
    if not split and name == "pass@1":
        has = [t for t in TASKS if any(_has_scores(row, t) for row in found.finished)]
        split = has[0] if has else TASKS[0]
    split = split or "test"
    if split not in ("test", *TASKS):
        named = ", ".join(f"{task}.{name}" for task in TASKS)
        fix = f"write {name} (of the test split), or one of: {named}"
        raise ConfigError(f"There is no split `{split}` in a study.", fix=fix)
    return split, name


def _has_scores(row: StudyRow, split: str) -> bool:
    return row.result is not None and split in row.result.scores


def _metric(row: StudyRow, split: str, name: str) -> float | None:
    return row.number("scores", split, "metrics", name)


def _is_trained(row: StudyRow) -> bool:
    return row.settings.method != "base"
