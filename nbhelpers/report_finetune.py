"""What the report of a fine-tuning concludes: the headline, against the base model, the doubts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import count, share, size
from nbhelpers.job_specs import FINETUNE
from nbhelpers.metric_registry import TASKS, TITLES
from nbhelpers.report_facts import RunFacts, dig, score
from nbhelpers.report_findings import standing
from nbhelpers.report_finetune_base import NAMED, against_base, differences, missing_base
from nbhelpers.report_finetune_tables import evaluated
from nbhelpers.report_finetune_words import with_edges

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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
    said = [_scores_said(facts), against_base(facts), _caveat(facts)]
    return " ".join(sentence for sentence in said if sentence)


def _unscored(facts: RunFacts) -> str:
    if facts.status != "finished":
        return standing(facts)
    training = facts.get("training") or {}
    said = f"Not evaluated: no answers were generated {_setting_said(facts)}".rstrip()
    if training.get("optimizer_steps"):
        said += f"; trained for {count(training['optimizer_steps'])} optimizer steps"
        said += f", loss {score(training.get('last_loss'))}"
    return f"{said}."


def _setting_said(facts: RunFacts) -> str:
    wanted = facts.get("settings", "evaluate")
    return f"(evaluate={wanted})" if wanted else ""


def _scores_said(facts: RunFacts) -> str:
    """Return syntax accuracy and BLEU on test, and pass@1 on each set of problems."""
    said, found = [], dict(evaluated(facts))
    if test := found.get("test"):
        named = [name for name in ("syntax_accuracy", "bleu") if name in test["metrics"]]
        text = ", ".join(f"{TITLES[name]} {with_edges(name, test)}" for name in named)
        said.append(f"{text} on {count(test.get('n_samples'))} test samples")
    for task in (name for name in TASKS if name in found):
        if "pass@1" in found[task]["metrics"]:
            said.append(f"pass@1 {with_edges('pass@1', found[task])} on {TITLES[task]}")
    whole = "; ".join(said)
    if not any(task in found for task in TASKS):
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
    lines, found = [], [d for d in differences(facts) if (d.split, d.metric) in NAMED]
    for split in dict.fromkeys(each.split for each in found):
        said = [each.said() for each in found if each.split == split]
        lines.append(f"Against base on {TITLES.get(split, split)}: {'; '.join(said)}.")
    return lines or [text for text in (missing_base(facts),) if text]


def details(facts: RunFacts) -> str:
    """Return what was trained, and how the answers were made."""
    return " ".join(said for said in (_trained(facts), _decoded(facts)) if said)


def _trained(facts: RunFacts) -> str:
    adapter = facts.get("adapter") or {}
    trained, total = adapter.get("trainable_parameters"), adapter.get("total_parameters")
    if adapter.get("method") == "base":
        return "Nothing was trained: this is the model as it is."
    if facts.is_evaluation:
        return f"Scored: {facts.get('checkpoint')} (adapter {facts.adapter}); nothing was trained."
    if trained is None:
        return ""
    said = f"Adapter {facts.adapter}: trains {count(trained)}"
    if not total:
        return f"{said} parameters."
    return f"{said} of {count(total)} parameters, its own included ({100 * trained / total:.2f} %)."


def _decoded(facts: RunFacts) -> str:
    for split, scores in evaluated(facts):
        ways = {name: dig(scores, "decoding", name) for name in ("mode", "max_new_tokens")}
        said = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in ways.items() if v is not None)
        stopped = dig(scores, "metrics", "stopped")
        parts = [f"decoding {said}" if said else ""]
        parts += (
            [f"{share(stopped)} of the answers ended by themselves"] if stopped is not None else []
        )
        text = "; ".join(part for part in parts if part)
        where = TITLES.get(split, split)
        return f"On {where}: {text}." if text else ""
    return ""


def glossary(facts: RunFacts) -> list[str]:
    """Return one line for each term that the head of the report uses."""
    found, said = dict(evaluated(facts)), []
    if "test" in found:
        said.append(
            "Syntax accuracy: the share of generated answers that Python parses. BLEU: corpus BLEU "
            "from 0 to 100 of whole generations, comparable only with an equal signature."
        )
    if any(task in found for task in TASKS):
        said.append("Pass@1: the share of problems whose one generated program passes its tests.")
    if differences(facts):
        said.append(
            "Against base: both models on the same samples. Within noise: the 95 % interval of the "
            "difference (in brackets) holds 0, or chance alone often reaches it."
        )
    return said


def cautions(facts: RunFacts) -> list[str]:
    """Return what a reader should hold against the scores, the sample's own note first."""
    note = facts.get("data", "note")
    said = [str(note)] if facts.is_sample and note else []
    for doubts in DOUBTS:
        said += doubts(facts)
    return said + [f"Warning: {warning}" for warning in facts.get("warnings") or []]


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
    made = f"Only {count(steps)} optimizer step" + ("" if steps == 1 else "s")
    return [f"{made}: an adapter hardly learns in so few. More rows or more epochs make more."]


def _columns(facts: RunFacts) -> list[str]:
    """Tell which columns were read as what, where their names left a choice."""
    notes = facts.get("data", "problems", "notes") or []
    found = [COLUMNS_NOTE.fullmatch(str(note)) for note in notes]
    return [f"Columns read by another name: {match[1]}." for match in found if match]


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
    found = facts.get("data", "problems", "duplicates")
    like, removed = dig(found, "train_rows_like_any"), dig(found, "removed")
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
    from nbhelpers.report_finetune_tables import makers

    return makers()


def score_lines(facts: RunFacts, tables: Tables) -> list[str]:
    """Return the scores of each split for a terminal."""
    from nbhelpers.report_finetune_words import score_lines as lines

    return lines(facts, tables)


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what else a terminal shows of the run."""
    from nbhelpers.report_finetune_words import cost_lines as lines

    return lines(facts)


def sections(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the HTML below the head of the page."""
    from nbhelpers.report_finetune_html import middle
    from nbhelpers.report_html import cost, origin

    parts = (middle, cost, origin)
    return "".join(part(facts, tables, plots) for part in parts)


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures, by their names."""
    from nbhelpers.plots_finetune import figures as drawn

    return drawn(facts)


def captions() -> dict[str, str]:
    """Return what the figures show, where it is not what those of other jobs show."""
    from nbhelpers.plots_finetune import CAPTIONS

    return CAPTIONS
