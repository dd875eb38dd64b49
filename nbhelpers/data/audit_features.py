"""How well each single feature of a program tells the label: raw, and in the canonical form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .audit_rows import CLASSES, Row
from .canonical import canonical
from .layout_features import CHARACTERS_READ, FEATURES, layout_features

if TYPE_CHECKING:
    import numpy as np

MORE = (
    "package_line",
    "import_lines",
    "carriage_returns",
    "non_ascii_share",
    "unseen_characters",
    "code_fences",
)
SLICE_ROWS = 30  # of each class, below which the feature is not measured in a language

_PACKAGE = re.compile(r"^[ \t]*(?:package|namespace)[ \t]+[\w.]+", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*(?:import|from|using|#[ \t]*include|require)\b", re.MULTILINE)
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff]")


def more_features(code: str) -> dict[str, float]:
    """Return the numbers named in `MORE`: counts, but for `package_line` (0 or 1) and the share."""
    text = code[:CHARACTERS_READ]
    ascii_length = len(text.encode("ascii", "ignore"))
    values = (
        bool(_PACKAGE.search(text)),
        len(_IMPORT.findall(text)),
        text.count("\r"),
        1 - ascii_length / len(text) if text else 0.0,
        0 if ascii_length == len(text) and text.isprintable() else len(_UNSEEN.findall(text)),
        text.count("```"),
    )
    return dict(zip(MORE, map(float, values), strict=True))


def feature_table(rows: Sequence[Row], *, form: str) -> list[dict[str, Any]]:
    """Return one record per feature, the most telling first, for labelled rows of both classes.

    `raw` and `canonical` are areas under the ROC curve, turned so that they are 0.5 or more;
    `higher_in` is the class with the higher raw values. `slice_raw` and `slice_canonical` are of
    the language (`slice`) in which the canonical area is largest; `slice_share` is the share of
    rows in languages where both pass 0.99. `human` and `ai` are mean raw values.
    """
    import numpy as np

    raw, clean = _matrices(rows, form)
    is_ai = np.array([row.label == "ai" for row in rows])
    languages = _languages(rows, is_ai)
    pooled = [aucs(is_ai, values) for values in (raw, clean)]
    parts = {
        name: (aucs(is_ai[at], raw[at]), aucs(is_ai[at], clean[at]))
        for name, at in languages.items()
    }
    means = [raw[is_ai == (label == "ai")].mean(axis=0) for label in CLASSES]
    found = []
    for at, name in enumerate((*FEATURES, *MORE)):
        in_raw, in_clean = (float(area[at]) for area in pooled)
        record = {
            "feature": name,
            "raw": round(max(in_raw, 1 - in_raw), 4),
            "canonical": round(max(in_clean, 1 - in_clean), 4),
            "higher_in": "" if in_raw == 0.5 else CLASSES[in_raw > 0.5],
            "human": round(float(means[0][at]), 4),
            "ai": round(float(means[1][at]), 4),
        }
        found.append(record | _slice(at, parts, languages, len(rows)))
    return sorted(found, key=lambda one: -max(one["canonical"], one["slice_canonical"] or 0))


def _matrices(rows: Sequence[Row], form: str) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    raw, clean = [], []
    for row in rows:
        raw.append(_values(row.code))
        other = canonical(row.code, form)
        clean.append(raw[-1] if other == row.code else _values(other))
    return np.array(raw), np.array(clean)


def _values(code: str) -> list[float]:
    return [*layout_features(code).values(), *more_features(code).values()]


def _languages(rows: Sequence[Row], is_ai: np.ndarray) -> dict[str, np.ndarray]:
    """Row numbers of each language that has enough rows of both classes."""
    import numpy as np

    of: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        of.setdefault(row.language, []).append(at)
    found = {name: np.array(places) for name, places in of.items()}
    return {
        name: at
        for name, at in found.items()
        if SLICE_ROWS <= is_ai[at].sum() <= len(at) - SLICE_ROWS
    }


def _slice(at: int, parts: Any, languages: Any, n: int) -> dict[str, Any]:
    if not parts:
        return {"slice": "", "slice_raw": None, "slice_canonical": None, "slice_share": 0.0}
    areas = {
        name: tuple(float(max(part[at], 1 - part[at])) for part in both)
        for name, both in parts.items()
    }
    worst = max(areas, key=lambda name: areas[name][1])
    telling = sum(len(languages[name]) for name, both in areas.items() if min(both) > 0.99)
    return {
        "slice": worst,
        "slice_raw": round(areas[worst][0], 4),
        "slice_canonical": round(areas[worst][1], 4),
        "slice_share": round(telling / n, 4),
    }


def aucs(is_ai: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of each column: the chance that an AI row lies above a human one.

    Args:
        is_ai: (rows,) bool, both classes present.
        values: (rows, columns); equal values count one half.

    Source: Mann and Whitney's U over the number of pairs.
    """
    import numpy as np

    n_ai, n_human = int(is_ai.sum()), int((~is_ai).sum())
    sums = [float(_ranks(column)[is_ai].sum()) for column in values.T]
    return (np.array(sums) - n_ai * (n_ai + 1) / 2) / (n_ai * n_human)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values at their mean."""
    import numpy as np

    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[at]
