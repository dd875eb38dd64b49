"""Tables and samples of a fine-tuning report, beside the base model where it was scored."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.formatting import count
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import Generation, Result
from nbhelpers.metrics.registry import FINETUNE_SCORES, TASKS, TITLES, written
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.targets import available
from nbhelpers.reports.facts import RunFacts, dig, known
from nbhelpers.reports.page import section
from nbhelpers.reports.tables import (
    gpus_table,
    memory_lines_table,
    memory_table,
    metrics_table,
    settings_table,
    timing_table,
    training_table,
)
from nbhelpers.runs.run import sound_results

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------
# A few generations of a run with their verdict, read from `generations.jsonl`.
#
# The file holds what a model wrote: any text at all. It may be absent.


FILE_NAME = "generations.jsonl"
SPLITS = ("test", *TASKS)
MOST_PER_SPLIT = 3
MOST_JUDGED = 300  # generations of a split among which the shown ones are chosen
SHOWN_PROMPT, SHOWN_TEXT = 700, 1500  # characters of a prompt's end, and of an answer's start


Row = Mapping[str, Any]


def _kind(row: Row, error: str | None) -> str:
    """Return what became of it: of each kind one is shown. `error`: of its syntax, or None."""
    from nbhelpers.metrics.generation import exact_match

    if row.get("outcome"):
        return row["outcome"]
    if exact_match([row["answer"]], [row.get("reference")]) == 1:
        return "exact match"
    return "not the reference, but it parses" if error is None else "does not parse"


def _verdict(row: Row, error: str | None) -> str:
    """Return what became of it, in words."""
    verdict, why = _kind(row, error), row.get("detail") if row.get("outcome") else error
    verdict += f" ({why[:200]})" if why else ""
    ends = {True: "ended by itself", False: "cut at the limit of new tokens"}
    stopped = row.get("stopped")
    return f"{verdict}; {ends[stopped]}" if stopped in ends else verdict


def rows_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the generations of a file by split, in its order.

    Raises:
        DataError: A line is damaged; names it.
    """
    by_split: dict[str, list[dict[str, Any]]] = {}
    for row in read_lines(Generation, path):
        if row["split"] in SPLITS:
            by_split.setdefault(row["split"], []).append(row)
    return by_split


def chosen(path: Path) -> dict[str, list[tuple[Row, str]]]:
    """Return up to three generations of each split with their verdicts.

    They are of unlike kinds where there are several. Within a kind the first of the file is taken,
    so that a report is the same each time.
    """
    from nbhelpers.metrics.generation import codes
    from nbhelpers.metrics.python_code import syntax_errors_of

    rows = rows_by_split(path)
    samples = {}
    for split in (name for name in SPLITS if name in rows):
        judged = rows[split][:MOST_JUDGED]
        kinds: dict[str, list[tuple[Row, str]]] = {}
        errors = syntax_errors_of(codes([row["answer"] for row in judged]))
        for row, error in zip(judged, errors, strict=True):
            kinds.setdefault(_kind(row, error), []).append((row, _verdict(row, error)))
        samples[split] = _mixed(kinds)
    return samples


def _mixed(kinds: Mapping[str, list[Any]]) -> list[Any]:
    """Take one of each kind in turn until there are enough.

    >>> _mixed({"passed": [1, 2, 3, 4], "failed": [5]})
    [1, 5, 2]
    """
    rounds = [rows[at] for at in range(MOST_PER_SPLIT) for rows in kinds.values() if at < len(rows)]
    return rounds[:MOST_PER_SPLIT]


def samples_section(facts: RunFacts) -> str:
    """Return the section of sample generations as HTML, or nothing without the file."""
    samples = chosen(facts.run.path / FILE_NAME)
    parts = [
        _sample(row, verdict, is_open=at == 0)
        for rows in samples.values()
        for at, (row, verdict) in enumerate(rows)
    ]
    note = (
        f"The first of each kind in {FILE_NAME}, not the best. A prompt is shown from its end, "
        "a long text up to a limit."
    )
    return section("Sample generations", "".join(parts), note)


