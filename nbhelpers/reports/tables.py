"""Tables that every report has: scores, memory by phase, time by phase, data and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.time import TimeBudget, compare_time
from nbhelpers.common.formatting import duration, size
from nbhelpers.errors import ConfigError
from nbhelpers.metrics.registry import CLONES_SCORES, ORDERS
from nbhelpers.presets.jobs import CLONES, JOBS, resolve
from nbhelpers.presets.targets import check_targets, scores_of
from nbhelpers.reports.facts import RunFacts, dig, known
from nbhelpers.reports.page import figure, paragraph, table_of

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------
# The tables of a report on memory beside the peak: by phase, what others held, what was alive.


PHASES_CAPTION = (
    "Peak memory of each phase: predicted, where there is a prediction, beside measured."
)
HELD = {
    "other_processes_bytes": ("held by other processes", "before the run began"),
    "earlier_bytes": ("left over from earlier cells", "by the notebook's process"),
    "context_bytes": ("CUDA context", "outside the allocator, measured after the first steps"),
}


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)


def phases_table(facts: RunFacts) -> pd.DataFrame:
    """Return predicted and measured peak bytes of each phase, then of what was reserved."""
    keys = ("predicted_bytes", "measured_bytes", "error_percent")
    rows = [
        {"phase": row["phase"]} | {key: row.get(key) for key in keys}
        for row in facts.get("memory", "phases") or []
        if row.get("phase") and row.get("measured_bytes")
    ]
    reserved = facts.get("memory", "reserved") or {}
    if rows and reserved.get("measured_bytes"):
        rows.append({"phase": "reserved, whole run"} | {key: reserved.get(key) for key in keys})
    return _frame(rows)


def left_over_table(facts: RunFacts) -> pd.DataFrame:
    """Return what the card held beside the tensors of the run."""
    left_over = facts.get("memory", "left_over") or {}
    return _frame(
        [
            {"what": HELD[name][0], "size_bytes": left_over[name], "note": HELD[name][1]}
            for name in HELD
            if left_over.get(name) is not None
        ]
    )


def alive_table(facts: RunFacts) -> pd.DataFrame:
    """Return what was alive at the peak of the recorded step, kept where the prediction was off."""
    keys = ("total_bytes", "size_bytes", "count", "made_at")
    rows = facts.get("memory", "snapshot", "alive") or []
    return _frame([{key: dig(row, key) for key in keys} for row in rows])


def memory_makers() -> dict[str, Any]:
    """Return the tables of this module by name."""
    return {
        "memory_phases": phases_table,
        "memory_left_over": left_over_table,
        "memory_alive": alive_table,
    }


def memory_parts(
    facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]
) -> str:
    """Return as HTML the phases, what others held, and what was alive at a peak that was off."""
    notes = "".join(paragraph(text) for text in memory_notes(facts))
    rest = "".join(table_of(table) for table in _cells(tables))
    return notes + figure(plots, "memory_phases", PHASES_CAPTION) + rest


def _cells(tables: Mapping[str, pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the tables as a page shows them: sizes and errors in words."""
    for name in memory_makers():
        if name in tables and len(tables[name]):
            yield _written(tables[name])


def _written(table: pd.DataFrame) -> pd.DataFrame:
    heads = {"predicted_bytes": "predicted", "measured_bytes": "measured", "size_bytes": "size"}
    heads |= {"total_bytes": "together", "made_at": "made at"}
    rows = []
    for row in table.to_dict("records"):
        cells = {}
        for key, value in row.items():
            value = known(value)
            if key == "error_percent":
                cells["error"] = "" if value is None else f"{value:+.1f} %"
            elif key in heads and key.endswith("_bytes"):
                cells[heads[key]] = "" if value is None else size(value)
            else:
                cells[heads.get(key, key)] = value
        rows.append(cells)
    return _frame(rows)


def memory_notes(facts: RunFacts) -> list[str]:
    """Return the sentences beside the tables: the worst phase, and where the record lies."""
    sentences, memory = [], facts.get("memory") or {}
    known_rows = [r for r in memory.get("phases") or [] if r.get("error_percent") is not None]
    measured = [r for r in memory.get("phases") or [] if r.get("measured_bytes")]
    if measured and not known_rows:
        sentences.append(
            "Phases are measured only: their prediction needs a simulated step on a GPU."
        )
    if known_rows:
        worst = max(known_rows, key=lambda row: abs(row["error_percent"]))
        basis = f", predicted for {memory['basis']}" if memory.get("basis") else ""
        sentences.append(
            f"By phase{basis}: the largest error is {worst['error_percent']:+.1f} % "
            f"({worst.get('phase')})."
        )
    left_over = memory.get("left_over") or {}
    others = (left_over.get("other_processes_bytes") or 0) + (left_over.get("earlier_bytes") or 0)
    if others:
        sentences.append(f"Held by others or left over from earlier cells: {size(others)}.")
    snapshot = memory.get("snapshot") or {}
    if snapshot.get("file") and snapshot.get("error_percent") is not None:
        sentences.append(
            f"Step {snapshot.get('step')} was off by {snapshot['error_percent']:+.1f} %: what was "
            f"alive at its peak is in {snapshot['file']}."
        )
    return sentences


