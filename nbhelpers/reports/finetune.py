"""The report of a fine-tuning: headline, verdicts and cautions, as text and as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count, share, size
from nbhelpers.metrics.registry import FINETUNE_SCORES, TASKS, TITLES, written
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.reports.facts import RunFacts, dig, known, score
from nbhelpers.reports.figures import caption
from nbhelpers.reports.finetune_tables import (
    MFU,
    NAMED,
    against_base,
    differences,
    evaluated,
    missing_base,
    not_evaluated,
    samples_section,
    signed,
)
from nbhelpers.reports.page import figure, paragraph, section, table_of
from nbhelpers.reports.sections import standing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------
# The lines of a fine-tuning's report for a terminal, and the sentences on what it cost.


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
            heading = f"{TITLES.get(split, split)}, {_samples(split, rows[0]['samples'])}"
            lines.append(f"{heading:<30}{'score':<9}95 % interval over samples")
            for row in rows:
                name, value = row["metric"], known(row["value"])
                interval_text = edges_of(name, [row["low"], row["high"]])
                title = TITLES.get(name, name)
                lines.append(f"  {title:<28}{written(name, value):<9}{interval_text}".rstrip())
            lines.append("")
    lines += [f"{TITLES.get(split, split)}: {why}." for split, why in missing.items()]
    return lines


def _samples(split: str, number: Any) -> str:
    unit = "samples" if split == "test" else "problems"
    return f"{count(known(number))} {unit}" if known(number) is not None else unit


def cost_lines(facts: RunFacts) -> list[str]:
    """Return the sentences on speed, energy and the GPU's memory after the run."""
    return [
        sentence
        for sentence in (speed_said(facts), energy_said(facts), baseline_said(facts))
        if sentence
    ]


def speed_said(facts: RunFacts) -> str:
    """Return useful and raw speed of training, and MFU with its convention."""
    speed = facts.get("throughput") or {}
    useful, raw = speed.get("useful_tokens_per_s"), speed.get("padded_tokens_per_s")
    if useful is None:
        return ""
    text = f"Speed: {count(useful)} useful tokens/s"
    text += f" of {count(raw)} with padding" if raw is not None else ""
    mfu = speed.get("mfu_4n")
    text = f"{text}." if mfu is None else f"{text}; MFU {share(mfu)} {MFU}."
    return text + (" Compiling is counted." if facts.get("model", "compiled") else "")


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


# ------------------------------------------------------------------------------------------------
# What the report of a fine-tuning concludes: the headline, against the base model, the doubts.


Tables = Mapping[str, "pd.DataFrame"]
FEW_SAMPLES = 100
BASELINE_BYTES = 50 * 2**20  # a GPU that holds this much more than before has something left over
WELL_STOPPED = 0.8
FEW_STEPS = 20  # optimizer steps
COLUMNS_NOTE = re.compile(r"note: columns understood by another name: [\d,]+ \((.*)\)")


def headline(facts: RunFacts) -> str:
    """Return the finding in three short sentences: scores, against the base, the main caveat."""
    if not list(evaluated(facts)):
        return f"{_unscored(facts)} {_caveat(facts)}".strip()
    sentences = [_scores_said(facts), against_base(facts), _caveat(facts)]
    return " ".join(sentence for sentence in sentences if sentence)


def _unscored(facts: RunFacts) -> str:
    if facts.status != "finished":
        return standing(facts)
    training = facts.get("training") or {}
    text = f"Not evaluated: no answers were generated {_setting_said(facts)}".rstrip()
    if training.get("optimizer_steps"):
        text += f"; trained for {count(training['optimizer_steps'])} optimizer steps"
        text += f", loss {score(training.get('last_loss'))}"
    return f"{text}."


def _setting_said(facts: RunFacts) -> str:
    wanted = facts.get("settings", "evaluate")
    return f"(evaluate={wanted})" if wanted else ""


def _scores_said(facts: RunFacts) -> str:
    """Return syntax accuracy and BLEU on test, and pass@1 on each set of problems."""
    clauses, scores_by_split = [], dict(evaluated(facts))
    if test := scores_by_split.get("test"):
        named = [name for name in ("syntax_accuracy", "bleu") if name in test["metrics"]]
        text = ", ".join(f"{TITLES[name]} {with_edges(name, test)}" for name in named)
        clauses.append(f"{text} on {count(test.get('n_samples'))} test samples")
    for task in (name for name in TASKS if name in scores_by_split):
        if "pass@1" in scores_by_split[task]["metrics"]:
            clauses.append(
                f"pass@1 {with_edges('pass@1', scores_by_split[task])} on {TITLES[task]}"
            )
    whole = "; ".join(clauses)
    if not any(task in scores_by_split for task in TASKS):
        whole += "; pass@1 not evaluated"
    return f"{whole[:1].upper()}{whole[1:]}."


