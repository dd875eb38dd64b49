"""What a report says of the similarity space: retrieval of the same task, and pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbhelpers.formatting import count
from nbhelpers.report_detector_base import (
    AHEAD,
    BEHIND,
    FLOOR_NAMES,
    MODEL,
    edges,
    lead_said,
    part,
    rows,
    standing_of,
    with_edges,
)
from nbhelpers.report_facts import RunFacts, dig, score

PAIR_SCORES = ("roc_auc", "average_precision", "accuracy", "f1")


def similarity_headline(facts: RunFacts) -> str:
    """Return the finding of a run that has only a similarity space, in one sentence."""
    main = _main_retrieval(facts)
    return _retrieval_said(main) if main is not None else _pairs_said(facts)


def similarity_verdicts(facts: RunFacts) -> list[str]:
    """Return a line on retrieval, one per crossing of languages, and one on pairs."""
    main = _main_retrieval(facts)
    said = [f"Similarity: {_retrieval_said(main)}"] if main is not None else []
    crossings = [row for row in rows(facts.data, "similarity", "retrieval") if row is not main]
    for name in dict.fromkeys(name for row in crossings for name in part(row, "floors")):
        said += _crossings_said(name, crossings)
    pairs = _pairs_said(facts)
    return said + ([pairs] if pairs else [])


def _main_retrieval(facts: RunFacts) -> Mapping[str, Any] | None:
    """Return the row of all languages on test, else the first one."""
    found = rows(facts.data, "similarity", "retrieval")
    whole = [row for row in found if row.get("query") == "all" and row.get("pool") == "all"]
    on_test = [row for row in whole if row.get("split") == "test"]
    return next(iter([*on_test, *whole, *found]), None)


def crossing(row: Mapping[str, Any]) -> str:
    """Write which queries look into which pool."""
    query, pool = (row.get(key) or "all" for key in ("query", "pool"))
    return "all languages" if query == pool == "all" else f"{query} to {pool}"


def _retrieval_said(row: Mapping[str, Any]) -> str:
    said = f"MRR {with_edges(dig(row, 'mrr'), edges(row, 'mrr_interval'))}, MAP@R "
    said += with_edges(dig(row, "map_at_r"), edges(row, "map_at_r_interval"))
    said += f" for {count(dig(row, 'n_queries'))} queries in a pool of "
    said += f"{count(dig(row, 'pool_size'))} programs ({row.get('split', 'test')}, {crossing(row)})"
    floors = [_floor_said(row, name) for name in part(row, "floors")]
    return "; ".join([said, *filter(None, floors)]) + "."


def _floor_said(row: Mapping[str, Any], name: str) -> str:
    floor = part(row, "floors", name)
    other, lead = dig(floor, "mrr"), floor.get("lead")
    stands = standing_of(dig(row, "mrr"), other, lead)
    if other is None or not stands:
        return ""
    verb = "beats" if stands == AHEAD else "does not beat"
    by = lead_said(lead)
    return f"it {verb} {FLOOR_NAMES.get(name, name)} (MRR {score(other)}" + (
        f", lead {by})" if by else ")"
    )


def _crossings_said(name: str, crossings: list[Mapping[str, Any]]) -> Iterator[str]:
    """Say in how many crossings a floor is beaten, and name those where it is not."""
    stands = {}
    for row in crossings:
        floor = part(row, "floors", name)
        standing = standing_of(dig(row, "mrr"), dig(floor, "mrr"), floor.get("lead"))
        if standing:
            stands[f"{crossing(row)} ({row.get('split', 'test')})"] = standing
    if not stands:
        return
    ahead = sum(standing == AHEAD for standing in stands.values())
    said = f"Against {FLOOR_NAMES.get(name, name)} by MRR it is ahead in {ahead} of {len(stands)} "
    said += "further retrievals"
    rest = [f"{where} {standing}" for where, standing in stands.items() if standing != AHEAD]
    rest.sort(key=lambda text: not text.endswith(BEHIND))
    shown = "; ".join(rest[:5]) + ("; and more" if len(rest) > 5 else "")
    yield f"{said}; not in: {shown}." if rest else f"{said}."


def _pairs_said(facts: RunFacts) -> str:
    pairs = part(facts.data, "similarity", "pairs")
    area = dig(pairs, "roc_auc")
    if area is None:
        return ""
    said = "Pairs of the same task against hard negatives: ROC-AUC "
    said += with_edges(area, edges(pairs, "roc_auc_interval"))
    for key, title in (("accuracy", "accuracy"), ("f1", "F1")):
        value = dig(pairs, key)
        said += f", {title} {score(value)}" if value is not None else ""
    for name, floor in part(pairs, "floors").items():
        other = dig(floor, "roc_auc")
        if other is not None:
            lead = lead_said(_pair_lead(floor))
            title = FLOOR_NAMES.get(name, name)
            said += f"; {title} {score(other)}" + (f", lead {lead}" if lead else "")
    return f"{said}."


def _pair_lead(floor: Any) -> Any:
    """Return the lead in ROC-AUC, which stands alone or by metric."""
    lead = dig(floor, "lead")
    return dig(lead, "roc_auc") if isinstance(lead, Mapping) else lead


def retrieval_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per retrieval and scorer, floors below the model."""
    for row in rows(facts.data, "similarity", "retrieval"):
        base = {"split": str(row.get("split") or ""), "query": str(row.get("query") or "")}
        base |= {"pool": str(row.get("pool") or ""), "queries": dig(row, "n_queries")}
        base["pool size"] = dig(row, "pool_size")
        for name, values in {MODEL: row, **part(row, "floors")}.items():
            found = {"scorer": FLOOR_NAMES.get(name, name), "mrr": dig(values, "mrr")}
            found |= {"mrr interval": edges(values, "mrr_interval")}
            found |= {"map_at_r": dig(values, "map_at_r")}
            found |= {"map_at_r interval": edges(values, "map_at_r_interval")}
            lead = None if name == MODEL else dig(values, "lead")
            yield base | found | {"lead": lead, "note": _note(values)}


def pair_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per scorer of pairs."""
    pairs = part(facts.data, "similarity", "pairs")
    if dig(pairs, "n_pairs") is None and dig(pairs, "roc_auc") is None:
        return
    for name, values in {MODEL: pairs, **part(pairs, "floors")}.items():
        found: dict[str, Any] = {"scorer": FLOOR_NAMES.get(name, name)}
        found |= {metric: dig(values, metric) for metric in PAIR_SCORES}
        found |= {"roc_auc interval": edges(values, "roc_auc_interval")}
        found |= {"threshold": dig(values, "threshold")}
        lead = None if name == MODEL else _pair_lead(values)
        yield found | {"lead": lead, "note": _note(values)}


def _note(values: Any) -> str:
    return dig(values, "skipped") or ""