# ------------------------------------------------------------------------------------------------
# The predicted time of a run beside the measured one, by phase, as a report shows it.


def predicted_time(facts: RunFacts) -> TimeBudget | None:
    """Return the prediction that was saved when the run was launched; None without one."""
    return None if facts.is_evaluation else TimeBudget.from_record(facts.record)


def _compared(facts: RunFacts) -> list[dict[str, Any]]:
    budget = predicted_time(facts)
    if budget is None or budget.expected_s is None or not facts.is_complete:
        return []
    timing = facts.get("timing") or {}
    return compare_time(budget, {k: v for k, v in timing.items() if v is not None})


def time_table(facts: RunFacts) -> pd.DataFrame:
    """Return predicted and measured time of each phase, as text; pre-training is left out."""
    import pandas as pd

    rows = [
        {
            "phase": row["phase"],
            "predicted": duration(row["predicted_s"]),
            "range": f"{duration(row['low_s'])} to {duration(row['high_s'])}",
            "measured": duration(row["measured_s"]),
            "error": "" if row["error_percent"] is None else f"{row['error_percent']:+.0f} %",
        }
        for row in _compared(facts)
    ]
    return pd.DataFrame(rows)


def time_makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return the tables of this module, by name."""
    return {"time": time_table}


def time_said(facts: RunFacts) -> list[str]:
    """Return a sentence on the predicted and the measured time; none without both."""
    rows, budget = _compared(facts), predicted_time(facts)
    if not rows or budget is None or rows[-1]["error_percent"] is None:
        return []
    total = rows[-1]
    span = f"{duration(total['low_s'])} to {duration(total['high_s'])}"
    once = facts.get("timing", "pretrain_s")
    apart = f" without {duration(once)} of pre-training, done once" if once else ""
    return [
        f"Predicted before the run: {duration(total['predicted_s'])} ({span}; {budget.basis}), "
        f"measured {duration(total['measured_s'])}{apart}, error {total['error_percent']:+.0f} %."
    ]


# ------------------------------------------------------------------------------------------------
# The tables of a report: each function reads the facts and returns a DataFrame, empty if unknown.
#
# Tables hold numbers, not text, wherever a column has one type; `html` writes them out.


FLOOR_NAMES = {
    "always_yes": "always yes",
    "identifier_overlap": "identifier overlap",
    "tfidf_mlp": "TF-IDF classifier",
}
MODEL = "this model"


def splits(facts: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and scores of each scored split: the test splits first."""
    scores = facts.get("scores") or {}
    for name in sorted(scores, key=lambda name: (not name.startswith("test"), name)):
        if scores[name] is not None:
            yield name, scores[name]


