"""Sentences of a detector's report: the promise of its threshold, precision, worst slices, cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.detector_promises import humans_needed
from nbhelpers.detector_slices import MIN_ROWS
from nbhelpers.formatting import count, duration, share
from nbhelpers.metric_registry import DETECTOR_SCORES, TEXT
from nbhelpers.report_detector_base import (
    FLOOR_NAMES,
    edges,
    floors_of,
    lead_said,
    part,
    rate_said,
    rows,
    split_said,
    splits,
    with_edges,
)
from nbhelpers.report_facts import RunFacts, dig, interval, known, score

if TYPE_CHECKING:
    import pandas as pd

KEPT, OPEN, BROKEN = "kept", "open", "broken"
VALIDATION_HUMANS = "The validation split has"  # how the audit's sentence on them begins
MFU = (
    "of the GPUs' half-precision peak, for useful tokens at 6 FLOPs per matrix parameter (2 while "
    "the encoder is frozen), attention left out"
)


class Promise(NamedTuple):
    """The false-positive rate of a split beside the promised one.

    `verdict`: broken, where the whole interval lies above the promise; kept, where it lies below;
    else open.
    """

    split: str
    humans: float | None
    tasks: float | None
    promised: float
    realised: float
    interval: list[float] | None
    verdict: str


def promises(facts: RunFacts) -> list[Promise]:
    """Return the promise of the threshold beside what each split realised, but for valid."""
    target, found = dig(facts.data, "operating_point", "target_fpr"), []
    for name, scores in splits(facts):
        realised, between = dig(scores, "metrics", "fpr"), edges(scores, "intervals", "fpr")
        if target is None or realised is None or name == "valid":
            continue  # the threshold was chosen on valid: there it holds by construction
        verdict = OPEN
        if between:
            verdict = BROKEN if between[0] > target else KEPT if between[1] <= target else OPEN
        humans, tasks = dig(scores, "n_human"), dig(scores, "n_tasks")
        found.append(Promise(name, humans, tasks, target, realised, between, verdict))
    return found


def promise_said(facts: RunFacts, promise: Promise) -> str:
    """Say what a split did to the promise of the threshold."""
    where, verdict = split_said(facts, promise.split), promise.verdict
    humans = f" of {count(promise.humans)}" if promise.humans is not None else ""
    tasks = f" of {count(promise.tasks)} tasks" if promise.tasks is not None else ""
    realised = f"{rate_said(promise.realised, promise.interval)}{humans} human programs{tasks} "
    realised += f"are called AI, promised {_percent(promise.promised)}"
    if verdict == BROKEN:
        return (
            f"The promise is broken on {where}: {realised}. Flag nobody like them with this "
            "threshold; `nbhelpers calibrate` fixes one on their own human code."
        )
    if verdict == KEPT:
        return f"The promise is kept on {where}: {realised}."
    return f"Whether the promise is kept on {where} is open: {realised}."


def _percent(value: float | None) -> str:
    return "an unknown rate" if value is None else f"{100 * value:.3g} %"


def point_said(facts: RunFacts) -> str:
    """Return the threshold, what it was chosen on, and what it does not decide."""
    point = part(facts.data, "operating_point")
    threshold = dig(point, "threshold")
    if threshold is None:
        return ""
    humans, on = dig(point, "n_humans"), point.get("chosen_on")
    said = f"The threshold {threshold:.4g} was chosen"
    said += f" on {count(humans)} human programs" if humans is not None else ""
    said += f" ({on})" if on else ""
    target = dig(point, "target_fpr")
    said += f" for a false-positive rate of at most {_percent(target)}, and frozen."
    promised, rate = dig(point, "promised_fpr"), dig(point, "valid_fpr")
    if promised is None:
        return said
    said += f" There it is {share(rate)}; " if rate is not None else " There "
    said += f"so many humans promise at most {share(promised)}, one-sided, with 95 % confidence"
    if target is None or promised <= target or not 0 < target < 1:
        return f"{said}."
    needed = count(humans_needed(target))
    return f"{said}: a promise of {_percent(target)} takes {needed}, none of them above it."


def abstain_said(facts: RunFacts) -> str:
    """Return the band in which the detector says nothing, and how often that is."""
    point = part(facts.data, "operating_point")
    band = edges(point, "abstain")
    if band is None:
        return "There is no band of abstention." if point else ""
    said = f"From p {band[0]:.4g} to {band[1]:.4g} the detector says undecided: at most "
    said += f"{_percent(dig(point, 'target_miss_rate'))} of validation's AI programs score lower."
    shares = {name: dig(scores, "metrics", "abstain_share") for name, scores in splits(facts)}
    undecided = [
        f"{share(value)} on {split_said(facts, name)}"
        for name, value in shares.items()
        if value is not None
    ]
    return f"{said} Undecided: {', '.join(undecided)}." if undecided else said


def calibration_said(facts: RunFacts) -> str:
    """Return how far a probability can be read as one."""
    temperature, found = dig(facts.data, "operating_point", "temperature"), []
    said = [] if temperature is None else [f"Temperature {temperature:.3g}, fitted on valid."]
    for name, scores in splits(facts):
        ece = dig(scores, "metrics", "ece")
        if ece is not None:
            found.append(f"{score(ece)} on {split_said(facts, name)}")
    said += [f"The calibration error (ECE) is {', '.join(found)}."] if found else []
    if found and facts.get("settings", "class_weights") == "balanced":
        said.append(
            "Both classes weigh alike in training, so a probability is meant for equal shares of "
            "human and AI code; where the shares differ, that adds to the error."
        )
    return " ".join(said)


def precision_said(scores: Mapping[str, Any]) -> Iterator[str]:
    """Say of 100 programs that are called AI how many are, at each named share of AI code."""
    for name, values in part(scores, "at_prevalence").items():
        precision = dig(values, "precision")
        if precision is None:
            continue
        between = edges(values, "precision_interval")
        about = f" ({100 * between[0]:.0f} to {100 * between[1]:.0f})" if between else ""
        yield f"Of 100 flagged programs {100 * precision:.0f}{about} are AI when {odds(name)} is."


def odds(prevalence: str) -> str:
    """Write a share in words.

    >>> odds("0.05"), odds("0.5"), odds("0.3"), odds("x")
    ('one program in 20', 'one program in 2', '30 % of all programs', 'a share x of all programs')
    """
    try:
        value = float(prevalence)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        return f"a share {prevalence} of all programs"
    times = 1 / value
    if abs(times - round(times)) < 1e-6:
        return f"one program in {round(times):,}"
    return f"{100 * value:.3g} % of all programs"


def worst_said(scores: Mapping[str, Any]) -> Iterator[str]:
    """Name the slices where the detector does worst, of those that are large enough to say so.

    Nothing is named where no two of these differ.
    """
    found = []
    for metric in ("tpr", "fpr", "roc_auc"):
        if is_named(scores, metric):
            worst = part(scores, "worst", metric)
            said = with_edges(dig(worst, metric), edges(worst, f"{metric}_interval"))
            found.append(f"{DETECTOR_SCORES.short(metric)} {said} at {slice_said(worst)}")
    if found:
        limit = f"of at least {MIN_ROWS} programs of each class that counts"
        yield f"Worst slices, {limit}: {'; '.join(found)}."


def is_named(scores: Mapping[str, Any], metric: str) -> bool:
    """Whether a worst slice of a score is worth naming: another slice does better."""
    value = dig(scores, "worst", metric, metric)
    values = (dig(one, metric) for one in rows(scores, "slices") if is_large(one, metric))
    return value is not None and any(each not in (None, value) for each in values)


def is_large(one: Mapping[str, Any], metric: str) -> bool:
    """Whether a slice has enough programs of the classes that a score is about."""
    needed = {"tpr": ("n_ai",), "fpr": ("n_human",)}.get(metric, ("n_ai", "n_human"))
    return all((dig(one, key) or 0) >= MIN_ROWS for key in needed)


def means_said(facts: RunFacts) -> Iterator[str]:
    """Yield the means over the slices of each kind on test, where there are several."""
    scores = part(facts.data, "scores", "test")
    for kind, values in part(scores, "macro").items():
        ours = [one for one in rows(scores, "slices") if one.get("by") == kind]
        said = [
            f"{DETECTOR_SCORES.short(metric)} {score(dig(values, metric))}"
            for metric in ("roc_auc", "tpr", "fpr")
            if dig(values, metric) is not None and sum(is_large(o, metric) for o in ours) > 1
        ]
        if said and " x " not in kind:
            yield f"{kind} {', '.join(said)}"


def slice_said(one: Mapping[str, Any]) -> str:
    """Write which programs a slice holds."""
    return f"{one.get('by', 'slice')} = {one.get('value', 'unknown')}"


def audit_said(facts: RunFacts) -> str:
    """Return the verdict of the audit with its reasons."""
    verdict, reasons = facts.get("audit", "verdict"), rows(facts.data, "audit", "reasons")
    if not verdict:
        return ""
    went_on = facts.get("settings", "on_failed_audit") == "go_on" and verdict == "hopeless"
    said = f"Audit of the data: {verdict}" + (
        ", and the run went on as it was told" if went_on else ""
    )
    why = "; ".join(reason.rstrip(".") for reason in reasons)
    return f"{said}: {why}." if why else f"{said}."


def audit_warnings(facts: RunFacts) -> list[str]:
    """Return the warnings of the audit, but for the humans that the threshold's promise names."""
    said = rows(facts.data, "audit", "warnings")
    is_there = dig(facts.data, "operating_point", "promised_fpr") is not None
    return [text for text in said if not (is_there and text.startswith(VALIDATION_HUMANS))]


