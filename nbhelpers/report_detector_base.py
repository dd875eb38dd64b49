"""What a detector's report is made from: looks into a result, and its model beside floors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nbhelpers.formatting import share
from nbhelpers.metric_registry import DETECTOR_SCORES
from nbhelpers.report_facts import RunFacts, dig, score

FLOOR_NAMES = {
    "length": "length",
    "layout": "layout features",
    "tfidf": "TF-IDF",
    "raw_encoder": "raw encoder",
}
EDIT_NAMES = {
    "reformat": "reformatted",
    "strip_comments": "comments stripped",
    "rename": "renamed",
    "rename_reformat": "renamed and reformatted",
}
EDITED = EDIT_NAMES | {"strip_comments": "stripped of comments"}
MODEL = "this model"
NO_LEAD = (None, None, None)  # difference, low, high
AHEAD, LEVEL, BEHIND, ABOVE, NOT_ABOVE = "ahead", "level", "behind", "above", "not above"


def edges(data: Any, *keys: str) -> list[float] | None:
    """Return a nested interval, or None where an edge of it is undefined."""
    found = dig(data, *keys)
    return None if not found or None in found else found


def part(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a nested mapping, an empty one where there is none."""
    return dig(data, *keys) or {}


def rows(data: Any, *keys: str) -> list[Any]:
    """Return a nested list, an empty one where there is none."""
    return dig(data, *keys) or []


def splits(facts: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and scores of each scored split: test, held-out, unseen humans, valid, others."""
    scores = part(facts.data, "scores")
    known = [name for name in DETECTOR_SCORES.splits if name in scores]
    for name in [*known, *sorted(set(scores) - set(known))]:
        if part(scores, name, "metrics"):
            yield name, scores[name]


def split_said(facts: RunFacts, name: str) -> str:
    """Return a split in words: what was held out is named."""
    if name == "held_out":
        kept = facts.get("settings", "hold_out")
        return f"held-out data ({kept})" if kept else "held-out data"
    return name.replace("_", " ")


def with_edges(value: float | None, between: list[float] | None) -> str:
    """Write a score with its interval.

    >>> with_edges(0.5, [0.41, 0.6]), with_edges(None, None)
    ('0.500 (0.410 to 0.600)', 'undefined')
    """
    said = score(value)
    return (
        said if value is None or not between else f"{said} ({between[0]:.3f} to {between[1]:.3f})"
    )


def metric_said(scores: Mapping[str, Any], metric: str) -> str:
    """Write a score of a split with its interval."""
    return with_edges(dig(scores, "metrics", metric), edges(scores, "intervals", metric))


def rate_said(value: float | None, between: list[float] | None) -> str:
    """Write a rate in per cent with its interval.

    >>> rate_said(0.012, [0.006, 0.021])
    '1.2 % (0.6 % to 2.1 %)'
    """
    if value is None:
        return "undefined"
    return share(value) + (f" ({share(between[0])} to {share(between[1])})" if between else "")


def lead_said(lead: list[float | None] | None) -> str:
    """Write a difference with its interval, or nothing.

    >>> lead_said([0.02, 0.01, 0.03]), lead_said([0.02, None, None])
    ('+0.020 (+0.010 to +0.030)', '+0.020')
    """
    first, low, high = lead or NO_LEAD
    if first is None:
        return ""
    between = "" if low is None or high is None else f" ({signed(low)} to {signed(high)})"
    return signed(first) + between


def signed(value: float) -> str:
    """Write a difference with its sign; one that rounds to 0 has none.

    >>> signed(0.02), signed(-0.0002)
    ('+0.020', '0.000')
    """
    said = f"{value:+.3f}"
    return said if float(said) else "0.000"


class Beside(NamedTuple):
    """One metric of the model beside a floor: `standing` is one of the words above."""

    metric: str
    ours: float | None
    other: float
    lead: Any
    standing: str


def standing_of(ours: float | None, other: float | None, lead: Any) -> str:
    """Say how a score stands to a floor's: settled by the interval of the lead where there is one.

    >>> standing_of(0.9, 0.8, [0.1, 0.05, 0.15]), standing_of(0.9, 0.8, [0.1, -0.05, 0.2])
    ('ahead', 'level')
    >>> standing_of(0.9, 0.8, None)
    'above'
    """
    _, low, high = lead or NO_LEAD
    if low is not None and high is not None:
        return AHEAD if low > 0 else BEHIND if high < 0 else LEVEL
    if ours is None or other is None:
        return ""
    return ABOVE if ours > other else NOT_ABOVE


def floors_of(scores: Mapping[str, Any]) -> dict[str, list[Beside]]:
    """Return by floor how the model stands in each score that both have; best floor first.

    Frozen thresholds realise different false-positive rates, so TPRs are compared at one rate, and
    at the frozen thresholds only where nothing else is known.
    """
    found = {}
    for name, floor in part(scores, "floors").items():
        beside = []
        at_one_rate = dig(scores, "metrics", "tpr_at_fpr") is not None
        for metric in ("roc_auc", "tpr_at_fpr" if at_one_rate else "tpr"):
            ours, other = dig(scores, "metrics", metric), dig(floor, "metrics", metric)
            lead = dig(floor, "lead", metric)
            if ours is not None and other is not None:
                stands = standing_of(ours, other, lead)
                beside.append(Beside(metric, ours, other, lead, stands))
        if beside:
            found[name] = beside
    order = sorted(found, key=lambda name: [-each.other for each in found[name]])
    return {name: found[name] for name in order}


def is_beaten(beside: list[Beside]) -> bool:
    """Say whether the model is ahead of a floor in every metric that was compared."""
    return all(each.standing == AHEAD for each in beside)