def _sample(row: Row, verdict: str, *, is_open: bool) -> str:
    split = row["split"]
    title = f"{TITLES.get(split, split)} {str(row.get('id'))[:80]}: {verdict}"
    texts = {"prompt": _end(row["prompt"]), "reference": _start(row.get("reference") or "")}
    texts["answer"] = _start(row["answer"]) or "(nothing)"
    blocks = (
        f"<p class='note'>{name}</p><pre class='long code'>{html.escape(text)}</pre>"
        for name, text in texts.items()
        if text
    )
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{html.escape(title)}</summary>{''.join(blocks)}</details>"


def _end(text: str) -> str:
    return text if len(text) <= SHOWN_PROMPT else f"… {text[-SHOWN_PROMPT:]}"


def _start(text: str) -> str:
    more = len(text) - SHOWN_TEXT
    return text if more <= 0 else f"{text[:SHOWN_TEXT]} … ({more:,} more characters)"


# ------------------------------------------------------------------------------------------------
# A fine-tuned model against its base: the run of `method=base` that lies beside it, if they match.
#
# Two runs are compared only where model, data, decoding and signatures are the same.


# What the head of a report compares; its table has all scores.
HEADLINE = FINETUNE_SCORES.headline
NAMED = (*HEADLINE, ("test", "exact_match"))
UNCOMPARED = ("mean_new_tokens",)  # longer is neither better nor worse
SET_ASIDE = "~"  # in the name of a run that a later one replaced
VERDICTS = ("better", "worse", "within noise", "not comparable")
RESAMPLES, MOST_RESAMPLES = 1000, 10_000
_SAME = {
    "the model": (("model", "name"), ("model", "revision"), ("model", "random_weights")),
    "the data": (("data", "fingerprint"), ("data", "template")),
}
SIDES = ("ours", "other")
_READ = ("result.json", "generations.jsonl")


class Difference(NamedTuple):
    """One score of two runs on the same samples, ours minus the other's, with its interval."""

    split: str
    metric: str
    ours: float | None
    other: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: str
    reason: str = ""
    p_value: float | None = None

    def said(self) -> str:
        """Return the difference in words."""
        text = TITLES.get(self.metric, self.metric)
        if self.difference is None:
            return f"{text} {self.verdict}" + (f" ({self.reason})" if self.reason else "")
        text += f" {signed(self.metric, self.difference)}"
        if self.low is not None and self.high is not None:
            text += f" ({signed(self.metric, self.low)} to {signed(self.metric, self.high)})"
        return f"{text}, {self.verdict}"


def signed(metric: str, value: float | None) -> str:
    """Write a difference with its sign.

    >>> signed("bleu", 1.26), signed("pass@1", -0.02)
    ('+1.3', '-0.020')
    """
    text = written(metric, value)
    return text if value is None or value < 0 else f"+{text}"


class Base(NamedTuple):
    """The base run beside a run, or why there is none to compare with."""

    folder: Path | None
    data: Mapping[str, Any]
    why: str


def find_base(facts: RunFacts) -> Base:
    """Return the newest finished base run in the same folder of runs that matches."""
    from nbhelpers.runs.run import list_runs

    why = (
        "No run of the base model on this data lies beside this one to compare with; the same "
        "command with -o method=base makes one."
    )
    runs = [run.path for run in list_runs(facts.run.path.parent) if SET_ASIDE not in run.id]
    for result in sound_results(path for path in runs if path != facts.run.path):
        data = result.data
        if result.job != "finetune" or _method(data) != "base":
            continue
        if _is_of_other_data(facts.data, data):  # another experiment: nobody would compare
            continue
        if differs := unlike(facts.data, data):
            why = f"The base run {result.path.name} is not comparable: {differs}."
            continue
        return Base(result.path, data, "")
    return Base(None, {}, why)


