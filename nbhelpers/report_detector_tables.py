"""The tables of a detector's report: scores, promise, floors, slices, edits, similarity, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nbhelpers.report_detector_base import (
    FLOOR_NAMES,
    MODEL,
    edges,
    part,
    rows,
    splits,
)
from nbhelpers.report_detector_similarity import pair_rows, retrieval_rows
from nbhelpers.report_detector_words import MFU, is_named, promises
from nbhelpers.report_facts import RunFacts, dig
from nbhelpers.report_tables import (
    gpus_table,
    memory_lines_table,
    memory_table,
    settings_table,
    timing_table,
    training_table,
)
from nbhelpers.targets import available, is_reached, is_target
from nbhelpers.targets_detector import DETECTOR_METRICS, LEADS, is_upper_bound

if TYPE_CHECKING:
    import pandas as pd

BESIDE = ("roc_auc", "tpr_at_fpr", "tpr", "fpr", "f1")  # of the model and its floors
MOST_FEATURES = 8


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    own = {
        "scores": scores_rows,
        "promise": promise_rows,
        "floors": floors_rows,
        "prevalence": prevalence_rows,
        "slices": slices_rows,
        "macro": macro_rows,
        "edits": edits_rows,
        "reliability": reliability_rows,
        "retrieval": retrieval_rows,
        "pairs": pair_rows,
        "targets": targets_rows,
        "phases": phases_rows,
        "throughput": throughput_rows,
        "inference": inference_rows,
        "data": data_rows,
        "data_parts": data_parts_rows,
        "features": features_rows,
    }
    made = {name: _table(make) for name, make in own.items()}
    return made | {
        "memory": memory_table,
        "memory_lines": memory_lines_table,
        "gpus": gpus_table,
        "timing": timing_table,
        "training": training_table,
        "settings": settings_table,
    }


def _table(make: Callable[[RunFacts], Iterator[dict[str, Any]]]) -> Callable[..., pd.DataFrame]:
    def made(facts: RunFacts) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(list(make(facts)))

    return made


def _between(between: list[float] | None, name: str = "") -> dict[str, float | None]:
    low, high = between or (None, None)
    return {f"{name} low".strip(): low, f"{name} high".strip(): high}


def scores_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per split and metric; recall is the TPR and has no row of its own."""
    for split, scores in splits(facts):
        for metric in DETECTOR_METRICS:
            if metric in part(scores, "metrics") and metric != "recall":
                row = {"split": split, "metric": metric, "value": dig(scores, "metrics", metric)}
                yield row | _between(edges(scores, "intervals", metric))


def promise_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the promised and the realised false-positive rate of each split."""
    for each in promises(facts):
        row = {"split": each.split, "humans": each.humans, "tasks": each.tasks}
        row |= {"promised": each.promised}
        yield row | {"realised": each.realised, **_between(each.interval), "promise": each.verdict}


def floors_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the model and its floors by split, each at its own frozen threshold, with our leads."""
    for split, scores in splits(facts):
        floors = part(scores, "floors")
        for name, values in {MODEL: scores, **floors}.items() if floors else ():
            row: dict[str, Any] = {"split": split, "scorer": FLOOR_NAMES.get(name, name)}
            for metric in BESIDE:
                row[metric] = dig(values, "metrics", metric)
                row[f"{metric} interval"] = edges(values, "intervals", metric)
            for metric in LEADS:
                row[f"{metric} lead"] = None if name == MODEL else dig(values, "lead", metric)
            yield row | {"note": dig(values, "skipped") or ""}


def prevalence_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the precision of each split at the named shares of AI code."""
    for split, scores in splits(facts):
        for share, values in part(scores, "at_prevalence").items():
            row = {"split": split, "share of AI": share, "precision": dig(values, "precision")}
            yield row | _between(edges(values, "precision_interval"))


def slices_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per slice; `worst` names the scores that are lowest, or highest, there."""
    for split, scores in splits(facts):
        worst = part(scores, "worst")
        for one in rows(scores, "slices"):
            row: dict[str, Any] = {"split": split, "by": _text(one, "by")}
            row |= {"value": _text(one, "value")}
            row |= {key: dig(one, key) for key in ("n_human", "n_ai", "roc_auc", "tpr")}
            row |= {"tpr interval": edges(one, "tpr_interval"), "fpr": dig(one, "fpr")}
            row |= {"fpr interval": edges(one, "fpr_interval")}
            place = (row["by"], row["value"])
            named = [
                metric
                for metric in worst
                if (_text(worst[metric], "by"), _text(worst[metric], "value")) == place
                if is_named(scores, metric)
            ]
            yield row | {"worst": ", ".join(named)}


