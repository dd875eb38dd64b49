"""The tables of a fine-tuning's report: scores by split, how they were made, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.report_facts import RunFacts, count, dig, known
from nbhelpers.report_tables import (
    gpus_table,
    memory_lines_table,
    memory_table,
    settings_table,
    timing_table,
    training_table,
)
from nbhelpers.targets import TASK_METRICS, TASKS, TEXT_METRICS, TITLES, available, is_target

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("test", *TASKS)
NOT_EVALUATED = "not evaluated"


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    from nbhelpers.report_finetune_base import base_table

    return {
        "scores": scores_table,
        "base": base_table,
        "syntax": syntax_table,
        "outcomes": outcomes_table,
        "decoding": decoding_table,
        "targets": targets_table,
        "adapter": adapter_table,
        "model": model_table,
        "memory": memory_table,
        "memory_lines": memory_lines_table,
        "gpus": gpus_table,
        "timing": timing_table,
        "throughput": throughput_table,
        "energy": energy_table,
        "training": training_table,
        "data": data_table,
        "settings": settings_table,
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)


def evaluated(facts: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and scores of each evaluated split: test, then the sets of problems."""
    for split in SPLITS:
        scores = facts.get("scores", split)
        if scores and scores.get("metrics"):
            yield split, scores


def not_evaluated(facts: RunFacts) -> dict[str, str]:
    """Return, for each split without scores, why: by the run's settings, or as it warned."""
    done, found = {split for split, _ in evaluated(facts)}, {}
    wanted, tasks = facts.get("settings", "evaluate"), facts.get("settings", "tasks")
    asked = [task for task in tasks or [] if task in TASKS]
    for split in (name for name in SPLITS if name not in done):
        if split == "sample" and "sample" not in asked:
            continue  # of the bundled sample alone: nobody misses it
        is_text, why = split == "test", ""
        if wanted == "none" or (wanted == "text" and not is_text):
            why = f"evaluate={wanted}"
        elif not is_text and tasks is not None and split not in tasks:
            why = f"tasks={','.join(tasks) or 'none'}"
        elif not is_text:
            why = _warned(facts)
        found[split] = NOT_EVALUATED + (f" ({why})" if why else "")
    return found


def _warned(facts: RunFacts) -> str:
    """Return why generated programs were not run, which a run tells as a warning."""
    start = "pass@1 is not measured: "
    found = [said for said in facts.get("warnings") or [] if said.startswith(start)]
    return found[0].removeprefix(start).rstrip(".") if found else ""


def metrics_of(split: str) -> tuple[str, ...]:
    """Return the scores of a split in the order in which they are shown."""
    return TASK_METRICS if split in TASKS else TEXT_METRICS


def scores_table(facts: RunFacts) -> pd.DataFrame:
    """Return one row per evaluated split and metric; BLEU and chrF count to 100."""
    rows = []
    for split, scores in evaluated(facts):
        metrics = scores["metrics"]
        for metric in (name for name in metrics_of(split) if name in metrics):
            low, high = dig(scores, "intervals", metric) or (None, None)
            row = {"split": split, "metric": metric, "value": metrics[metric]}
            rows.append(row | {"low": low, "high": high, "samples": scores.get("n_samples")})
    return _frame(rows)


def syntax_table(facts: RunFacts) -> pd.DataFrame:
    """Return how many answers Python does not parse, by kind of error."""
    rows = []
    for split, scores in evaluated(facts):
        kinds, samples = scores.get("syntax_errors") or {}, scores.get("n_samples")
        for kind, number in sorted(kinds.items(), key=lambda item: (-(item[1] or 0), item[0])):
            row = {"split": split, "syntax error": kind, "answers": number}
            rows.append(row | {"share": number / samples if samples and number else None})
    return _frame([row for row in rows if row["answers"]])


def outcomes_table(facts: RunFacts) -> pd.DataFrame:
    """Return how the generated programs ended in the sandbox."""
    rows = []
    for split, scores in evaluated(facts):
        outcomes, samples = scores.get("outcomes") or {}, scores.get("n_samples")
        for outcome, number in outcomes.items():
            row = {"split": split, "outcome": outcome, "programs": number}
            rows.append(row | {"share": number / samples if samples and number else None})
    return _frame([row for row in rows if row["programs"]])


def decoding_table(facts: RunFacts) -> pd.DataFrame:
    """Return how answers were generated and scored: scores of other ways are not comparable."""
    rows = []
    for split, scores in evaluated(facts):
        said = {"samples": count(scores["n_samples"])} if scores.get("n_samples") else {}
        ways = (scores.get("decoding") or {}).items()
        said |= {key.replace("_", " "): _plain(v) for key, v in ways if v is not None}
        said |= {"tokenizer of BLEU": scores.get("tokenizer")}
        signatures = (scores.get("signatures") or {}).items()
        said |= {f"signature of {TITLES.get(name, name)}": text for name, text in signatures}
        said = {what: value for what, value in said.items() if value is not None}
        rows += [{"split": split, "what": k, "value": str(v)} for k, v in said.items()]
    return _frame(rows)


