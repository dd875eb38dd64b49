"""The report of a detector: headline, alarms, verdicts and cautions, as text and as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count
from nbhelpers.metrics.registry import DETECTOR_SCORES
from nbhelpers.presets.jobs import DETECTOR
from nbhelpers.reports.detector_tables import (
    AHEAD,
    BROKEN,
    EDITED,
    FLOOR_NAMES,
    Beside,
    abstain_said,
    audit_said,
    audit_warnings,
    calibration_said,
    compile_said,
    data_cells,
    edges,
    edited_cells,
    floor_cells,
    floors_of,
    inference_said,
    is_beaten,
    means_said,
    metric_said,
    pair_cells,
    part,
    phases_said,
    point_said,
    promise_cells,
    promise_said,
    promises,
    rate_said,
    retrieval_cells,
    rows,
    score_cells,
    setting_cells,
    similarity_headline,
    similarity_verdicts,
    slice_cells,
    speed_said,
    split_said,
    splits,
    target_cells,
    worst_said,
)
from nbhelpers.reports.facts import RunFacts, dig, score
from nbhelpers.reports.figures import caption
from nbhelpers.reports.page import figure, paragraph, section, table_of
from nbhelpers.reports.sections import standing
from nbhelpers.reports.tables import memory_parts
from nbhelpers.reports.text import citation, memory_sentence
from nbhelpers.use.facts import NO_EVIDENCE, NO_EVIDENCE_SIMILAR

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------
# What the report of a detector concludes: headline, alarms, verdicts, and what to hold against.


Tables = Mapping[str, "pd.DataFrame"]
FEW = 100  # programs of one class
LARGE_LOSS = 0.5  # of the TPR, under an edit
COMPARED = ("test", "held_out")


def headline(facts: RunFacts) -> str:
    """Return the finding in one sentence, and the first thing to hold against it."""
    main = next(splits(facts), None)
    if main is not None:
        finding = _detection_said(facts, *main)
    else:
        finding = similarity_headline(facts) or _unscored(facts)
    return f"{finding} {_caveat(facts)}".strip()


def _unscored(facts: RunFacts) -> str:
    if facts.status != "finished":
        return standing(facts)
    text, steps = (
        "Not evaluated: no split has scores",
        dig(facts.data, "training", "optimizer_steps"),
    )
    if steps:
        loss = score(dig(facts.data, "training", "last_loss"))
        text += f"; trained for {count(steps)} optimizer steps, loss {loss}"
    return f"{text}."


def _detection_said(facts: RunFacts, name: str, scores: Mapping[str, Any]) -> str:
    """Return ROC-AUC, TPR and realised FPR of a split, beside its best floor."""
    where, n_human, n_ai = split_said(facts, name), scores.get("n_human"), scores.get("n_ai")
    if n_ai == 0 or n_human == 0:
        return _one_class(where, scores, "AI" if n_ai == 0 else "human")
    target = dig(facts.data, "operating_point", "target_fpr")
    promised = "" if target is None else f", promised {100 * target:.3g} %"
    fpr = rate_said(dig(scores, "metrics", "fpr"), edges(scores, "intervals", "fpr"))
    text = f"ROC-AUC {metric_said(scores, 'roc_auc')} on {where}, and TPR "
    text += f"{metric_said(scores, 'tpr')} at a realised false-positive rate of {fpr}{promised}"
    return f"{text}{_best_floor(scores)}."


def _one_class(where: str, scores: Mapping[str, Any], missing: str) -> str:
    metric, title = ("fpr", "false-positive rate") if missing == "AI" else ("tpr", "TPR")
    rate = rate_said(dig(scores, "metrics", metric), edges(scores, "intervals", metric))
    return f"No ROC-AUC on {where}, which has no {missing} program: {title} {rate}."


def _best_floor(scores: Mapping[str, Any]) -> str:
    baselines = floors_of(scores)
    if not baselines:
        return ""
    name, beside = next(iter(baselines.items()))
    values = ", ".join(
        f"{DETECTOR_SCORES.short(each.metric)} {score(each.other)}" for each in beside
    )
    title = f"the best floor, {FLOOR_NAMES.get(name, name)} ({values})"
    if is_beaten(beside):
        return f"; it beats {title}" + (", in both" if len(beside) > 1 else "")
    by_standing = "; ".join(_joined(beside))
    verb = (
        "does not beat" if not any(each.standing == AHEAD for each in beside) else "beats in part"
    )
    return f"; it {verb} {title}: {by_standing}"


def _joined(beside: list[Beside]) -> list[str]:
    """Return `ahead in TPR`, `level in ROC-AUC`: what stands alike together."""
    metrics: dict[str, list[str]] = {}
    for each in beside:
        metrics.setdefault(each.standing, []).append(DETECTOR_SCORES.short(each.metric))
    return [f"{standing} in {' and '.join(names)}" for standing, names in metrics.items()]


def _caveat(facts: RunFacts) -> str:
    if facts.is_sample:
        note = str(facts.get("data", "note") or "")
        last = note.rstrip(".").rpartition(". ")[2]
        return f"The data is a sample: {last[:1].lower()}{last[1:]}." if last else ""
    return next(iter([*_elsewhere(facts), *_random_start(facts)]), "")


def alarms(facts: RunFacts) -> list[str]:
    """Return what a reader must not miss: broken promises, and data that the audit rejects."""
    sentences = [promise_said(facts, each) for each in promises(facts) if each.verdict == BROKEN]
    sentences.sort(key=lambda text: not text.startswith("The promise is broken on unseen humans"))
    if facts.get("audit", "verdict") == "hopeless":
        sentences.append(audit_said(facts))
    return sentences


def verdicts(facts: RunFacts) -> list[str]:
    """Return what the detector is no evidence of, the audit, and the model beside its floors."""
    has_scores = next(splits(facts), None) is not None
    sentences = [NO_EVIDENCE] if has_scores or not part(facts.data, "similarity") else []
    sentences = sentences or [NO_EVIDENCE_SIMILAR]
    sentences += [audit_said(facts)] if facts.get("audit", "verdict") != "hopeless" else []
    compared = [(name, scores) for name, scores in splits(facts) if name in COMPARED]
    sentences += [_against_floors(split_said(facts, name), scores) for name, scores in compared]
    return [text for text in [*sentences, *similarity_verdicts(facts)] if text]


def _against_floors(where: str, scores: Mapping[str, Any]) -> str:
    """Say in one sentence which floors are beaten, and how the others stand; TF-IDF first."""
    baselines = floors_of(scores)
    order = sorted(baselines, key=lambda name: name != "tfidf")
    beaten = [FLOOR_NAMES.get(name, name) for name in order if is_beaten(baselines[name])]
    others = [
        f"{FLOOR_NAMES.get(name, name)} ({'; '.join(_joined(baselines[name]))})"
        for name in order
        if not is_beaten(baselines[name])
    ]
    clauses = [f"beats {listed(beaten)}"] if beaten else []
    clauses += [f"does not beat {listed(others)}"] if others else []
    clauses.sort(key=lambda text: bool(order) and FLOOR_NAMES.get(order[0], order[0]) not in text)
    return f"On {where} it {'; it '.join(clauses)}." if clauses else ""


def listed(names: list[str]) -> str:
    """Write names as a person lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def details(facts: RunFacts) -> str:
    """Return what the scores rest on: how many programs, and where it works worst."""
    main = next(splits(facts), None)
    sentences = []
    if main is not None:
        name, scores = main
        text = f"The {name} split: {count(dig(scores, 'n_human'))} human and "
        text += f"{count(dig(scores, 'n_ai'))} AI programs"
        tasks = dig(scores, "n_tasks")
        sentences.append(text + (f" of {count(tasks)} tasks." if tasks is not None else "."))
        sentences += worst_said(scores)
    return " ".join(text for text in sentences if text)


