"""What a report concludes: the headline, the verdict on each floor, the words used, the doubts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count, share
from nbhelpers.presets.jobs import CLONES
from nbhelpers.reports.facts import RunFacts, dig, interval, known, score
from nbhelpers.reports.tables import FLOOR_NAMES, splits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Tables = Mapping[str, "pd.DataFrame"]
FEW_FUNCTIONS = 100
SAME_PRIOR = 0.005  # shares of clones that differ by less are called the same
CRITIQUES = (
    "Two critiques belong beside any score on BigCloneBench. Krinke and Ragkhitwetsagul "
    "(arXiv 2505.04311) checked 406 of its weak pairs by hand and found 93 % mislabelled; "
    "Sonnekalb et al. (arXiv 2208.12588) show that F1 falls clearly on functionality that was not "
    "in training."
)


def headline(facts: RunFacts) -> str:
    """Return the finding in three short sentences: scores, the best floor, the main caveat."""
    main = _main_split(facts)
    if main is None:
        return standing(facts)
    name, scores = main
    sentences = [_scores_said(name, scores), _best_floor(scores), _caveat(facts, name, scores)]
    return " ".join(sentence for sentence in sentences if sentence)


def _main_split(facts: RunFacts) -> tuple[str, Mapping[str, Any]] | None:
    scores_by_split = dict(splits(facts))
    name = "test" if "test" in scores_by_split else next(iter(scores_by_split), None)
    return None if name is None else (name, scores_by_split[name])


def standing(facts: RunFacts) -> str:
    """Return how far a run without scores has come."""
    training = facts.get("training") or {}
    phases = facts.of_type("phase")
    text = f"No scores yet: the run is {facts.status}"
    if phases:
        text += f", last seen in phase {phases[-1].get('name')}"
    if training.get("optimizer_steps"):
        text += f" at optimizer step {training['optimizer_steps']}"
        text += f" of {training['total_steps']}" if training.get("total_steps") else ""
        text += f", loss {score(training.get('last_loss'))}"
    return text + "."


def _scores_said(name: str, scores: Mapping[str, Any]) -> str:
    given_order = dig(scores, "orders", "given") or {}
    f1, auc = (interval(dig(scores, "intervals", metric)) for metric in ("f1", "roc_auc"))
    text = f"F1 {score(given_order.get('f1'))} on {name} (binary"
    text += f", 95 % interval {f1})" if f1 else ")"
    if given_order.get("roc_auc") is not None:
        text += f" and ROC-AUC {score(given_order['roc_auc'])}" + (f" ({auc})" if auc else "")
    return text + "."


def _best_floor(scores: Mapping[str, Any]) -> str:
    ours, baselines = dig(scores, "orders", "given", "f1"), _scored_floors(scores)
    if ours is None or not baselines:
        return ""
    best = max(baselines, key=lambda name: baselines[name]["f1"])
    verb, _, _ = _compared(scores, ours, baselines[best])
    verb = verb if verb == "beats" or verb.startswith("scores") else f"is {verb}"
    title = FLOOR_NAMES.get(best, best)
    return f"It {verb} the best floor, {title} (F1 {score(baselines[best]['f1'])})."


def _caveat(facts: RunFacts, name: str, scores: Mapping[str, Any]) -> str:
    if facts.is_sample:
        note = str(facts.get("data", "note") or "")
        last = note.rstrip(".").rpartition(". ")[2]
        return f"The data is a sample: {last[:1].lower()}{last[1:]}." if last else ""
    if is_bigclonebench(facts):
        return "Its labels are disputed: see the two critiques below."
    return next(iter([*_random_start(facts), *_few_functions(name, scores)]), "")


def details(facts: RunFacts) -> str:
    """Return what the scores of the main split rest on: pairs, shares of clones, threshold."""
    main = _main_split(facts)
    if main is None:
        return ""
    name, scores = main
    text = ""
    if scores.get("n_pairs") is not None:
        text = f"The {name} split: {count(scores['n_pairs'])} pairs"
        text += f" of {count(scores.get('n_functions'))} functions"
        text += f", {share(scores.get('prior'))} clones."
    return (text + _at_named_priors(scores) + _threshold(facts)).strip()


def _at_named_priors(scores: Mapping[str, Any]) -> str:
    """Return F1 at each named prior; a split that has it already needs no re-weighting."""
    text, own = "", scores.get("prior")
    for name, values in (scores.get("at_prior") or {}).items():
        prior = dig(values, "prior")
        if prior is None:
            continue
        if own is not None and abs(prior - own) < SAME_PRIOR:
            text += f" That is about the prior {name} ({share(prior)}): scores stand as they are."
            continue
        f1 = score(dig(values, "f1"))
        text += f" At a prior of {share(prior)} clones ({name}) F1 would be {f1}."
    return text


def _threshold(facts: RunFacts) -> str:
    value, chosen = facts.get("threshold", "value"), facts.get("threshold", "chosen_on")
    if value is None:
        return ""
    if chosen == "valid":
        return f" The threshold {value:.4g} was chosen on valid and frozen for test."
    return f" The threshold {value:.4g} was not chosen on valid."


def glossary(facts: RunFacts) -> list[str]:
    """Return one line for each term that the head of the report uses."""
    scores_by_split, lines = dict(splits(facts)), []
    if any(_scored_floors(scores) for scores in scores_by_split.values()):
        lines.append(
            "Floors: cheap scorers that a trained model should beat. Level: the 95 % interval of "
            "the difference in F1 (in brackets) holds 0, so either may be ahead."
        )
    main = _main_split(facts)
    priors = main[1].get("at_prior") if main else None
    if priors:
        natural = " Natural: an estimate, about that of BigCloneBench's full test list."
        lines.append(
            "Prior: the share of clones among all pairs." + (natural if "natural" in priors else "")
        )
    if main and facts.get("threshold", "chosen_on") == "valid":
        lines.append(
            "Frozen: pairs above the threshold are called clones; test pairs had no say in it."
        )
    if "test_unseen" in scores_by_split:
        lines.append("test_unseen: families of tasks that are not in training.")
    return lines


def verdicts(facts: RunFacts) -> list[str]:
    """Return one plain line per test split: chance first, then each cheap scorer."""
    return [
        _verdict(name, scores)
        for name, scores in splits(facts)
        if name.startswith("test") or not facts.get("scores", "test")
        if scores.get("floors") or _beside_chance(name, scores)
    ]


def _verdict(name: str, scores: Mapping[str, Any]) -> str:
    ours, baselines = dig(scores, "orders", "given", "f1"), _scored_floors(scores)
    chance = _beside_chance(name, scores)
    if ours is None or not baselines:
        return f"{chance}." if chance else f"On {name}: there is nothing to compare."
    order = sorted(baselines, key=lambda key: (key != "tfidf_mlp", -baselines[key]["f1"]))
    comparisons = [_against(scores, ours, key, baselines[key]) for key in order]
    if not chance:
        return f"On {name}: {'. '.join([comparisons[0], *map(_started, comparisons[1:])])}."
    return ". ".join([chance, *map(_started, comparisons)]) + "."


def _started(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _beside_chance(name: str, scores: Mapping[str, Any]) -> str:
    """Return that the ranking is no better than chance, or nothing where it is better."""
    edges = dig(scores, "intervals", "roc_auc")
    if not interval(edges) or edges[0] > 0.5:
        return ""
    value = score(dig(scores, "orders", "given", "roc_auc"))
    return f"Not better than chance on {name} (ROC-AUC {value}, {interval(edges)})"


def _scored_floors(scores: Mapping[str, Any]) -> dict[str, Any]:
    baselines = scores.get("floors") or {}
    return {name: values for name, values in baselines.items() if dig(values, "f1") is not None}


def _against(scores: Mapping[str, Any], ours: float, name: str, baseline: Mapping[str, Any]) -> str:
    verb, difference, evidence = _compared(scores, ours, baseline)
    by = ", difference" if verb == "level with" else " by"
    title = f"{FLOOR_NAMES.get(name, name)} (F1 {score(baseline['f1'])})"
    return f"{verb} {title}{by} {difference:+.3f}{evidence}"


def _compared(
    scores: Mapping[str, Any], ours: float, baseline: Mapping[str, Any]
) -> tuple[str, float, str]:
    """Return verb, difference and evidence; "beats" and "behind" only where chance is excluded."""
    difference = ours - baseline["f1"]
    is_settled, evidence = _evidence(scores, baseline)
    if is_settled is None:
        verb = "scores above" if difference > 0 else "scores no higher than"
    elif not is_settled:
        verb = "level with"
    else:
        verb = "beats" if difference > 0 else "behind"
    return verb, difference, evidence


def _evidence(scores: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Return whether the test set settles the difference (None: unknown), and the words for it."""
    between = dig(baseline, "lead", "interval")
    if interval(between):
        return between[0] > 0 or between[1] < 0, f" ({between[0]:+.3f} to {between[1]:+.3f})"
    ours, other = dig(scores, "intervals", "f1"), dig(baseline, "intervals", "f1")
    if interval(ours) and interval(other):
        apart = max(ours[0], other[0]) > min(ours[1], other[1])
        return apart, f" (their 95 % intervals {'do not overlap' if apart else 'overlap'})"
    if interval(ours):
        inside = ours[0] <= baseline["f1"] <= ours[1]
        return not inside, f" (which is {'inside' if inside else 'outside'} our 95 % interval)"
    return None, " (no interval)"


