"""A detector's scores by slice of the data, and by edit that keeps a program's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.errors import DataError
from nbhelpers.metrics.detection import Floor, OperatingPoint, checked_rows, ranking_of, task_groups
from nbhelpers.metrics.intervals import clopper_pearson, divide, interval, plain, rate_interval
from nbhelpers.metrics.ranking import is_positive
from nbhelpers.metrics.resampling import resampled_sums

# ------------------------------------------------------------------------------------------------
# The scores of a detector part by part: where it works, and where it fails worst.


SLICES = ("language", "lines", "generator", "source", "language x lines")
MIN_ROWS = 30  # of the class that a rate is about: fewer cannot be called the worst
_LINES = ((10, "<10"), (25, "10-24"), (50, "25-49"))


Row = Any  # a program with its code, language, task, generator and source: `CodeRow` of `data`


def slice_scores(
    rows: Sequence[Row],
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    point: OperatingPoint,
    *,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Return `slices`, the `worst` of them and the `macro` mean of each kind.

    A generator's AI rows stand against all humans of the same languages. The TPR's interval comes
    from resampling tasks, the FPR's is Clopper-Pearson. The worst slice and the macro mean count
    only slices with at least `MIN_ROWS` rows of the class that the rate is about (of both for the
    AUC); without one they are None.

    Args:
        rows: (n,) the programs; rows without a value are in no slice of that kind.
        labels: (n,) "human" or "ai" (or 0 and 1).
        logits: (n,) ai minus human.
        point: Frozen before.
        resamples: Number of resamples.
        seed: Of the resamples.

    Raises:
        DataError: There are no rows, or lengths differ.
    """
    y, z = checked_rows(labels, logits)
    if len(rows) != len(y) or not len(y):
        raise DataError(f"{len(rows)} rows for {len(y)} labels", fix="Give one label to each row.")
    members = list(_members(rows, y))
    called = point.is_ai(z)
    columns = [
        column.astype(float)
        for _, _, inside in members
        for column in (inside & (y == 1) & called, inside & (y == 1))
    ]
    groups = task_groups([row.task for row in rows], len(y))
    sums = np.zeros((resamples, 0))
    if members:
        sums = resampled_sums(np.stack(columns, axis=1), resamples, seed, groups)
    slices = []
    for at, (kind, value, inside) in enumerate(members):
        spread = divide(sums[:, 2 * at], sums[:, 2 * at + 1])
        slices.append({"by": kind, "value": value} | _slice(inside, y, z, called, groups, spread))
    return {
        "slices": slices,
        "worst": _worst(slices),
        "macro": _macro(slices),
    }


def lines_of(code: str) -> str:
    """Return the class of length of a program.

    >>> lines_of("a\\n" * 9), lines_of("a\\n" * 10), lines_of("a\\n" * 49 + "b")
    ('<10', '10-24', '50+')
    """
    count = code.count("\n") + (not code.endswith("\n"))
    return next((name for limit, name in _LINES if count < limit), "50+")