def glossary(facts: RunFacts) -> list[str]:
    """Return one line for each term that the head of the report uses."""
    scores_by_split, lines = dict(splits(facts)), []
    if scores_by_split:
        lines.append(
            "TPR: the share of AI programs that are called AI. FPR, the false-positive rate: that "
            "of human programs; promised on the humans that the threshold was chosen on, realised "
            "on others. Undecided: neither called AI nor cleared, as the score lies in a band."
        )
    if any(floors_of(scores) for scores in scores_by_split.values()):
        lines.append(
            "Floors: cheap scorers, trained on the same rows, that a model should beat; each has "
            "its own threshold, frozen at the same promise. Ahead or behind: the 95 % interval of "
            "the difference leaves out 0; level: it holds 0. TPR at promised FPR: with a threshold "
            "that gives this rate on the split itself, so that scorers can be compared."
        )
    if part(facts.data, "similarity"):
        lines.append(
            "MRR: the mean of 1 / rank of the first program of the same task. MAP@R: the mean "
            "precision over the first R ranks, R being the number of such programs."
        )
    return lines


def cautions(facts: RunFacts) -> list[str]:
    """Return what a terminal's reader should hold against the scores, the sample's note first."""
    note = facts.get("data", "note")
    sentences = [str(note)] if facts.is_sample and note else []
    sentences += [promise_said(facts, each) for each in promises(facts) if each.verdict != BROKEN]
    warned = len(audit_warnings(facts))
    more = [f"The audit of the data has {count(warned)} warnings; the page lists them."]
    return [*sentences, *doubts(facts), *(more if warned else [])]