def _caveat(facts: RunFacts) -> str:
    """Return the one thing to hold against the scores first."""
    if facts.is_sample:
        note = str(facts.get("data", "note") or "")
        last = note.rstrip(".").rpartition(". ")[2]
        return f"The data is a sample: {last[:1].lower()}{last[1:]}." if last else ""
    return next(iter([*_random_start(facts), *_few_samples(facts)]), "")


def verdicts(facts: RunFacts) -> list[str]:
    """Return one line per split on the base model's scores, or why there are none."""
    lines, named_differences = [], [d for d in differences(facts) if (d.split, d.metric) in NAMED]
    for split in dict.fromkeys(each.split for each in named_differences):
        comparisons = [each.said() for each in named_differences if each.split == split]
        lines.append(f"Against base on {TITLES.get(split, split)}: {'; '.join(comparisons)}.")
    return lines or [text for text in (missing_base(facts),) if text]


def details(facts: RunFacts) -> str:
    """Return what was trained, and how the answers were made."""
    return " ".join(sentence for sentence in (_trained(facts), _decoded(facts)) if sentence)


def _trained(facts: RunFacts) -> str:
    adapter = facts.get("adapter") or {}
    trained, total = adapter.get("trainable_parameters"), adapter.get("total_parameters")
    if adapter.get("method") == "base":
        return "Nothing was trained: this is the model as it is."
    if facts.is_evaluation:
        return f"Scored: {facts.get('checkpoint')} (adapter {facts.adapter}); nothing was trained."
    if trained is None:
        return ""
    text = f"Adapter {facts.adapter}: trains {count(trained)}"
    if not total:
        return f"{text} parameters."
    return f"{text} of {count(total)} parameters, its own included ({100 * trained / total:.2f} %)."


def _decoded(facts: RunFacts) -> str:
    for split, scores in evaluated(facts):
        ways = {name: dig(scores, "decoding", name) for name in ("mode", "max_new_tokens")}
        settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in ways.items() if v is not None)
        stopped = dig(scores, "metrics", "stopped")
        parts = [f"decoding {settings}" if settings else ""]
        parts += (
            [f"{share(stopped)} of the answers ended by themselves"] if stopped is not None else []
        )
        text = "; ".join(part for part in parts if part)
        where = TITLES.get(split, split)
        return f"On {where}: {text}." if text else ""
    return ""


def glossary(facts: RunFacts) -> list[str]:
    """Return one line for each term that the head of the report uses."""
    scores_by_split, lines = dict(evaluated(facts)), []
    if "test" in scores_by_split:
        lines.append(
            "Syntax accuracy: the share of generated answers that Python parses. BLEU: corpus BLEU "
            "from 0 to 100 of whole generations, comparable only with an equal signature."
        )
    if any(task in scores_by_split for task in TASKS):
        lines.append("Pass@1: the share of problems whose one generated program passes its tests.")
    if differences(facts):
        lines.append(
            "Against base: both models on the same samples. Within noise: the 95 % interval of the "
            "difference (in brackets) holds 0, or chance alone often reaches it."
        )
    return lines


def cautions(facts: RunFacts) -> list[str]:
    """Return what a reader should hold against the scores, the sample's own note first."""
    note = facts.get("data", "note")
    sentences = [str(note)] if facts.is_sample and note else []
    for doubts in DOUBTS:
        sentences += doubts(facts)
    return sentences + [f"Warning: {warning}" for warning in facts.get("warnings") or []]


def _random_start(facts: RunFacts) -> list[str]:
    is_embedded = facts.get("settings", "model") in FINETUNE.models.embedded
    if not facts.get("model", "random_weights") or is_embedded:
        return []
    return ["The model started from random weights, not from pretrained ones."]


def _few_samples(facts: RunFacts) -> Iterator[str]:
    for split, scores in evaluated(facts):
        samples = scores.get("n_samples")
        if samples is not None and samples < FEW_SAMPLES:
            unit = "samples" if split == "test" else "problems"
            name = TITLES.get(split, split)
            yield f"Only {count(samples)} {unit} of {name}: its intervals are rough."


def _cut_answers(facts: RunFacts) -> Iterator[str]:
    for split, scores in evaluated(facts):
        stopped = dig(scores, "metrics", "stopped")
        if stopped is not None and stopped < WELL_STOPPED:
            yield (
                f"{TITLES.get(split, split)}: {share(1 - stopped)} of the answers were cut at "
                f"{_limit(facts, scores)} new tokens, before the model ended them."
            )