def all_tables(facts: RunFacts) -> dict[str, pd.DataFrame]:
    """Return every table that this run can fill, by name."""
    own = resolve(JOBS.get(facts.job, CLONES).report).tables()
    makers = own | memory_makers() | time_makers()
    table_by_name = {name: make(facts) for name, make in makers.items()}
    return {name: table for name, table in table_by_name.items() if len(table)}


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table of clone detection, by its name."""
    return {
        "scores": scores_table,
        "priors": priors_table,
        "strata": strata_table,
        "orders": orders_table,
        "floors": floors_table,
        "targets": targets_table,
        "memory": memory_table,
        "memory_lines": memory_lines_table,
        "gpus": gpus_table,
        "timing": timing_table,
        "throughput": throughput_table,
        "training": training_table,
        "data": data_table,
        "settings": settings_table,
    }


def _edges(values: Any, name: str) -> dict[str, float | None]:
    edges = dig(values, "intervals", name) or (None, None)
    return {"low": edges[0], "high": edges[1]}


def metrics_table(facts: RunFacts) -> pd.DataFrame:
    """Return one row per split and metric of a job, as its scores list them."""
    job, rows = scores_of(facts.data), []
    for split in job.splits:
        scores = facts.get("scores", split)
        metrics = dig(scores, "metrics") or {}
        for metric in (name for name in job.names(split) if name in metrics):
            row = {"split": split, "metric": metric, "value": metrics[metric]}
            row |= _edges(scores, metric)
            rows.append(row | {"samples": dig(scores, "n_samples")})
    return _frame(rows)


def _average(metric: str) -> str:
    if metric.endswith("_macro"):
        return "macro"
    return "binary" if metric in ("precision", "recall", "f1") else ""


def scores_table(facts: RunFacts) -> pd.DataFrame:
    """Return one row per split and metric, in the given order of each pair, average named."""
    rows = []
    for split, scores in splits(facts):
        given_order = dig(scores, "orders", "given") or {}
        for metric in (name for name in CLONES_SCORES.names() if name in given_order):
            row = {"split": split, "metric": metric.removesuffix("_macro")}
            row |= {"average": _average(metric), "value": given_order[metric]}
            rows.append(row | _edges(scores, metric))
    return _frame(rows)


def priors_table(facts: RunFacts) -> pd.DataFrame:
    """Return precision, recall and F1 at the sample's own share of clones and at named ones."""
    rows = []
    for split, scores in splits(facts):
        given_order = dig(scores, "orders", "given") or {}
        own = {"prior": scores.get("prior"), **given_order, "intervals": scores.get("intervals")}
        for name, values in {"this sample": own, **(scores.get("at_prior") or {})}.items():
            row = {"split": split, "prior": name, "share of clones": dig(values, "prior")}
            row |= {metric: dig(values, metric) for metric in ("precision", "recall", "f1")}
            rows.append(row | _edges(values, "f1"))
    return _frame(rows)


def strata_table(facts: RunFacts) -> pd.DataFrame:
    """Return scores by how many of a pair's two texts also occur in train."""
    rows = []
    for split, scores in splits(facts):
        for members, values in (scores.get("strata") or {}).items():
            if dig(values, "n_pairs") == 0:
                continue
            row = {"split": split, "texts seen in train": members}
            row |= {"pairs": dig(values, "n_pairs"), "share of clones": dig(values, "prior")}
            row |= {"f1": dig(values, "f1"), **_edges(values, "f1")}
            rows.append(row | {"roc_auc": dig(values, "roc_auc")})
    return _frame(rows)


def orders_table(facts: RunFacts) -> pd.DataFrame:
    """Return scores with the pair as given, reversed, and with the mean of both probabilities."""
    rows = []
    for split, scores in splits(facts):
        orders = scores.get("orders") or {}
        if len(orders) < 2:
            continue
        for order in (name for name in ORDERS if name in orders):
            row = {"split": split, "order": order}
            names = ("precision", "recall", "f1", "roc_auc", "pr_auc")
            rows.append(row | {metric: dig(orders, order, metric) for metric in names})
    return _frame(rows)


def floors_table(facts: RunFacts) -> pd.DataFrame:
    """Return the model beside the cheap scorers, each at its own threshold from valid."""
    rows = []
    for split, scores in splits(facts):
        baselines = scores.get("floors") or {}
        if not baselines:
            continue
        ours = dict(dig(scores, "orders", "given") or {})
        ours |= {"threshold": scores.get("threshold"), "intervals": scores.get("intervals")}
        for name, values in {MODEL: ours, **baselines}.items():
            row = {"split": split, "scorer": FLOOR_NAMES.get(name, name)}
            row |= {"f1": dig(values, "f1"), **_edges(values, "f1")}
            row |= {key: dig(values, key) for key in ("precision", "recall", "roc_auc")}
            difference = dig(values, "lead") or {}
            row |= {"lead": difference.get("f1"), "lead interval": difference.get("interval")}
            rows.append(row | {"note": dig(values, "skipped") or ""})
    return _frame(rows)


def targets_table(facts: RunFacts) -> pd.DataFrame:
    """Return the preset's success criteria on test beside what was measured."""
    targets, test = facts.get("settings", "targets") or {}, facts.get("scores", "test")
    rows = []
    for metric, target in targets.items() if test else ():
        if target is None:
            continue
        try:
            row = check_targets({metric: target}, facts.data)[0] | {"note": ""}
        except ConfigError:  # named for another version or job: shown, not hidden
            row = {"metric": metric, "target": target, "value": None, "passed": False}
            row["note"] = "no such score"
        rows.append(row)
    return _frame(rows)