def doubts(facts: RunFacts) -> list[str]:
    """Return what to hold against the scores, but for what a section of the page has already."""
    first, known = headline(facts), rows(facts.data, "operating_point", "warnings")
    sentences = [text for doubt in DOUBTS for text in doubt(facts) if text not in first]
    return sentences + [text for text in facts.get("warnings") or [] if text not in known]


def _elsewhere(facts: RunFacts) -> Iterator[str]:
    """Tell how the detector does on data of another kind, beside test."""
    scores_by_split = dict(splits(facts))
    test, other = scores_by_split.get("test"), scores_by_split.get("held_out")
    if test and other and dig(other, "metrics", "roc_auc") is not None:
        yield (
            f"On {split_said(facts, 'held_out')} ROC-AUC is {metric_said(other, 'roc_auc')} and "
            f"TPR {metric_said(other, 'tpr')}."
        )


def _few_programs(facts: RunFacts) -> Iterator[str]:
    few: dict[str, list[str]] = {}
    for name, scores in splits(facts):
        where = split_said(facts, name)
        for key, title in (("n_human", "human"), ("n_ai", "AI")):
            number = dig(scores, key)
            if number is None or number >= FEW or (not number and name == "unseen_humans"):
                continue
            if number:
                few.setdefault(where, []).append(f"{count(number)} {title}")
            else:
                yield f"No {title} program in {where}: what needs both classes is undefined."
    if few:
        clauses = [f"{' and '.join(counts)} programs in {where}" for where, counts in few.items()]
        yield f"Only {listed(clauses)}: intervals are rough."


def _edits(facts: RunFacts) -> Iterator[str]:
    """Name the edit that costs most of the detected programs, where it is half of them."""
    for name, scores in splits(facts):
        losses = {
            edit: (dig(values, "tpr_unedited"), dig(values, "tpr"))
            for edit, values in part(scores, "edits").items()
        }
        known = {e: (b, a) for e, (b, a) in losses.items() if b and a is not None}
        worst = max(known, key=lambda e: known[e][0] - known[e][1], default=None)
        if worst is not None and known[worst][0] - known[worst][1] >= LARGE_LOSS * known[worst][0]:
            before, after = known[worst]
            yield (
                f"An edit hides AI programs: once they are {EDITED.get(worst, worst)}, TPR on "
                f"{split_said(facts, name)} falls from {score(before)} to {score(after)}."
            )