def _limit(facts: RunFacts, scores: Mapping[str, Any]) -> str:
    limit = dig(scores, "decoding", "max_new_tokens") or facts.get("settings", "max_new_tokens")
    return count(limit) if limit is not None else "the limit of"


def _cut_samples(facts: RunFacts) -> list[str]:
    samples, cut = (facts.get("data", "splits", "train", key) for key in ("samples", "cut"))
    if not cut or not samples:
        return []
    length = count(facts.get("settings", "seq_len"))
    return [f"{share(cut / samples)} of the train samples are longer than {length} tokens and cut."]


def _few_steps(facts: RunFacts) -> list[str]:
    steps = facts.get("training", "optimizer_steps")
    if facts.is_evaluation or not 0 < (steps or 0) < FEW_STEPS:
        return []
    steps_text = f"Only {count(steps)} optimizer step" + ("" if steps == 1 else "s")
    return [
        f"{steps_text}: an adapter hardly learns in so few. More rows or more epochs make more."
    ]


def _columns(facts: RunFacts) -> list[str]:
    """Tell which columns were read as what, where their names left a choice."""
    notes = facts.get("data", "problems", "notes") or []
    matches = [COLUMNS_NOTE.fullmatch(str(note)) for note in notes]
    return [f"Columns read by another name: {match[1]}." for match in matches if match]


def _skipped(facts: RunFacts) -> list[str]:
    skipped = facts.get("training", "skipped_steps")
    if not skipped:
        return []
    return [f"{count(skipped)} optimizer steps were skipped, as gradients overflowed."]


def _left_over(facts: RunFacts) -> list[str]:
    before, after = (facts.get("gpu_baseline", f"{when}_bytes") for when in ("before", "after"))
    if before is None or after is None or after - before < BASELINE_BYTES:
        return []
    return [f"After the run the GPU held {size(after - before)} more than before it."]


def _like_held_out(facts: RunFacts) -> list[str]:
    duplicates = facts.get("data", "problems", "duplicates")
    like, removed = dig(duplicates, "train_rows_like_any"), dig(duplicates, "removed")
    if not like or removed:
        return []
    return [f"{count(like)} train rows equal or nearly equal a row of valid or test, and are used."]


def _quantised(facts: RunFacts) -> list[str]:
    """QLoRA answers on its base in 4 bits, and `base` on the base as it is."""
    if facts.adapter == "base" or not facts.get("model", "quantised") or not differences(facts):
        return []
    return [
        "Trained and evaluated on the base in 4 bits, and compared with the base as it is: a "
        "difference is that of adapter and quantisation together."
    ]


def _sandbox(facts: RunFacts) -> list[str]:
    warning = facts.get("sandbox", "warning")
    return [f"Generated programs ran in a sandbox. {warning}"] if warning else []


DOUBTS = (
    _random_start,
    _few_samples,
    _few_steps,
    _columns,
    _cut_answers,
    _cut_samples,
    _like_held_out,
    _skipped,
)
DOUBTS += (_left_over, _quantised, _sandbox)

# The parts of a report that stand in modules of their own, under the names that every job has.


def alarms(facts: RunFacts) -> list[str]:
    """Return what a reader must not miss: nothing of this job."""
    return []


def tables() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    from nbhelpers.reports.finetune_tables import makers

    return makers()


