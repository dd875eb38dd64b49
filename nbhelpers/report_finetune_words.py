"""The lines of a fine-tuning's report for a terminal, and the sentences on what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import count, share, size
from nbhelpers.metric_registry import TITLES, written
from nbhelpers.report_facts import RunFacts, dig, known
from nbhelpers.report_finetune_tables import MFU, not_evaluated

if TYPE_CHECKING:
    import pandas as pd


def edges_of(metric: str, edges: Any) -> str:
    """Write an interval with the decimals of its score, or nothing where there is none.

    >>> edges_of("bleu", [12.04, 17.4]), edges_of("pass@1", None)
    ('12.0 to 17.4', '')
    """
    if not edges:
        return ""
    low, high = (known(edge) for edge in edges)
    return (
        "" if low is None or high is None else f"{written(metric, low)} to {written(metric, high)}"
    )


def with_edges(metric: str, scores: Mapping[str, Any]) -> str:
    """Write a score with its interval in brackets.

    >>> with_edges("bleu", {"metrics": {"bleu": 15.0}, "intervals": {"bleu": [12, 17.5]}})
    '15.0 (12.0 to 17.5)'
    """
    edges = edges_of(metric, dig(scores, "intervals", metric))
    return written(metric, dig(scores, "metrics", metric)) + (f" ({edges})" if edges else "")


def score_lines(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the table of scores as lines, and which splits were not evaluated."""
    missing = not_evaluated(facts) if facts.is_complete or facts.status == "finished" else {}
    lines = [""] if "scores" in tables or missing else []
    if "scores" in tables:
        table = tables["scores"]
        for split in table["split"].unique():
            rows = table[table["split"] == split].to_dict("records")
            said = f"{TITLES.get(split, split)}, {_samples(split, rows[0]['samples'])}"
            lines.append(f"{said:<30}{'score':<9}95 % interval over samples")
            for row in rows:
                name, value = row["metric"], known(row["value"])
                found = edges_of(name, [row["low"], row["high"]])
                title = TITLES.get(name, name)
                lines.append(f"  {title:<28}{written(name, value):<9}{found}".rstrip())
            lines.append("")
    lines += [f"{TITLES.get(split, split)}: {why}." for split, why in missing.items()]
    return lines


def _samples(split: str, number: Any) -> str:
    unit = "samples" if split == "test" else "problems"
    return f"{count(known(number))} {unit}" if known(number) is not None else unit


def cost_lines(facts: RunFacts) -> list[str]:
    """Return the sentences on speed, energy and the GPU's memory after the run."""
    return [said for said in (speed_said(facts), energy_said(facts), baseline_said(facts)) if said]


def speed_said(facts: RunFacts) -> str:
    """Return useful and raw speed of training, and MFU with its convention."""
    speed = facts.get("throughput") or {}
    useful, raw = speed.get("useful_tokens_per_s"), speed.get("padded_tokens_per_s")
    if useful is None:
        return ""
    said = f"Speed: {count(useful)} useful tokens/s"
    said += f" of {count(raw)} with padding" if raw is not None else ""
    mfu = speed.get("mfu_4n")
    said = f"{said}." if mfu is None else f"{said}; MFU {share(mfu)} {MFU}."
    return said + (" Compiling is counted." if facts.get("model", "compiled") else "")


def energy_said(facts: RunFacts) -> str:
    """Return the energy of the GPU, where NVML told it."""
    joules, watts = facts.get("energy", "joules"), facts.get("energy", "watts_mean")
    if joules is None:
        return ""
    mean = f" at {watts:.0f} W on average" if watts is not None else ""
    return f"Energy of training: {joules / 3600:.1f} Wh{mean}, by NVML."


def baseline_said(facts: RunFacts) -> str:
    """Return whether the GPU's memory came back to what it was before the run."""
    before, after = (facts.get("gpu_baseline", f"{when}_bytes") for when in ("before", "after"))
    if before is None or after is None:
        return ""
    more = f"{size(after - before)} more than" if after > before else "no more than"
    return f"The GPU's memory in use after the run: {size(after)}, {more} before it."
