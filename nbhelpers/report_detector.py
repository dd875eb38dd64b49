"""What the report of a detector concludes: headline, alarms, verdicts, and what to hold against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_notice import NO_EVIDENCE, NO_EVIDENCE_SIMILAR
from nbhelpers.formatting import count
from nbhelpers.job_specs import DETECTOR
from nbhelpers.metric_registry import DETECTOR_SCORES
from nbhelpers.report_detector_base import (
    AHEAD,
    EDITED,
    FLOOR_NAMES,
    Beside,
    edges,
    floors_of,
    is_beaten,
    metric_said,
    part,
    rate_said,
    rows,
    split_said,
    splits,
)
from nbhelpers.report_detector_similarity import similarity_headline, similarity_verdicts
from nbhelpers.report_detector_words import (
    BROKEN,
    audit_said,
    audit_warnings,
    promise_said,
    promises,
    worst_said,
)
from nbhelpers.report_facts import RunFacts, dig, score
from nbhelpers.report_findings import standing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Tables = Mapping[str, "pd.DataFrame"]
FEW = 100  # programs of one class
LARGE_LOSS = 0.5  # of the TPR, under an edit
COMPARED = ("test", "held_out")


def headline(facts: RunFacts) -> str:
    """Return the finding in one sentence, and the first thing to hold against it."""
    main = next(splits(facts), None)
    if main is not None:
        found = _detection_said(facts, *main)
    else:
        found = similarity_headline(facts) or _unscored(facts)
    return f"{found} {_caveat(facts)}".strip()


def _unscored(facts: RunFacts) -> str:
    if facts.status != "finished":
        return standing(facts)
    said, steps = (
        "Not evaluated: no split has scores",
        dig(facts.data, "training", "optimizer_steps"),
    )
    if steps:
        loss = score(dig(facts.data, "training", "last_loss"))
        said += f"; trained for {count(steps)} optimizer steps, loss {loss}"
    return f"{said}."


def _detection_said(facts: RunFacts, name: str, scores: Mapping[str, Any]) -> str:
    """Return ROC-AUC, TPR and realised FPR of a split, beside its best floor."""
    where, n_human, n_ai = split_said(facts, name), scores.get("n_human"), scores.get("n_ai")
    if n_ai == 0 or n_human == 0:
        return _one_class(where, scores, "AI" if n_ai == 0 else "human")
    target = dig(facts.data, "operating_point", "target_fpr")
    promised = "" if target is None else f", promised {100 * target:.3g} %"
    fpr = rate_said(dig(scores, "metrics", "fpr"), edges(scores, "intervals", "fpr"))
    said = f"ROC-AUC {metric_said(scores, 'roc_auc')} on {where}, and TPR "
    said += f"{metric_said(scores, 'tpr')} at a realised false-positive rate of {fpr}{promised}"
    return f"{said}{_best_floor(scores)}."


def _one_class(where: str, scores: Mapping[str, Any], missing: str) -> str:
    metric, title = ("fpr", "false-positive rate") if missing == "AI" else ("tpr", "TPR")
    rate = rate_said(dig(scores, "metrics", metric), edges(scores, "intervals", metric))
    return f"No ROC-AUC on {where}, which has no {missing} program: {title} {rate}."


def _best_floor(scores: Mapping[str, Any]) -> str:
    floors = floors_of(scores)
    if not floors:
        return ""
    name, beside = next(iter(floors.items()))
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
    found: dict[str, list[str]] = {}
    for each in beside:
        found.setdefault(each.standing, []).append(DETECTOR_SCORES.short(each.metric))
    return [f"{standing} in {' and '.join(names)}" for standing, names in found.items()]


def _caveat(facts: RunFacts) -> str:
    if facts.is_sample:
        note = str(facts.get("data", "note") or "")
        last = note.rstrip(".").rpartition(". ")[2]
        return f"The data is a sample: {last[:1].lower()}{last[1:]}." if last else ""
    return next(iter([*_elsewhere(facts), *_random_start(facts)]), "")


def alarms(facts: RunFacts) -> list[str]:
    """Return what a reader must not miss: broken promises, and data that the audit rejects."""
    said = [promise_said(facts, each) for each in promises(facts) if each.verdict == BROKEN]
    said.sort(key=lambda text: not text.startswith("The promise is broken on unseen humans"))
    if facts.get("audit", "verdict") == "hopeless":
        said.append(audit_said(facts))
    return said


def verdicts(facts: RunFacts) -> list[str]:
    """Return what the detector is no evidence of, the audit, and the model beside its floors."""
    has_scores = next(splits(facts), None) is not None
    said = [NO_EVIDENCE] if has_scores or not part(facts.data, "similarity") else []
    said = said or [NO_EVIDENCE_SIMILAR]
    said += [audit_said(facts)] if facts.get("audit", "verdict") != "hopeless" else []
    compared = [(name, scores) for name, scores in splits(facts) if name in COMPARED]
    said += [_against_floors(split_said(facts, name), scores) for name, scores in compared]
    return [text for text in [*said, *similarity_verdicts(facts)] if text]


def _against_floors(where: str, scores: Mapping[str, Any]) -> str:
    """Say in one sentence which floors are beaten, and how the others stand; TF-IDF first."""
    floors = floors_of(scores)
    order = sorted(floors, key=lambda name: name != "tfidf")
    beaten = [FLOOR_NAMES.get(name, name) for name in order if is_beaten(floors[name])]
    others = [
        f"{FLOOR_NAMES.get(name, name)} ({'; '.join(_joined(floors[name]))})"
        for name in order
        if not is_beaten(floors[name])
    ]
    said = [f"beats {listed(beaten)}"] if beaten else []
    said += [f"does not beat {listed(others)}"] if others else []
    said.sort(key=lambda text: bool(order) and FLOOR_NAMES.get(order[0], order[0]) not in text)
    return f"On {where} it {'; it '.join(said)}." if said else ""


def listed(names: list[str]) -> str:
    """Write names as a person lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def details(facts: RunFacts) -> str:
    """Return what the scores rest on: how many programs, and where it works worst."""
    main = next(splits(facts), None)
    said = []
    if main is not None:
        name, scores = main
        text = f"The {name} split: {count(dig(scores, 'n_human'))} human and "
        text += f"{count(dig(scores, 'n_ai'))} AI programs"
        tasks = dig(scores, "n_tasks")
        said.append(text + (f" of {count(tasks)} tasks." if tasks is not None else "."))
        said += worst_said(scores)
    return " ".join(text for text in said if text)