def sections(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the HTML below the head of the page."""
    from nbhelpers.reports.html import cost, origin

    parts = (middle, cost, origin)
    return "".join(part(facts, tables, plots) for part in parts)


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures, by their names."""
    from nbhelpers.reports.figures_jobs import finetune_figures as drawn

    return drawn(facts)


def captions() -> dict[str, str]:
    """Return what the figures show, where it is not what those of other jobs show."""
    from nbhelpers.reports.figures_jobs import CAPTIONS

    return CAPTIONS


# ------------------------------------------------------------------------------------------------
# The middle of a fine-tuning's page: scores, samples, doubts and what was trained, as HTML.


SHOWN_PARTS, SHOWN_PART = 40, 1500  # of the coloured example: parts, and characters of each


def middle(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the sections between the head and the cost of a run."""
    return _scores(facts, tables, plots) + _trust(facts, tables) + _trained_facts(facts, tables)


def _scores(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    is_over = facts.is_complete or facts.status == "finished"
    missing = not_evaluated(facts) if is_over else {}
    gaps = "".join(
        paragraph(f"{TITLES.get(split, split)}: {why}.") for split, why in missing.items()
    )
    note = (
        "Intervals: 95 %, over samples; Wilson's for shares, resampling for the others. BLEU and "
        "chrF go from 0 to 100, the others from 0 to 1, but for the mean number of new tokens."
    )
    return (
        section("Targets", table_of(_target_cells(tables.get("targets"))))
        + section("Scores", table_of(_score_cells(tables.get("scores"))) + gaps, note)
        + figure(plots, "scores", caption(facts, "scores"))
        + section("Against the base model", table_of(difference_cells(tables.get("base"))))
        + section("Programs in the sandbox", table_of(_named(tables.get("outcomes"))))
        + section("Why Python does not parse an answer", table_of(_named(tables.get("syntax"))))
        + samples_section(facts)
    )


def _trust(facts: RunFacts, tables: Tables) -> str:
    note = (
        "Scores are comparable only where the samples, the decoding and the signatures are equal."
    )
    return section(
        "What to hold against these scores", "".join(paragraph(text) for text in cautions(facts))
    ) + section(
        "How answers were made and scored",
        table_of(_named(tables.get("decoding")), classes="long"),
        note,
    )


def _trained_facts(facts: RunFacts, tables: Tables) -> str:
    parity = (
        "Parity: a batch under the chosen attention beside its samples one by one under eager "
        "attention, before training."
    )
    paragraphs = "".join(paragraph(text) for text in (energy_said(facts), baseline_said(facts)))
    return (
        section("Adapter", table_of(tables.get("adapter"), classes="long"))
        + section("Model", table_of(tables.get("model"), classes="long"), parity)
        + section("What is supervised", _example(facts), "Marked: what the loss counts.")
        + section("Energy, and memory after the run", paragraphs)
    )


def _score_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put the splits side by side: one row per metric, `value (low to high)` per split."""
    import pandas as pd

    if table is None:
        return None
    cells: dict[str, dict[str, str]] = {}
    heads = []
    for row in table.to_dict("records"):
        metric, samples = row["metric"], known(row["samples"])
        edges = edges_of(metric, [row["low"], row["high"]])
        cell = written(metric, known(row["value"])) + (f" ({edges})" if edges else "")
        split = TITLES.get(row["split"], row["split"])
        head = split if samples is None else f"{split} (n = {count(samples)})"
        cells.setdefault(metric, {})[head] = cell
        heads += [head] if head not in heads else []
    order = [metric.name for metric in FINETUNE_SCORES.metrics if metric.name in cells]
    rows = [{"metric": TITLES.get(metric, metric)} | cells[metric] for metric in order]
    return pd.DataFrame(rows, columns=["metric", *heads]).fillna("")


def _target_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Write values by their metric; a score that was not made is no number."""
    import pandas as pd

    if table is None:
        return None
    rows = []
    for row in table.to_dict("records"):
        metric, value = row["metric"], known(row["value"])
        cell = (row["note"] or "undefined") if value is None else written(metric, value)
        cells = {"metric": metric, "at least": f"{row['target']:g}", "value": cell}
        rows.append(cells | {"passed": bool(row["passed"])})
    return pd.DataFrame(rows)


def difference_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Write a table of differences: both scores, and the difference with its interval."""
    import pandas as pd

    if table is None or not len(table):
        return None
    rows = []
    for row in table.to_dict("records"):
        metric, split = row.pop("metric"), row.pop("split")
        edges = [known(row.pop("low")), known(row.pop("high"))]
        cells = {"score": f"{TITLES.get(metric, metric)}, {TITLES.get(split, split)}"}
        for name, value in row.items():
            is_number = isinstance(value, int | float)
            cells[name] = written(metric, known(value)) if is_number else value
        cells["difference"] = signed(metric, known(row.get("difference")))
        if None not in edges:
            cells["difference"] += f" ({signed(metric, edges[0])} to {signed(metric, edges[1])})"
        rows.append(cells)
    return pd.DataFrame(rows)


def _named(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Call splits by their names."""
    return None if table is None else table.assign(split=table["split"].replace(TITLES))


def _example(facts: RunFacts) -> str:
    """Return one sample as text, the supervised parts marked."""
    parts = facts.get("data", "example") or []
    pieces = []
    for part in parts[:SHOWN_PARTS]:
        text, is_supervised = part
        text = html.escape(text[:SHOWN_PART])
        pieces.append(f"<mark>{text}</mark>" if is_supervised else text)
    return f"<pre class='long'>{''.join(pieces)}</pre>" if pieces else ""