def _members(rows: Sequence[Row], y: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (kind, value, (n,) whether a row is inside) of every slice, in a fixed order."""
    languages = np.array([row.language for row in rows], dtype=object)
    lines = [lines_of(row.code) for row in rows]
    crossed = [f"{row.language} {length}" for row, length in zip(rows, lines, strict=True)]
    values = {
        "language": languages,
        "lines": np.array(lines, dtype=object),
        "generator": np.array([row.generator for row in rows], dtype=object),
        "source": np.array([row.source for row in rows], dtype=object),
        "language x lines": np.where(languages == "", "", np.array(crossed, dtype=object)),
    }
    for kind in SLICES:
        of_kind = values[kind][y == 1] if kind == "generator" else values[kind]
        for value in sorted({value for value in of_kind.tolist() if value}):
            inside = values[kind] == value
            if kind == "generator":
                inside &= y == 1
                inside |= (y == 0) & np.isin(languages, list(set(languages[inside])))
            yield kind, value, inside


def _slice(
    inside: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    called: np.ndarray,
    groups: np.ndarray,
    spread: np.ndarray,
) -> dict[str, Any]:
    machines, humans = inside & (y == 1), inside & (y == 0)
    n_ai, n_human = int(machines.sum()), int(humans.sum())
    hits, alarms = int(called[machines].sum()), int(called[humans].sum())
    auc = None
    if n_ai and n_human:
        auc = plain(ranking_of(y[inside], z[inside], called[inside]).counts(None)[4])
    return {
        "n_human": n_human,
        "n_ai": n_ai,
        "roc_auc": auc,
        "tpr": hits / n_ai if n_ai else None,
        "tpr_interval": rate_interval(hits, n_ai, spread, len(set(groups[machines].tolist()))),
        "fpr": alarms / n_human if n_human else None,
        "fpr_interval": list(clopper_pearson(alarms, n_human)) if n_human else None,
    }


def _counted(slices: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    needed = {"tpr": ("n_ai",), "fpr": ("n_human",), "roc_auc": ("n_ai", "n_human")}[name]
    return [each for each in slices if all(each[count] >= MIN_ROWS for count in needed)]


def _worst(slices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the slice of the lowest TPR, highest FPR and lowest AUC.

    Of equal rates the one counts whose interval reaches further: a rate of 0 in few programs may
    be the worst, one in many is not.
    """
    worst: dict[str, Any] = {}
    for name, sign, edge in (("tpr", 1, 0), ("fpr", -1, 1), ("roc_auc", 1, 0)):

        def badness(each: dict[str, Any], name: str = name, sign: int = sign, edge: int = edge):
            between = each.get(f"{name}_interval")
            return sign * each[name], sign * (between or [0.0, 1.0])[edge]

        worst[name] = min(_counted(slices, name), key=badness, default=None)
    return worst


def _macro(slices: list[dict[str, Any]]) -> dict[str, Mapping[str, float | None]]:
    averages = {}
    for kind in SLICES:
        means = {}
        for name in ("roc_auc", "tpr", "fpr"):
            of_kind = [each for each in slices if each["by"] == kind]
            counted = [each[name] for each in _counted(of_kind, name)]
            means[name] = sum(counted) / len(counted) if counted else None
        averages[kind] = means
    return averages


# ------------------------------------------------------------------------------------------------
# What an edit that keeps a program's meaning does to its score: to AI code and to human code.


class Edited(NamedTuple):
    """The programs of a split that one edit changes, scored again after it."""

    rows: Sequence[int] | np.ndarray  # (m,) row numbers in the split
    logits: Sequence[float] | np.ndarray  # (m,)
    floors: Mapping[str, np.ndarray] = {}  # by name, (m,) scores of edited texts


def edit_scores(
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    edited: Mapping[str, Edited],
    point: OperatingPoint,
    *,
    tasks: Sequence[str],
    resamples: int,
    seed: int,
    floors: Mapping[str, Floor] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return per edit what it does to the TPR and to the FPR, model and floors at their thresholds.

    Before and after are the same rows: those that the edit changes; `skipped` counts the others.
    The loss of TPR is before minus after, with the interval of that difference. `roc_auc` is of
    edited AI against edited humans, `roc_auc_ai_edited` of edited AI against humans as they are,
    `roc_auc_human_edited` the reverse.

    Args:
        labels: (n,) "human" or "ai" (or 0 and 1) of the split.
        logits: (n,) unedited.
        edited: By name of the edit.
        point: Frozen before.
        tasks: (n,) "" is a task of its own.
        resamples: Number of resamples.
        seed: Of the resamples.
        floors: As for `score_detection`: unedited scores and threshold, or why there is none.

    Raises:
        DataError: An edit's rows do not fit the split or its scores.
    """
    y, z = checked_rows(labels, logits)
    groups = task_groups(tasks, len(y))
    result = {}
    for name, edit in edited.items():
        rows = np.asarray(edit.rows, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(y)):
            raise DataError(
                f"{name}: a row number is not of this split of {len(y)} rows",
                fix="Count rows from 0 within the split.",
            )
        _, after = checked_rows(y[rows], edit.logits)
        draw = (groups[rows], resamples, seed)
        scores = {"n_human": int((y[rows] == 0).sum()), "n_ai": int(y[rows].sum())}
        scores |= {"skipped": len(y) - len(rows)}
        calls = (point.is_ai(z[rows]), point.is_ai(after))
        scores |= _compared(y[rows], z[rows], after, calls, draw)
        scores["floors"] = {}
        for baseline, value in (floors or {}).items():
            if isinstance(value, str) or baseline not in edit.floors:
                reason = value if isinstance(value, str) else "not scored under edits"
                scores["floors"][baseline] = {"skipped": reason}
                continue
            before, line = np.asarray(value[0], dtype=np.float64)[rows], value[1]
            _, other = checked_rows(y[rows], edit.floors[baseline])
            calls = (is_positive(before, line), is_positive(other, line))
            scores["floors"][baseline] = _compared(y[rows], before, other, calls, draw)
        result[name] = scores
    return result


def _compared(
    y: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    calls: tuple[np.ndarray, np.ndarray],
    draw: tuple[np.ndarray, int, int],
) -> dict[str, Any]:
    """Return the scores of one scorer on rows before and after an edit."""
    called_before, called = calls
    groups, resamples, seed = draw
    is_ai = y == 1
    n_ai, n_human = int(is_ai.sum()), int((~is_ai).sum())
    hits, alarms = int(called[is_ai].sum()), int(called[~is_ai].sum())
    columns = np.stack([is_ai & called, is_ai & called_before, is_ai], axis=1).astype(float)
    sums = np.full((1, 3), np.nan)
    if len(y):
        _, own = np.unique(groups, return_inverse=True)
        sums = resampled_sums(columns, resamples, seed, own)
    tpr, tpr_before = divide(sums[:, 0], sums[:, 2]), divide(sums[:, 1], sums[:, 2])
    old_hits, old_alarms = int(called_before[is_ai].sum()), int(called_before[~is_ai].sum())
    n_tasks = len(set(groups[is_ai].tolist()))
    scores: dict[str, Any] = {
        "roc_auc": _auc(y, after),
        "roc_auc_unedited": _auc(y, before),
        "roc_auc_ai_edited": _auc(y, np.where(is_ai, after, before)),
        "roc_auc_human_edited": _auc(y, np.where(is_ai, before, after)),
        "tpr": hits / n_ai if n_ai else None,
        "tpr_interval": rate_interval(hits, n_ai, tpr, n_tasks),
        "tpr_unedited": old_hits / n_ai if n_ai else None,
        "tpr_loss": (old_hits - hits) / n_ai if n_ai else None,
        "tpr_loss_interval": interval(tpr_before - tpr) if n_ai else None,
        "fpr": alarms / n_human if n_human else None,
        "fpr_interval": list(clopper_pearson(alarms, n_human)) if n_human else None,
        "fpr_unedited": old_alarms / n_human if n_human else None,
    }
    return scores


def _auc(y: np.ndarray, scores: np.ndarray) -> float | None:
    if len(np.unique(y)) < 2:
        return None
    return plain(ranking_of(y, scores, np.zeros(len(y), dtype=bool)).counts(None)[4])