def glossary(facts: RunFacts) -> list[str]:
    """Return one line for each term that the head of the report uses."""
    found, said = dict(splits(facts)), []
    if found:
        said.append(
            "TPR: the share of AI programs that are called AI. FPR, the false-positive rate: that "
            "of human programs; promised on the humans that the threshold was chosen on, realised "
            "on others. Undecided: neither called AI nor cleared, as the score lies in a band."
        )
    if any(floors_of(scores) for scores in found.values()):
        said.append(
            "Floors: cheap scorers, trained on the same rows, that a model should beat; each has "
            "its own threshold, frozen at the same promise. Ahead or behind: the 95 % interval of "
            "the difference leaves out 0; level: it holds 0. TPR at promised FPR: with a threshold "
            "that gives this rate on the split itself, so that scorers can be compared."
        )
    if part(facts.data, "similarity"):
        said.append(
            "MRR: the mean of 1 / rank of the first program of the same task. MAP@R: the mean "
            "precision over the first R ranks, R being the number of such programs."
        )
    return said


def cautions(facts: RunFacts) -> list[str]:
    """Return what a terminal's reader should hold against the scores, the sample's note first."""
    note = facts.get("data", "note")
    said = [str(note)] if facts.is_sample and note else []
    said += [promise_said(facts, each) for each in promises(facts) if each.verdict != BROKEN]
    warned = len(audit_warnings(facts))
    more = [f"The audit of the data has {count(warned)} warnings; the page lists them."]
    return [*said, *doubts(facts), *(more if warned else [])]


def doubts(facts: RunFacts) -> list[str]:
    """Return what to hold against the scores, but for what a section of the page has already."""
    first, known = headline(facts), rows(facts.data, "operating_point", "warnings")
    said = [text for doubt in DOUBTS for text in doubt(facts) if text not in first]
    return said + [text for text in facts.get("warnings") or [] if text not in known]


def _elsewhere(facts: RunFacts) -> Iterator[str]:
    """Tell how the detector does on data of another kind, beside test."""
    found = dict(splits(facts))
    test, other = found.get("test"), found.get("held_out")
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
            found = dig(scores, key)
            if found is None or found >= FEW or (not found and name == "unseen_humans"):
                continue
            if found:
                few.setdefault(where, []).append(f"{count(found)} {title}")
            else:
                yield f"No {title} program in {where}: what needs both classes is undefined."
    if few:
        said = [f"{' and '.join(found)} programs in {where}" for where, found in few.items()]
        yield f"Only {listed(said)}: intervals are rough."


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
    from nbhelpers.report_detector_tables import makers

    return makers()


def score_lines(facts: RunFacts, tables: Tables) -> list[str]:
    """Return the scores of each split for a terminal."""
    from nbhelpers.report_detector_words import score_lines as lines

    return lines(facts, tables)


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what else a terminal shows of the run."""
    from nbhelpers.report_detector_words import cost_lines as lines

    return lines(facts)


def sections(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the HTML below the head of the page."""
    from nbhelpers.report_detector_html import cost, middle, origin

    parts = (middle, cost, origin)
    return "".join(part(facts, tables, plots) for part in parts)


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures, by their names."""
    from nbhelpers.plots_detector import figures as drawn

    return drawn(facts)


def captions() -> dict[str, str]:
    """Return what the figures show, where it is not what those of other jobs show."""
    from nbhelpers.plots_detector import CAPTIONS

    return CAPTIONS
