"""The sentences of a report: what was found, whether it beats the floors, and what to doubt."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.report_facts import (
    RunFacts,
    count,
    dig,
    duration,
    interval,
    known,
    score,
    share,
    size,
)
from nbhelpers.report_tables import FLOOR_NAMES, splits

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100
FEW_FUNCTIONS = 100
CRITIQUES = (
    "Two critiques belong beside any score on BigCloneBench. Krinke and Ragkhitwetsagul "
    "(arXiv 2505.04311) checked 406 of its weak pairs by hand and found 93 % mislabelled; "
    "Sonnekalb et al. (arXiv 2208.12588) show that F1 falls clearly on functionality that was not "
    "in training."
)


def headline(facts: RunFacts) -> str:
    """Return the main finding in one or two sentences, or where the run stands."""
    main = _main_split(facts)
    if main is None:
        return _standing(facts)
    name, scores = main
    given = dig(scores, "orders", "given") or {}
    edges = interval(dig(scores, "intervals", "f1"))
    parts = [f"F1 {score(given.get('f1'))} on {name} (binary"]
    parts.append(f", 95 % interval {edges})" if edges else ")")
    if scores.get("n_pairs") is not None:
        parts.append(f": {count(scores['n_pairs'])} pairs")
        parts.append(f" of {count(scores.get('n_functions'))} functions")
        parts.append(f", {share(scores.get('prior'))} clones")
    return "".join(parts) + "." + _at_named_priors(scores) + _threshold(facts)


def _main_split(facts: RunFacts) -> tuple[str, Mapping[str, Any]] | None:
    found = dict(splits(facts))
    name = "test" if "test" in found else next(iter(found), None)
    return None if name is None else (name, found[name])


def _at_named_priors(scores: Mapping[str, Any]) -> str:
    said = ""
    for name, values in (scores.get("at_prior") or {}).items():
        prior = dig(values, "prior")
        if prior is None or abs(prior - (scores.get("prior") or 0)) < 0.005:
            continue
        f1 = score(dig(values, "f1"))
        said += f" At a prior of {share(prior)} clones ({name}) F1 would be {f1}."
    return said


def _threshold(facts: RunFacts) -> str:
    value, chosen = facts.get("threshold", "value"), facts.get("threshold", "chosen_on")
    if value is None:
        return ""
    if chosen == "valid":
        return f" The threshold {value:.4g} was chosen on valid and frozen for test."
    return f" The threshold {value:.4g} was not chosen on valid."


def _standing(facts: RunFacts) -> str:
    training = facts.get("training") or {}
    phases = facts.of_type("phase")
    said = f"No scores yet: the run is {facts.status}"
    if phases:
        said += f", last seen in phase {phases[-1].get('name')}"
    if training.get("optimizer_steps"):
        said += f" at optimizer step {training['optimizer_steps']}"
        said += f" of {training['total_steps']}" if training.get("total_steps") else ""
        said += f", loss {score(training.get('last_loss'))}"
    return said + "."


def problems(facts: RunFacts) -> list[str]:
    """Return why a run has no result: its last error with the fix, or that it was stopped."""
    if facts.is_complete:
        return []
    said = []
    for event in facts.of_type("error")[-1:]:
        said.append(f"{event.get('kind', 'Error')}: {event.get('message', '')}")
        said += [f"Fix: {event['fix']}"] if event.get("fix") else []
    for event in facts.of_type("stopped")[-1:]:
        said.append(
            f"Stopped at step {event.get('step')}; launching it again continues from there."
        )
    return said


def verdicts(facts: RunFacts) -> list[str]:
    """Return one plain sentence per test split: does the model beat the cheap scorers?"""
    return [
        f"On {name}: {_verdict(scores)}"
        for name, scores in splits(facts)
        if scores.get("floors") and (name.startswith("test") or not facts.get("scores", "test"))
    ]


def _verdict(scores: Mapping[str, Any]) -> str:
    ours = dig(scores, "orders", "given", "f1")
    floors = {k: v for k, v in scores["floors"].items() if dig(v, "f1") is not None}
    if ours is None or not floors:
        return "there is nothing to compare."
    order = sorted(floors, key=lambda name: (name != "tfidf_mlp", -floors[name]["f1"]))
    said = [_against(scores, ours, name, floors[name]) for name in order]
    return "; ".join(said) + "."


def _against(scores: Mapping[str, Any], ours: float, name: str, floor: Mapping[str, Any]) -> str:
    """Say "beats" only where the evidence excludes chance, "ahead" where it does not."""
    difference = ours - floor["f1"]
    title = f"{FLOOR_NAMES.get(name, name)} (F1 {score(floor['f1'])})"
    is_settled, evidence = _evidence(scores, floor)
    if difference <= 0:
        return f"does not beat {title}: {difference:+.3f}{evidence}"
    if is_settled is False:
        return f"is ahead of {title} by {difference:.3f}, which may be chance{evidence}"
    return f"beats {title} by {difference:.3f}{evidence}"


def _evidence(scores: Mapping[str, Any], floor: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Return whether the test set settles the difference (None: unknown), and the words for it."""
    lead = dig(floor, "lead", "interval")
    if interval(lead):
        words = f" (95 % interval of the difference {lead[0]:+.3f} to {lead[1]:+.3f})"
        return lead[0] > 0 or lead[1] < 0, words
    ours, other = dig(scores, "intervals", "f1"), dig(floor, "intervals", "f1")
    if interval(ours) and interval(other):
        apart = max(ours[0], other[0]) > min(ours[1], other[1])
        return apart, f" (their 95 % intervals {'do not overlap' if apart else 'overlap'})"
    if interval(ours):
        inside = ours[0] <= floor["f1"] <= ours[1]
        return not inside, f" (which is {'inside' if inside else 'outside'} our 95 % interval)"
    return None, ""