def targets_table(facts: RunFacts) -> pd.DataFrame:
    """Return the preset's success criteria beside what was measured."""
    targets = facts.get("settings", "targets") or {}
    found, rows = available(facts.data), []
    for metric, target in targets.items() if facts.is_complete else ():
        if target is None:
            continue
        value = found.get(metric)
        row = {"metric": metric, "target": target, "value": value}
        row |= {"passed": value is not None and value >= target}
        note = NOT_EVALUATED if is_target(metric, "finetune") else "no such score"
        rows.append(row | {"note": "" if metric in found else note})
    return _frame(rows)


def adapter_table(facts: RunFacts) -> pd.DataFrame:
    """Return what was trained of how much."""
    adapter = facts.get("adapter") or {}
    modules = adapter.get("target_modules")
    trained, total = adapter.get("trainable_parameters"), adapter.get("total_parameters")
    rows = {
        "adapter": facts.adapter,
        "method": adapter.get("method"),
        "rank": adapter.get("r"),
        "alpha": adapter.get("alpha"),
        "layers": modules if isinstance(modules, str) else ", ".join(modules or []),
        "trainable parameters": None if trained is None else count(trained),
        "parameters, adapter included": None if total is None else count(total),
        "share trained": f"{100 * trained / total:.2f} %" if trained and total else None,
    }
    plain = {what: f"{v:g}" if isinstance(v, float) else v for what, v in rows.items()}
    is_known = bool(adapter)
    return _frame([{"what": k, "value": str(v)} for k, v in plain.items() if v and is_known])


def model_table(facts: RunFacts) -> pd.DataFrame:
    """Return attention and loss as chosen, and how far they are from the plain ones."""
    model = facts.get("model") or {}
    rows = {name: model.get(name) for name in ("attention", "loss", "compiled")}
    for name, value in _flat(model.get("parity") or {}, "parity"):
        rows[name] = value
    return _frame(
        [
            {"what": k.replace("_", " "), "value": _plain(v)}
            for k, v in rows.items()
            if v is not None
        ]
    )


def _flat(values: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: {key}")
        else:
            yield f"{name}: {key}", value


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def throughput_table(facts: RunFacts) -> pd.DataFrame:
    """Return training speed: useful tokens are those of samples, raw ones count padding too."""
    throughput = facts.get("throughput") or {}
    names = {
        "useful_tokens_per_s": ("useful tokens", "per s"),
        "padded_tokens_per_s": ("raw tokens, padding included", "per s"),
        "useful_share": ("useful tokens per raw token", "this run"),
        "samples_per_s": ("samples", "per s"),
        "samples_per_update": ("samples", "per optimizer step"),
        "tokens_per_update": ("tokens", "per optimizer step"),
        "mfu_4n": ("MFU", MFU),
    }
    found = [(names[key], throughput[key]) for key in names if throughput.get(key) is not None]
    return _frame([{"what": what, "value": v, "unit": unit} for (what, unit), v in found])


MFU = "of the GPU's peak, at 4N FLOPs per token, recomputation not counted"


def energy_table(facts: RunFacts) -> pd.DataFrame:
    """Return energy by NVML, and the GPU's memory in use before and after the run."""
    energy, baseline = facts.get("energy") or {}, facts.get("gpu_baseline") or {}
    row = {"energy (Wh)": None, "mean power (W)": known(energy.get("watts_mean"))}
    if energy.get("joules") is not None:
        row["energy (Wh)"] = energy["joules"] / 3600
    row |= {f"{when}_bytes": baseline.get(f"{when}_bytes") for when in ("before", "after")}
    named = {"before_bytes": "gpu_before_bytes", "after_bytes": "gpu_after_bytes"}
    row = {named.get(name, name): value for name, value in row.items()}
    return _frame([row] if any(value is not None for value in row.values()) else [])


def data_table(facts: RunFacts) -> pd.DataFrame:
    """Return samples, tokens, cut and dropped samples of each split, and bad rows of each file."""
    rows = []
    for name, values in (facts.get("data", "splits") or {}).items():
        row: dict[str, Any] = {"split": name}
        for key in ("samples", "tokens", "supervised_tokens", "cut", "dropped"):
            row[key.replace("_", " ")] = dig(values, key)
        rows.append(row)
    lost = facts.get("data", "problems", "rows_dropped")
    for file, number in (lost if isinstance(lost, Mapping) else {}).items():
        rows.append({"split": f"bad rows of {file}", "dropped": number})
    return _frame(rows)
