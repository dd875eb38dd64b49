"""The texts of a report beside its findings: problems, memory, citation, and the terminal text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING

from nbhelpers.common.formatting import count, duration, size
from nbhelpers.presets.jobs import CLONES, JOBS, resolve
from nbhelpers.reports.facts import RunFacts, known, shown
from nbhelpers.reports.tables import memory_notes, time_said

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100
WEIGHTS = ("model.", "pytorch_model.", "adapter_model.")  # how a file of weights begins


def findings(facts: RunFacts) -> ModuleType:
    """Return what concludes from a run's scores, the module that its job names.

    Each of these modules has the same functions of a run's facts: `headline`, `verdicts`,
    `details`, `glossary`, `cautions` and `alarms` (what a reader must not miss) in sentences;
    `tables` (a maker by name), `figures` and `captions`; `score_lines` and `cost_lines` for a
    terminal; `sections`, the HTML below the head.
    """
    return resolve(JOBS.get(facts.job, CLONES).report)


def problems(facts: RunFacts) -> list[str]:
    """Return why a run has no result: its last error with the fix, or that it was stopped."""
    if facts.is_complete or facts.status == "finished":
        return []
    lines = []
    for event in facts.of_type("error")[-1:]:
        lines.append(f"{event.get('kind', 'Error')}: {event.get('message', '')}")
        lines += [f"Fix: {event['fix']}"] if event.get("fix") else []
    for event in facts.of_type("stopped")[-1:]:
        lines.append(
            f"Stopped at step {event.get('step')}; launching it again continues from there."
        )
    return lines


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
        "adapter": facts.adapter or None,
        "parameters": None if parameters is None else count(parameters),
        "weights": _weights(facts),
        "tokenizer": model.get("tokenizer"),
        "data flow": _data_flow(facts),
        "checkpoint": facts.get("checkpoint"),
        "data": data.get("source"),
        "data revision": data.get("revision"),
        "data fingerprint": data.get("fingerprint"),
        "data licence": data.get("licence"),
        "template": data.get("template"),
        "canonical form": data.get("canonical"),
        "data note": data.get("note"),
        "versions": ", ".join(
            f"{name} {version}"
            for name, version in versions.items()
            if name not in _of_others(facts.job)
        ),
    }
    return {name: str(value) for name, value in rows.items() if value not in (None, "", {})}


def _of_others(job: str) -> set[str]:
    """Return the libraries that other jobs load and this one does not."""
    used = {name: {*spec.libraries, *spec.score_libraries} for name, spec in JOBS.items()}
    return set().union(*used.values()) - used.get(job, used[CLONES.name])


def _data_flow(facts: RunFacts) -> str | None:
    """Say how the data flow was read, and of how many functions there is none."""
    flow = facts.get("model", "data_flow")
    if not flow:
        return None
    length, mean = flow.get("data_flow_length"), flow.get("mean_nodes")
    if not length:
        return "off; code split at the leaves of its syntax tree"
    nodes = f"{mean:.0f} nodes per function" if mean is not None else "nodes"
    none, how = flow.get("functions_without_nodes"), flow.get("grammar_compat")
    return f"{nodes} on average, {none} functions without any; room for {length}; {how} grammar"


def _weights(facts: RunFacts) -> str | None:
    """Say where the weights came from before this run changed them."""
    if facts.is_evaluation:
        checkpoint = PurePath(str(facts.get("checkpoint") or "unknown"))
        is_in_folder = checkpoint.name.startswith(WEIGHTS) and checkpoint.parent.name
        return f"from checkpoint {checkpoint.parent.name if is_in_folder else checkpoint.name}"
    steps = facts.get("settings", "pretrain_steps")
    spec = JOBS.get(facts.job, CLONES)
    if facts.get("settings", "model") in spec.models.embedded:
        if not steps:
            return "random"
        name, rows = spec.pretraining
        text = f"random, pre-trained for {count(steps)} {name}"
        return f"{text} on {'the sample' if facts.is_sample else rows}" if rows else text
    return {True: "random", False: "pretrained"}.get(facts.get("model", "random_weights"))


def memory_sentence(tables: Mapping[str, pd.DataFrame]) -> str:
    """Return predicted and measured memory side by side, with the error."""
    if "memory" not in tables:
        return "Memory: neither predicted nor measured."
    row = {name: known(value) for name, value in tables["memory"].iloc[0].to_dict().items()}
    predicted, measured = row["predicted_bytes"], row["measured_bytes"]
    text = "no prediction" if predicted is None else f"predicted {size(predicted)}"
    text += f", measured {size(measured)}" if measured is not None else ", not measured"
    text += f" ({row['measured']})" if row["measured"] and measured is not None else ""
    error, budget = row["error_percent"], row["budget_bytes"]
    text += f", error {error:+.1f} %." if error is not None else "."
    if budget:
        text += f" The budget before the run, for the longest possible batch: {size(budget)}."
    return f"Memory: {text}"


def as_text(facts: RunFacts, tables: Mapping[str, pd.DataFrame], path: str) -> str:
    """Return the report for a terminal: at most 100 columns, but for the path."""
    total, trained = facts.get("timing", "total_s"), facts.get("timing", "train_s")
    part = f", of which training {duration(trained)}" if trained else ""
    job_report = findings(facts)
    after = [*job_report.verdicts(facts), job_report.details(facts), *_target_lines(tables)]
    if "memory" in tables or not facts.is_evaluation:
        after += [memory_sentence(tables), *memory_notes(facts)]
    after += [f"Time: {duration(total)}{part}.", *time_said(facts)] if total is not None else []
    lines = wrapped([job_report.headline(facts), *job_report.alarms(facts), *problems(facts)])
    lines, after = (
        lines + job_report.score_lines(facts, tables),
        after + job_report.cost_lines(facts),
    )
    after += [f"Note: {caution}" for caution in job_report.cautions(facts)]
    return shown("\n".join([*lines, *wrapped(after), f"Report: {path}"]) + "\n")


def wrapped(sentences: list[str]) -> list[str]:
    """Return sentences as lines of at most `WIDTH` columns, each sentence on a line of its own."""
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH)]


def _target_lines(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    if "targets" not in tables:
        return []
    lines = []
    for row in tables["targets"].to_dict("records"):
        value = known(row["value"])
        verdict = "passed" if row["passed"] else "missed"
        measured = row["note"] or "undefined" if value is None else f"{value:.4f}"
        op = row.get("op", ">=")
        lines.append(f"Target {row['metric']} {op} {row['target']:g}: {verdict} ({measured}).")
    return lines