def _is_of_other_data(ours: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(dig(ours, *at) != dig(other, *at) for places in _SAME.values() for at in places)


def _method(data: Mapping[str, Any]) -> Any:
    return dig(data, "adapter", "method") or dig(data, "settings", "method")


def unlike(ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Say what makes two results incomparable, or nothing where they can be compared."""
    for what, places in _SAME.items():
        if any(dig(ours, *place) != dig(other, *place) for place in places):
            return f"{what} differs"
    is_embedded = dig(ours, "settings", "model") in FINETUNE.models.embedded
    has_own_words = dig(ours, "model", "random_weights") and not is_embedded
    if has_own_words and dig(ours, "seed") != dig(other, "seed"):
        return "its tokenizer was trained on the rows of another seed"
    return ""


def differences(facts: RunFacts) -> tuple[Difference, ...]:
    """Return this run minus its base run; nothing without a comparable one."""
    if facts.adapter == "base" or not list(evaluated(facts)):
        return ()
    base = find_base(facts)
    return () if base.folder is None else between(facts.run.path, base.folder)


def between(ours: Path, other: Path) -> tuple[Difference, ...]:
    """Return the differences of two comparable runs, split by split, on the same samples."""
    marks = [_mark(folder / name) for folder in (ours, other) for name in _READ]
    return _between(ours, other, *marks)


def _mark(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=64)  # one report asks several times, and a comparison resamples
def _between(ours: Path, other: Path, *_marks: float) -> tuple[Difference, ...]:
    stored = [Result.read(folder / "result.json") for folder in (ours, other)]
    results = [{} if each is None else each.raw for each in stored]
    rows = [rows_by_split(folder / "generations.jsonl") for folder in (ours, other)]
    differences = []
    for split in (name for name in TABLES_SPLITS if all(dig(r, "scores", name) for r in results)):
        scored = {name: dig(r, "scores", split) for name, r in zip(SIDES, results, strict=True)}
        of_split = {name: each.get(split, []) for name, each in zip(SIDES, rows, strict=True)}
        for metric in FINETUNE_SCORES.names(split):
            if metric not in UNCOMPARED and dig(scored["ours"], "metrics", metric) is not None:
                differences.append(_compared(split, metric, of_split, scored, results[0]))
    return tuple(differences)


def _compared(
    split: str,
    metric: str,
    rows: Mapping[str, list[dict[str, Any]]],
    scored: Mapping[str, Mapping[str, Any]],
    result: Mapping[str, Any],
) -> Difference:
    from nbhelpers.metrics.compare import compare_runs

    ours, other = (dig(scored[name], "metrics", metric) for name in SIDES)
    if why := _missing_rows(rows, scored):
        return Difference(split, metric, ours, other, None, None, None, VERDICTS[-1], why)
    comparison = compare_runs(rows, metric=metric, baseline="other", scored=scored, **draws(result))
    comparison = comparison["against"]["ours"]
    low, high = comparison["interval"] or (None, None)
    verdict, reason = comparison["verdict"], comparison["reason"] or ""
    values = (ours, other, comparison["difference"], low, high)
    return Difference(split, metric, *values, verdict, reason, comparison["p_value"])


def _missing_rows(
    rows: Mapping[str, list[dict[str, Any]]], scored: Mapping[str, Mapping[str, Any]]
) -> str:
    """Say which generations cannot be read: without them a difference is of other samples."""
    for name, whose in zip(SIDES, ("this run", "the other run"), strict=True):
        read, wanted = len(rows[name]), dig(scored[name], "n_samples")
        if not read or (wanted is not None and read != wanted):
            whole = "" if wanted is None else f" of {count(wanted)}"
            return f"{count(read)}{whole} generations of {whose} can be read"
    return ""


def draws(result: Mapping[str, Any]) -> dict[str, int]:
    """Return seed and number of resamples for a comparison, by the settings of a run."""
    settings = result.get("settings") or {}
    resamples = settings.get("bootstrap_samples") or RESAMPLES
    if resamples > MOST_RESAMPLES:
        resamples = RESAMPLES
    return {"seed": settings.get("seed") or 0, "resamples": resamples}


def against_base(facts: RunFacts) -> str:
    """Return one short sentence on the base model for the headline."""
    headline_differences = [
        each for each in differences(facts) if (each.split, each.metric) in HEADLINE
    ]
    if not headline_differences:
        return "This is the base model as it is." if facts.adapter == "base" else ""
    return f"Against the base model it is {by_verdict(headline_differences)}."


def by_verdict(all_differences: Iterable[Difference]) -> str:
    """Return which scores are better, worse and within noise.

    >>> even = Difference("mbpp", "pass@1", 0.5, 0.5, 0, -0.1, 0.1, "within noise")
    >>> by_verdict([Difference("test", "bleu", 9, 5, 4, 1, 7, "better"), even])
    'better in BLEU; within noise in pass@1 on MBPP'
    """
    names: dict[str, list[str]] = {}
    for each in all_differences:
        title = TITLES.get(each.metric, each.metric)
        where = "" if each.split == "test" else f" on {TITLES.get(each.split, each.split)}"
        names.setdefault(each.verdict, []).append(title + where)
    kinds = [kind for kind in VERDICTS if kind in names]
    return "; ".join(f"{kind} in {', '.join(names[kind])}" for kind in kinds)


def missing_base(facts: RunFacts) -> str:
    """Return why there is no comparison with the base model, or nothing."""
    if facts.adapter == "base" or not list(evaluated(facts)):
        return ""
    return find_base(facts).why


def base_table(facts: RunFacts) -> pd.DataFrame:
    """Return each score of this run and of the base run, and the difference with its verdict."""
    return difference_table(differences(facts), ours="this run", other="base")


def difference_table(
    all_differences: tuple[Difference, ...], *, ours: str, other: str
) -> pd.DataFrame:
    """Return differences as a table; `ours` and `other` head the columns of the two scores."""
    import pandas as pd

    rows = []
    for each in all_differences:
        row = {"split": each.split, "metric": each.metric, other: each.other, ours: each.ours}
        row |= {"difference": each.difference, "low": each.low, "high": each.high}
        rows.append(row | {"verdict": each.verdict})
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------
# The tables of a fine-tuning's report: scores by split, how they were made, what they cost.


TABLES_SPLITS = tuple(FINETUNE_SCORES.splits)
NOT_EVALUATED = "not evaluated"


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""

    return {
        "scores": metrics_table,
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
    for split in TABLES_SPLITS:
        scores = facts.get("scores", split)
        if scores and scores.get("metrics"):
            yield split, scores


def not_evaluated(facts: RunFacts) -> dict[str, str]:
    """Return, for each split without scores, why: by the run's settings, or as it warned."""
    done, reasons = {split for split, _ in evaluated(facts)}, {}
    wanted, tasks = facts.get("settings", "evaluate"), facts.get("settings", "tasks")
    asked = [task for task in tasks or [] if task in TASKS]
    for split in (name for name in TABLES_SPLITS if name not in done):
        if split == "sample" and "sample" not in asked:
            continue  # of the bundled sample alone: nobody misses it
        is_text, why = split == "test", ""
        if wanted == "none" or (wanted == "text" and not is_text):
            why = f"evaluate={wanted}"
        elif not is_text and tasks is not None and split not in tasks:
            why = f"tasks={','.join(tasks) or 'none'}"
        elif not is_text:
            why = _warned(facts)
        reasons[split] = NOT_EVALUATED + (f" ({why})" if why else "")
    return reasons


def _warned(facts: RunFacts) -> str:
    """Return why generated programs were not run, which a run tells as a warning."""
    start = "pass@1 is not measured: "
    messages = [warning for warning in facts.get("warnings") or [] if warning.startswith(start)]
    return messages[0].removeprefix(start).rstrip(".") if messages else ""


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
        properties = {"samples": count(scores["n_samples"])} if scores.get("n_samples") else {}
        ways = (scores.get("decoding") or {}).items()
        properties |= {key.replace("_", " "): _plain(v) for key, v in ways if v is not None}
        properties |= {"tokenizer of BLEU": scores.get("tokenizer")}
        signatures = (scores.get("signatures") or {}).items()
        properties |= {f"signature of {TITLES.get(name, name)}": text for name, text in signatures}
        properties = {what: value for what, value in properties.items() if value is not None}
        rows += [{"split": split, "what": k, "value": str(v)} for k, v in properties.items()]
    return _frame(rows)


def targets_table(facts: RunFacts) -> pd.DataFrame:
    """Return the preset's success criteria beside what was measured."""
    targets = facts.get("settings", "targets") or {}
    measured_scores, rows = available(facts.data), []
    for metric, target in targets.items() if facts.is_complete else ():
        if target is None:
            continue
        value = measured_scores.get(metric)
        row = {"metric": metric, "target": target, "value": value}
        row |= {"passed": FINETUNE_SCORES.is_reached(metric, value, target)}
        note = NOT_EVALUATED if FINETUNE_SCORES.may_exist(metric) else "no such score"
        rows.append(row | {"note": "" if metric in measured_scores else note})
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
    rates = [(names[key], throughput[key]) for key in names if throughput.get(key) is not None]
    return _frame([{"what": what, "value": v, "unit": unit} for (what, unit), v in rates])


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