def macro_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the mean over the slices of each kind, each slice counted once."""
    for split, scores in splits(facts):
        for kind, values in part(scores, "macro").items():
            found = {metric: dig(values, metric) for metric in ("roc_auc", "tpr", "fpr")}
            if any(value is not None for value in found.values()):
                yield {"split": split, "by": kind} | found


def edits_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield per edit and scorer what it does: AI programs edited, and human programs edited."""
    for split, scores in splits(facts):
        for edit, values in part(scores, "edits").items():
            for name, of in {MODEL: values, **part(values, "floors")}.items():
                row: dict[str, Any] = {"split": split, "edit": edit}
                row |= {"scorer": FLOOR_NAMES.get(name, name)}
                row |= _changed(values, of, "n_ai", "tpr")
                row["tpr lost"] = _difference(row["tpr before"], row["tpr after"])
                row["tpr lost interval"] = edges(of, "tpr_loss_interval")
                row |= _changed(values, of, "n_human", "fpr")
                row["fpr gained"] = _difference(row["fpr after"], row["fpr before"])
                # Of the model it counts the programs that the edit left out.
                yield row | {"note": "" if name == MODEL else dig(of, "skipped") or ""}


def _changed(values: Any, of: Any, count: str, rate: str) -> dict[str, Any]:
    row: dict[str, Any] = {count: dig(values, count)}
    row |= {f"{rate} before": dig(of, f"{rate}_unedited"), f"{rate} after": dig(of, rate)}
    return row | {f"{rate} after interval": edges(of, f"{rate}_interval")}


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def reliability_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the bins of probabilities: what was said, and how many were AI."""
    for split, scores in splits(facts):
        for one in rows(scores, "reliability"):
            keys = ("low", "high", "n", "mean_p", "share_ai")
            yield {"split": split} | {key: dig(one, key) for key in keys}


def targets_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the preset's success criteria beside what was measured; `op` is <= of an error."""
    found = available(facts.data)
    for metric, target in part(facts.data, "settings", "targets").items():
        if not facts.is_complete or target is None:
            continue
        value = found.get(metric)
        row = {"metric": metric, "op": "<=" if is_upper_bound(metric) else ">=", "target": target}
        row |= {"value": value, "passed": is_reached(metric, value, target)}
        missing = "not measured" if is_target(metric, "detector") else "no such score"
        yield row | {"note": "" if metric in found else missing}


def phases_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield seconds of training by phase, and their share."""
    found = {name: dig(facts.data, "phases", name) for name in part(facts.data, "phases")}
    total = sum(value for value in found.values() if value)
    for name, value in found.items():
        if value:
            title = name.removesuffix("_s")
            yield {"phase": title, "seconds": value, "share": value / total if total else None}


def throughput_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield training speed: useful tokens are those of programs, the others count padding."""
    names = {
        "programs_per_s": ("programs", "per s"),
        "useful_tokens_per_s": ("useful tokens", "per s"),
        "padded_tokens_per_s": ("tokens with padding", "per s"),
        "useful_share": ("useful tokens per padded token", "this run"),
        "mfu_6n": ("MFU", MFU),
    }
    for key, (what, unit) in names.items():
        value = dig(facts.data, "throughput", key)
        if value is not None:
            yield {"what": what, "value": value, "unit": unit}


def inference_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the time to score a file."""
    names = {
        "ms_per_file": "ms per file, in batches",
        "ms_alone": "ms per file, one at a time",
        "files_per_s": "files per s",
        "batch_size": "files per batch",
        "n_files": "files measured",
    }
    for key, what in names.items():
        value = dig(facts.data, "inference", key)
        if value is not None:
            yield {"what": what, "value": value}


def data_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the programs of each split, by label, and its tasks."""
    for name, values in part(facts.data, "data", "splits").items():
        keys = ("rows", "human", "ai", "unlabelled", "tasks")
        yield {"split": name} | {key: dig(values, key) for key in keys}


def data_parts_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the programs of each split by language, source and generator."""
    for name, values in part(facts.data, "data", "splits").items():
        for kind in ("languages", "sources", "generators"):
            for value, labels in part(values, kind).items():
                row: dict[str, Any] = {"split": name, "by": kind.removesuffix("s"), "value": value}
                yield row | {key: dig(labels, key) for key in ("human", "ai", "unlabelled")}


def features_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the single features that tell the classes apart best, by the audit of the data."""
    for one in rows(facts.data, "audit", "facts", "features")[:MOST_FEATURES]:
        row = {"feature": _text(one, "feature"), "AUC raw": dig(one, "raw")}
        row |= {"AUC canonical": dig(one, "canonical")}
        yield row | {"higher in": _text(one, "higher_in")}


def _text(values: Any, key: str) -> str:
    found = dig(values, key)
    return "" if found is None else str(found)[:80]