def _truncated(facts: RunFacts) -> list[str]:
    cut, length = dig(facts.data, "data", "truncated"), facts.get("settings", "seq_len")
    is_said = any("longer than" in text for text in rows(facts.data, "warnings"))
    if not cut or is_said or length is None:
        return []
    return [f"{count(cut)} programs of the data are longer than {count(length)} tokens, and cut."]


def _random_start(facts: RunFacts) -> list[str]:
    is_random = facts.get("model", "random_weights") is True and not facts.is_evaluation
    if not is_random or facts.get("settings", "model") in DETECTOR.models.embedded:
        return []
    return ["The model started from random weights, not from pretrained ones."]


def _skipped(facts: RunFacts) -> list[str]:
    skipped = dig(facts.data, "training", "skipped_steps")
    return (
        [f"{count(skipped)} optimizer steps were skipped, as gradients overflowed."]
        if skipped
        else []
    )


DOUBTS = (_elsewhere, _few_programs, _edits, _truncated, _random_start, _skipped)

# The parts of a report that stand in modules of their own, under the names that every job has.


def tables() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    from nbhelpers.reports.detector_tables import makers

    return makers()


def score_lines(facts: RunFacts, tables: Tables) -> list[str]:
    """Return the scores of each split for a terminal."""
    from nbhelpers.reports.detector_tables import score_lines as lines

    return lines(facts, tables)


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what else a terminal shows of the run."""
    from nbhelpers.reports.detector_tables import cost_lines as lines

    return lines(facts)


def sections(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the HTML below the head of the page."""

    parts = (middle, cost, origin)
    return "".join(part(facts, tables, plots) for part in parts)


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures, by their names."""
    from nbhelpers.reports.figures_jobs import figures as drawn

    return drawn(facts)


def captions() -> dict[str, str]:
    """Return what the figures show, where it is not what those of other jobs show."""
    from nbhelpers.reports.figures_jobs import DETECTOR_CAPTIONS

    return DETECTOR_CAPTIONS


# ------------------------------------------------------------------------------------------------
# The middle of a detector's page: scores, promise, floors, edits, similarity and doubts.


Plots = Mapping[str, Path]
Cells = Callable[["pd.DataFrame"], "pd.DataFrame"]
SHOWN_ROWS = 40  # of slices; the others are folded away
MOST_ROWS = 400  # of those, on the page; the table of the report has all
MOST_PARTS = 60
MOST_LINES, MOST_CHARACTERS = 12, 300  # of what the checks of the data found
FEATURES = 5
_BRACKETS = re.compile(r"\([^()]*\)")


def middle(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return the sections between the head and the cost of a run."""
    note = str(facts.get("data", "note") or "")
    against = [text for text in [note, *doubts(facts)] if text]
    return (
        section("Targets", table_of(target_cells(tables.get("targets"))))
        + _scores(facts, tables, plots)
        + _point(facts, tables)
        + _parts(facts, tables, plots)
        + _similarity(tables)
        + section("What to hold against these scores", "".join(paragraph(t) for t in against))
        + section("Audit of the data", _audit(facts, tables))
    )