def cautions(facts: RunFacts) -> list[str]:
    """Return what a reader should hold against the scores."""
    said = []
    for name, scores in splits(facts):
        few = scores.get("n_functions")
        if few is not None and few < FEW_FUNCTIONS:
            said.append(f"The {name} split has only {few} functions: its intervals are rough.")
    if facts.get("model", "random_weights") and facts.get("settings", "model") != "smoke":
        said.append("The model started from random weights, not from pretrained ones.")
    if is_bigclonebench(facts):
        said.append(CRITIQUES)
    return said + [f"Warning: {warning}" for warning in facts.get("warnings") or []]


def is_bigclonebench(facts: RunFacts) -> bool:
    """Say whether the data is BigCloneBench, by its source or by what was asked for."""
    names = (facts.get("data", "source"), facts.get("settings", "data"))
    spelled = [str(name).lower().replace("_", "").replace("-", "") for name in names if name]
    return any("bigclonebench" in name for name in spelled)


def citation(facts: RunFacts) -> dict[str, str]:
    """Return everything needed to name this result and to repeat it."""
    data, model = facts.get("data") or {}, facts.get("model") or {}
    versions = facts.get("versions") or {}
    parameters = model.get("parameters")
    rows = {
        "run": facts.get("run_id") or facts.run.id,
        "preset": facts.get("preset"),
        "command": facts.get("command"),
        "git commit": facts.get("git_commit"),
        "seed": facts.get("seed"),
        "model": model.get("name"),
        "model revision": model.get("revision"),
        "architecture": model.get("architecture"),
        "parameters": None if parameters is None else count(parameters),
        "weights": {True: "random", False: "pretrained"}.get(model.get("random_weights")),
        "tokenizer": model.get("tokenizer"),
        "checkpoint": facts.get("checkpoint"),
        "data": data.get("source"),
        "data revision": data.get("revision"),
        "data fingerprint": data.get("fingerprint"),
        "data licence": data.get("licence"),
        "data note": data.get("note"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: str(value) for name, value in rows.items() if value not in (None, "", {})}


def memory_sentence(tables: Mapping[str, pd.DataFrame]) -> str:
    """Return predicted and measured memory side by side, with the error."""
    if "memory" not in tables:
        return "Memory: neither predicted nor measured."
    row = {name: known(value) for name, value in tables["memory"].iloc[0].to_dict().items()}
    predicted, measured = row["predicted_bytes"], row["measured_bytes"]
    said = "no prediction" if predicted is None else f"predicted {size(predicted)}"
    said += f", measured {size(measured)}" if measured is not None else ", not measured"
    said += f" ({row['measured']})" if row["measured"] and measured is not None else ""
    error, budget = row["error_percent"], row["budget_bytes"]
    said += f", error {error:+.1f} %." if error is not None else "."
    if budget:
        said += f" The budget before the run, for the longest possible batch: {size(budget)}."
    return f"Memory: {said}"


def as_text(facts: RunFacts, tables: Mapping[str, pd.DataFrame], path: str) -> str:
    """Return the report for a terminal: at most 100 columns, but for the path."""
    total, trained = facts.get("timing", "total_s"), facts.get("timing", "train_s")
    part = f", of which training {duration(trained)}" if trained else ""
    after = [*verdicts(facts), *_target_lines(tables), memory_sentence(tables)]
    after += [f"Time: {duration(total)}{part}."] if total is not None else []
    after += [f"Note: {caution}" for caution in cautions(facts)]
    lines = [*_wrapped([headline(facts), *problems(facts)]), *_score_lines(tables)]
    return "\n".join([*lines, *_wrapped(after), f"Report: {path}"]) + "\n"


def _wrapped(sentences: list[str]) -> list[str]:
    return [line for said in sentences for line in textwrap.wrap(said, WIDTH)]


def _score_lines(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    if "scores" not in tables:
        return []
    table, lines = tables["scores"], [""]
    for split in table["split"].unique():
        lines.append(f"{split:<19}score    95 % interval over functions")
        for row in table[table["split"] == split].to_dict("records"):
            name = f"{row['metric']} {row['average']}".strip()
            value, low, high = (known(row[key]) for key in ("value", "low", "high"))
            lines.append(f"  {name:<17}{score(value):<9}{interval([low, high])}".rstrip())
        lines.append("")
    return lines


def _target_lines(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    if "targets" not in tables:
        return []
    lines = []
    for row in tables["targets"].to_dict("records"):
        value = known(row["value"])
        said = "passed" if row["passed"] else "missed"
        measured = row["note"] or "undefined" if value is None else f"{value:.4f}"
        lines.append(f"Target {row['metric']} >= {row['target']:g}: {said} ({measured}).")
    return lines