def memory_table(facts: RunFacts) -> pd.DataFrame:
    """Return predicted and measured peak in bytes, and the error of the prediction in per cent.

    An evaluation that measured nothing has no row: a training's budget is not its memory.
    """
    memory = facts.get("memory") or {}
    predicted, measured = memory.get("predicted_bytes"), memory.get("measured_bytes")
    if predicted is None and measured is None:
        return _frame([])
    error = memory.get("error_percent")
    if error is None and predicted and measured:
        error = 100 * (predicted - measured) / measured
    row = {"predicted_bytes": predicted, "measured_bytes": measured, "error_percent": error}
    row |= {"measured": memory.get("what"), "device": memory.get("device")}
    ranks = memory.get("per_rank") or []
    reserved = [dig(rank, "peak_reserved_bytes") or 0 for rank in ranks]
    process = [dig(rank, "rss_bytes") or 0 for rank in ranks]
    row |= {"reserved_bytes": max(reserved, default=0) or None}
    row |= {"process_rss_bytes": max(process, default=0) or None}
    row |= {"budget_bytes": facts.budget.get("total_bytes")}
    return _frame([row | {"capacity_bytes": facts.budget.get("capacity_bytes")}])


def memory_lines_table(facts: RunFacts) -> pd.DataFrame:
    """Return the lines of the prediction: of the data's largest batch, else of the budget."""
    lines = facts.predicted_lines or facts.budget.get("lines") or []
    keys = ("name", "size_bytes", "note")
    return _frame([{key: dig(line, key) for key in keys} for line in lines])


def gpus_table(facts: RunFacts) -> pd.DataFrame:
    """Return what each GPU did: mean utilisation and peak memory in use, by anyone."""
    keys = ("index", "name", "mean_utilisation_percent", "peak_memory_used_bytes")
    return _frame([{key: dig(gpu, key) for key in keys} for gpu in facts.get("gpu") or []])


def timing_table(facts: RunFacts) -> pd.DataFrame:
    """Return seconds by phase and their share of the total."""
    timing = {k: v for k, v in (facts.get("timing") or {}).items() if v is not None}
    total = timing.get("total_s") or sum(v for k, v in timing.items() if k != "total_s")
    rows = []
    for name, value in timing.items():
        row = {"phase": name.removesuffix("_s"), "seconds": value}
        rows.append(row | {"share": value / total if total else None})
    return _frame([row for row in rows if row["seconds"]])


def throughput_table(facts: RunFacts) -> pd.DataFrame:
    """Return training speed, and how much of it was padding."""
    throughput = facts.get("throughput") or {}
    names = {
        "pairs_per_s": ("pairs", "per s"),
        "useful_tokens_per_s": ("useful tokens", "per s"),
        "padded_tokens_per_s": ("tokens with padding", "per s"),
        "useful_share": ("useful tokens per padded token", "this run"),
        "fixed_padding_useful_share": ("useful tokens per padded token", "if padded to seq_len"),
    }
    rows = []
    for key, (what, unit) in names.items():
        if throughput.get(key) is not None:
            rows.append({"what": what, "value": throughput[key], "unit": unit})
    return _frame(rows)


def training_table(facts: RunFacts) -> pd.DataFrame:
    """Return how far training went and what the loss did."""
    training = facts.get("training") or {}
    names = ("optimizer_steps", "total_steps", "epochs", "examples", "skipped_steps", "first_loss")
    names += ("last_loss", "best_step", "resumed_from")
    if not training.get("optimizer_steps"):
        return _frame([])
    known = [name for name in names if training.get(name) is not None]
    return _frame([{"what": name.replace("_", " "), "value": training[name]} for name in known])


def data_table(facts: RunFacts) -> pd.DataFrame:
    """Return pairs, clones and functions of each split."""
    rows = []
    for name, values in (facts.get("data", "splits") or {}).items():
        pairs, clones = dig(values, "pairs"), dig(values, "clones")
        row = {"split": name, "pairs": pairs, "clones": clones}
        row |= {"share of clones": clones / pairs if pairs and clones is not None else None}
        rows.append(row | {"functions": dig(values, "functions")})
    return _frame(rows)


def settings_table(facts: RunFacts) -> pd.DataFrame:
    """Return the settings in which this run differs from the base preset, and why."""
    preset, settings = facts.record.get("preset") or {}, facts.get("settings") or {}
    base, reasons = preset.get("base") or {}, preset.get("why") or {}
    origin = preset.get("provenance") or {}
    rows = []
    for name, value in settings.items():
        if name in base and base[name] != value:
            row = {"setting": name, "base": str(base[name]), "this run": str(value)}
            rows.append(row | {"from": origin.get(name, ""), "why": reasons.get(name, "")})
    return _frame(rows)