def score_lines(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the scores of each split but valid, and the floors on test, for a terminal."""
    if "scores" not in tables:
        return []
    table, lines = tables["scores"], [""]
    for split in [name for name in table["split"].unique() if name != "valid"]:
        lines.append(f"{split[:21]:<22}score    95 % interval")
        of_split = table[
            (table["split"] == split) & table["metric"].isin(DETECTOR_SCORES.names("test", TEXT))
        ]
        found = [row for row in of_split.to_dict("records") if known(row["value"]) is not None]
        for row in found:
            title = DETECTOR_SCORES.title(row["metric"])
            value, low, high = (known(row[key]) for key in ("value", "low", "high"))
            lines.append(f"  {title:<20}{score(value):<9}{interval([low, high])}".rstrip())
        lines += ["  the others          undefined"] if len(found) < len(of_split) else []
        lines += [*_floor_lines(facts, split), ""]
    return lines


def _floor_lines(facts: RunFacts, split: str) -> Iterator[str]:
    """Yield our lead over each floor, a column per score."""
    floors = floors_of(part(facts.data, "scores", split))
    for at, (name, beside) in enumerate(floors.items()):
        if not at:
            titles = (f"{DETECTOR_SCORES.short(each.metric):<29}" for each in beside)
            yield f"  {'lead over':<20}{''.join(titles)}".rstrip()
        leads = (f"{lead_said(each.lead) or 'unknown':<29}" for each in beside)
        yield f"  {FLOOR_NAMES.get(name, name):<20}{''.join(leads)}".rstrip()


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what a page has in sections: threshold, precision, band, and the cost of it all."""
    test = part(facts.data, "scores", "test")
    found = [point_said(facts), *precision_said(test), abstain_said(facts), speed_said(facts)]
    found += [phases_said(facts), compile_said(facts), inference_said(facts)]
    return [said for said in found if said]


def speed_said(facts: RunFacts) -> str:
    """Return the speed of training, and MFU with its convention."""
    speed = part(facts.data, "throughput")
    programs, useful = dig(speed, "programs_per_s"), dig(speed, "useful_tokens_per_s")
    padded, mfu = dig(speed, "padded_tokens_per_s"), dig(speed, "mfu_6n")
    said = [f"{programs:,.1f} programs/s"] if programs is not None else []
    if useful is not None:
        with_padding = f" of {count(padded)} with padding" if padded is not None else ""
        said.append(f"{count(useful)} useful tokens/s{with_padding}")
    said += [f"MFU {share(mfu)} {MFU}"] if mfu is not None else []
    return f"Speed of training: {'; '.join(said)}." if said else ""


def compile_said(facts: RunFacts) -> str:
    """Return how often layers were compiled anew, and whether their gradients were checked."""
    found = part(facts.data, "compile")
    if not found:
        return ""
    if found.get("is_on") is not True:
        why = part(found, "self_test").get("reason")
        return "torch.compile was off" + (f" ({why})." if why else ".")
    recompiles = dig(found, "recompiles")
    said = "torch.compile was on"
    said += f", {count(recompiles)} recompiles" if recompiles is not None else ""
    checked = [
        f"{str(name).replace('_', ' ')} {value:.3g}"
        if isinstance(value, float)
        else f"{str(name).replace('_', ' ')} {value}"
        for name, value in part(found, "self_test").items()
        if name != "is_on" and value is not None
    ]
    return said + (f"; compiled beside eager: {', '.join(checked)}." if checked else ".")


def inference_said(facts: RunFacts) -> str:
    """Return the time to score one file; reading it and making tokens of it are not in it."""
    found = part(facts.data, "inference")
    each, files = dig(found, "ms_per_file"), dig(found, "n_files")
    if each is None:
        return ""
    said = f"Scoring takes {each:.3g} ms per file, its tokens at hand"
    per_s, size = dig(found, "files_per_s"), dig(found, "batch_size")
    said += f", {per_s:,.1f} files per second" if per_s is not None else ""
    said += f", in batches of {count(size)}" if size is not None else ""
    said += f", over {count(files)} files" if files is not None else ""
    alone = dig(found, "ms_alone")
    return said + (f"; of one file at a time {alone:.3g} ms." if alone is not None else ".")


def phases_said(facts: RunFacts) -> str:
    """Return where the time of training went."""
    phases = {name: dig(part(facts.data, "phases"), name) for name in part(facts.data, "phases")}
    total = sum(value for value in phases.values() if value)
    if not total:
        return ""
    said = [
        f"{name.removesuffix('_s')} {duration(value)} ({share(value / total)})"
        for name, value in phases.items()
        if value
    ]
    return f"Training by phase: {', '.join(said)}."