def cautions(facts: RunFacts) -> list[str]:
    """Return what a reader should hold against the scores, the sample's own note first."""
    note = facts.get("data", "note")
    sentences = [str(note)] if facts.is_sample and note else []
    for name, scores in splits(facts):
        sentences += _few_functions(name, scores) + _fewer_areas(name, scores)
    sentences += _random_start(facts)
    if is_bigclonebench(facts):
        sentences.append(CRITIQUES)
    return sentences + [f"Warning: {warning}" for warning in facts.get("warnings") or []]


def _few_functions(name: str, scores: Mapping[str, Any]) -> list[str]:
    few = scores.get("n_functions")
    if few is None or few >= FEW_FUNCTIONS:
        return []
    return [f"The {name} split has only {few} functions: its intervals are rough."]


def _fewer_areas(name: str, scores: Mapping[str, Any]) -> list[str]:
    """Say so where the areas of a long list have intervals from fewer resamples than the rest."""
    drawn, areas = dig(scores, "resamples", "all"), dig(scores, "resamples", "areas")
    if drawn is None or areas is None or areas >= drawn:
        return []
    return [
        f"The {name} split is long: the intervals of its two areas come from {areas:,} resamples, "
        f"the others from {drawn:,}."
    ]


def _random_start(facts: RunFacts) -> list[str]:
    is_random = facts.get("model", "random_weights") and not facts.is_evaluation
    if not is_random or facts.get("settings", "model") in CLONES.models.embedded:
        return []
    return ["The model started from random weights, not from pretrained ones."]


def is_bigclonebench(facts: RunFacts) -> bool:
    """Say whether the data is BigCloneBench, by its source or by what was asked for."""
    names = (facts.get("data", "source"), facts.get("settings", "data"))
    spelled = [str(name).lower().replace("_", "").replace("-", "") for name in names if name]
    return any("bigclonebench" in name for name in spelled)


# The parts of a report that stand in modules of their own, under the names that every job has.


def alarms(facts: RunFacts) -> list[str]:
    """Return what a reader must not miss: nothing of this job."""
    return []


def tables() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    from nbhelpers.reports.tables import makers

    return makers()


def score_lines(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the scores of each split for a terminal."""
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


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what else a terminal shows of the run: nothing of this job."""
    return []


def sections(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the HTML below the head of the page."""
    from nbhelpers.reports.html import cost, middle, origin

    parts = (middle, cost, origin)
    return "".join(part(facts, tables, plots) for part in parts)


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures, by their names."""
    from nbhelpers.reports.figures import clones_figures

    return clones_figures(facts)


def captions() -> dict[str, str]:
    """Return what the figures show, where it is not what those of other jobs show."""
    return {}
