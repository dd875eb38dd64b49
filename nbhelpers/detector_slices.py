"""The scores of a detector part by part: where it works, and where it fails worst."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nbhelpers.detector_metrics import (
    divide,
    plain,
    ranking_of,
    rate_interval,
    resampled_sums,
)
from nbhelpers.detector_points import OperatingPoint
from nbhelpers.detector_promises import clopper_pearson
from nbhelpers.detector_rows import checked_rows, task_groups
from nbhelpers.errors import DataError

if TYPE_CHECKING:
    import numpy as np

SLICES = ("language", "lines", "generator", "source", "language x lines")
MIN_ROWS = 30  # of the class that a rate is about: fewer cannot be called the worst
_LINES = ((10, "<10"), (25, "10-24"), (50, "25-49"))


class Row(Protocol):
    """What a row must offer; `data.detection.CodeRow` does."""

    @property
    def code(self) -> str: ...  # noqa: D102
    @property
    def language(self) -> str: ...  # noqa: D102
    @property
    def task(self) -> str: ...  # noqa: D102
    @property
    def generator(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102


def slice_scores(
    rows: Sequence[Row],
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    point: OperatingPoint,
    *,
    resamples: int,
    seed: int,
    min_rows: int = MIN_ROWS,
) -> dict[str, Any]:
    """Return `slices`, the `worst` of them and the `macro` mean of each kind.

    A generator's AI rows stand against all humans of the same languages. The TPR's interval comes
    from resampling tasks, the FPR's is Clopper-Pearson. The worst slice and the macro mean count
    only slices with at least `min_rows` rows of the class that the rate is about (of both for the
    AUC); without one they are None.

    Args:
        rows: (n,) the programs; rows without a value are in no slice of that kind.
        labels: (n,) "human" or "ai" (or 0 and 1).
        logits: (n,) ai minus human.
        point: Frozen before.
        resamples: Number of resamples.
        seed: Of the resamples.
        min_rows: See above.

    Raises:
        DataError: There are no rows, or lengths differ.
    """
    import numpy as np

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
        sums = resampled_sums(groups, np.stack(columns, axis=1), resamples, seed)
    slices = []
    for at, (kind, value, inside) in enumerate(members):
        spread = divide(sums[:, 2 * at], sums[:, 2 * at + 1])
        slices.append({"by": kind, "value": value} | _slice(inside, y, z, called, groups, spread))
    return {
        "slices": slices,
        "worst": _worst(slices, min_rows),
        "macro": _macro(slices, min_rows),
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
    import numpy as np

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


def _counted(slices: list[dict[str, Any]], name: str, min_rows: int) -> list[dict[str, Any]]:
    needed = {"tpr": ("n_ai",), "fpr": ("n_human",), "roc_auc": ("n_ai", "n_human")}[name]
    return [each for each in slices if all(each[count] >= min_rows for count in needed)]


def _worst(slices: list[dict[str, Any]], min_rows: int) -> dict[str, Any]:
    """Return the slice of the lowest TPR, highest FPR and lowest AUC.

    Of equal rates the one counts whose interval reaches further: a rate of 0 in few programs may
    be the worst, one in many is not.
    """
    found: dict[str, Any] = {}
    for name, sign, edge in (("tpr", 1, 0), ("fpr", -1, 1), ("roc_auc", 1, 0)):

        def badness(each: dict[str, Any], name: str = name, sign: int = sign, edge: int = edge):
            between = each.get(f"{name}_interval")
            return sign * each[name], sign * (between or [0.0, 1.0])[edge]

        found[name] = min(_counted(slices, name, min_rows), key=badness, default=None)
    return found


def _macro(slices: list[dict[str, Any]], min_rows: int) -> dict[str, Mapping[str, float | None]]:
    found = {}
    for kind in SLICES:
        means = {}
        for name in ("roc_auc", "tpr", "fpr"):
            of_kind = [each for each in slices if each["by"] == kind]
            counted = [each[name] for each in _counted(of_kind, name, min_rows)]
            means[name] = sum(counted) / len(counted) if counted else None
        found[kind] = means
    return found