def cost(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return what the run took: memory, time, GPUs, and how the training went."""
    memory = paragraph(memory_sentence(tables)) if "memory" in tables else ""
    memory += _figure(facts, plots, "memory") + memory_parts(facts, tables, plots)
    sentences = [phases_said(facts), compile_said(facts), speed_said(facts), inference_said(facts)]
    time = table_of(_longer(tables.get("timing"))) + table_of(tables.get("time"))
    time += "".join(paragraph(text) for text in sentences)
    return (
        section("Memory", memory)
        + section("Time", time)
        + section("GPUs", table_of(tables.get("gpus")) + _figure(facts, plots, "gpu"))
        + section("Training", table_of(tables.get("training")) + _figure(facts, plots, "loss"))
    )


def origin(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return the data, the settings, and what is needed to cite or repeat the run."""
    import pandas as pd

    parts, problems = tables.get("data_parts"), data_found(facts)
    data = table_of(data_cells(tables.get("data"), None if parts is None else parts[:MOST_PARTS]))
    data += _figure(facts, plots, "lengths") + "".join(paragraph(text, "note") for text in problems)
    cites = [row for row in citation(facts).items() if row[0] != "data note"]  # among the doubts
    cited = pd.DataFrame(cites, columns=["to cite", "value"])
    settings = table_of(setting_cells(tables.get("settings")))
    return (
        section("Data", data)
        + section("Settings that differ from the base preset", settings)
        + section("To cite or repeat this run", table_of(cited, classes="long"))
    )


def _longer(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Leave out the phases that took no time worth a line."""
    return None if table is None else table[~(table["seconds"] < 0.05)]


def _audit(facts: RunFacts, tables: Tables) -> str:
    listed = "".join(f"<li>{html.escape(text)}</li>" for text in audit_warnings(facts))
    features = tables.get("features")
    note = "Area under the ROC curve of each of these features alone, of the code as it is and in "
    note = paragraph(f"{note}the form that the model reads.", "note")
    listed = f"<ul class='note'>{listed}</ul>" if listed else ""
    return listed + ("" if features is None else note + table_of(features[:FEATURES].round(3)))


def _scores(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    note = (
        "AI is the positive class; all at the frozen threshold, but for the areas. Intervals: "
        "95 %, by resampling tasks; Clopper-Pearson for FPR, which takes human programs as "
        "independent and so is too narrow where tasks or people repeat. A dash: undefined, as the "
        "split has one class."
    )
    return (
        section("Scores", _lines(score_cells(tables.get("scores"))), note)
        + section(
            "Beside the floors",
            _lines(floor_cells(tables.get("floors"))),
            "Leads: ours minus the floor's, on the same resamples.",
        )
        + _figure(facts, plots, "roc")
        + _figure(facts, plots, "scores")
    )


def _point(facts: RunFacts, tables: Tables) -> str:
    table = promise_cells(tables.get("promise"), tables.get("prevalence"))
    note = (
        "Kept: the whole interval lies below the promise; broken: above it; else open. It takes "
        "programs as independent: of few tasks, or few people, even a kept promise says little. "
        "Precision, the share of calls that are right, depends on how much of the code is AI code."
    )
    content = paragraph(point_said(facts)) + _lines(table)
    content += paragraph(abstain_said(facts)) + paragraph(calibration_said(facts))
    return section("Threshold, promise and precision", content, note if len(table) else "")


def _parts(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    edits = (
        "The meaning of each program stays, and so does the threshold. AI programs edited: TPR; "
        "human programs edited: FPR. Before and after are the programs that the edit changes."
    )
    return (
        section("Edits", _lines(edited_cells(tables.get("edits"))), edits)
        + _figure(facts, plots, "edits")
        + section("Slices", _slices(facts, tables) + _figure(facts, plots, "slices"))
    )


def _slices(facts: RunFacts, tables: Tables) -> str:
    """Return the slices that are not all of their split, the crossed kinds left to the table."""
    table = tables.get("slices")
    if table is None:
        return ""
    kinds = table.groupby(["split", "by"])["value"].transform("size")
    is_shown = ~table["by"].str.contains(" x ", regex=False) & (kinds > 1)
    is_shown = (is_shown | (table["worst"] != "")) & (table["split"] != "valid")
    means = list(means_said(facts))
    means_text = f"Means on test, each slice counted once: {'; '.join(means)}." if means else ""
    rest = len(table) - int(is_shown.sum())
    more = f"{count(rest)} more stand in result.json: of valid, crossed, or all of their split."
    return _folded(table[is_shown], slice_cells, "slices") + paragraph(
        f"{means_text} {more if rest else ''}".strip(), "note"
    )


def _folded(table: pd.DataFrame | None, cells: Cells, what: str, *, first: int = SHOWN_ROWS) -> str:
    """Return the first rows of a table, and the others folded away."""
    if table is None:
        return ""
    shown, rest = _lines(cells(table[:first])), table[first:]
    if not len(rest):
        return shown
    more = _lines(cells(rest[:MOST_ROWS]))
    title = f"{count(len(rest))} {'more ' if first else ''}{what}"
    return f"{shown}<details><summary>{title}</summary>{more}</details>"


def _similarity(tables: Tables) -> str:
    retrieval = (
        "Every query looks for programs of its own task among the others of the pool. A lead that "
        "holds 0 in its interval is none. Raw encoder: the same model before this training."
    )
    pairs = (
        "Pairs of one task against hard negatives of another: same language, like length. The "
        "threshold is from validation tasks."
    )
    table, of_pairs = tables.get("retrieval"), tables.get("pairs")
    skipped = ""
    if table is not None:
        notes = dict(table.loc[table["note"] != "", ["scorer", "note"]].itertuples(index=False))
        skipped = "; ".join(f"{scorer}: {note}" for scorer, note in notes.items())
        skipped = paragraph(f"Not scored: {skipped}." if skipped else "", "note")
    if of_pairs is not None:
        of_pairs = of_pairs[of_pairs["note"] == ""]
    return section(
        "Similarity: finding programs of the same task",
        _lines(retrieval_cells(_whole_first(table))) + skipped,
        retrieval,
    ) + section("Similarity: pairs", _lines(pair_cells(of_pairs)), pairs)


def _whole_first(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put retrieval among all languages above that from one language to another."""
    if table is None:
        return None
    return table.sort_values("query", key=lambda names: names != "all", kind="stable")


def _lines(table: pd.DataFrame) -> str:
    """Return a table whose cells break before a bracket and not inside one."""
    for name in table.columns:
        table[name] = [_unbroken(cell) for cell in table[name]]
    return table_of(table, classes="wrap")


def _unbroken(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return _BRACKETS.sub(lambda match: match[0].replace(" ", "\u00a0"), cell)


def _figure(facts: RunFacts, plots: Plots, name: str) -> str:
    return figure(plots, name, caption(facts, name)) if name in plots else ""


def data_found(facts: RunFacts) -> list[str]:
    """Return in sentences what the checks of the data found and what its splits share."""
    problems = facts.get("data", "problems") or {}
    if isinstance(problems, str):  # of an older run
        problems = {"left_out": problems}
    sentences = [problems["left_out"]] if problems.get("left_out") else []
    if dropped := _counts(problems.get("rows_dropped")):
        sentences.append(f"Rows dropped: {dropped}.")
    notes = problems.get("notes") or []
    sentences += [f"{str(note).removeprefix('note: ').capitalize()}." for note in notes]
    sentences += [f"For instance {text}." for text in problems.get("examples") or [] if text]
    if same := _counts(problems.get("duplicates")):
        sentences.append(f"Repeated rows: {same}.")
    if unknown := _counts(problems.get("rows_without")):
        sentences.append(f"Rows without: {unknown}.")
    sentences += [_shared(facts)]
    sentences = [text[:MOST_CHARACTERS] for text in sentences if text]
    more = [f"And {len(sentences) - MOST_LINES} more."] if len(sentences) > MOST_LINES else []
    return sentences[:MOST_LINES] + more


def _counts(numbers: Any) -> str:
    """Write the counts of a mapping that are not 0."""
    counts = (numbers or {}).items()
    return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts if n)


def _shared(facts: RunFacts) -> str:
    """Say what the splits share: nothing, as the job asserts."""
    overlap = {
        str(pair): _counts(shared) for pair, shared in part(facts.data, "data", "overlap").items()
    }
    if shared := [f"{pair} {counts}" for pair, counts in overlap.items() if counts]:
        return f"Splits share: {'; '.join(shared)}."
    return "The splits share no code, nearly equal code, task or author." if overlap else ""
