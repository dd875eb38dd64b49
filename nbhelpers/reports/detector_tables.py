"""Tables of a detector's report: scores, promise, baselines, slices, edits, similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.formatting import count, duration, share
from nbhelpers.metrics.intervals import humans_needed
from nbhelpers.metrics.registry import DETECTOR_SCORES, PAGE, TEXT
from nbhelpers.metrics.slices import MIN_ROWS
from nbhelpers.presets.targets import available
from nbhelpers.reports.facts import RunFacts, dig, interval, known, score
from nbhelpers.reports.tables import (
    gpus_table,
    memory_lines_table,
    memory_table,
    settings_table,
    timing_table,
    training_table,
)

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------
# What a detector's report is made from: looks into a result, and its model beside floors.


FLOOR_NAMES = {
    "length": "length",
    "layout": "layout features",
    "tfidf": "TF-IDF",
    "raw_encoder": "raw encoder",
}
EDIT_NAMES = {
    "reformat": "reformatted",
    "strip_comments": "comments stripped",
    "rename": "renamed",
    "rename_reformat": "renamed and reformatted",
}
EDITED = EDIT_NAMES | {"strip_comments": "stripped of comments"}
MODEL = "this model"
NO_LEAD = (None, None, None)  # difference, low, high
AHEAD, LEVEL, BEHIND, ABOVE, NOT_ABOVE = "ahead", "level", "behind", "above", "not above"


def edges(data: Any, *keys: str) -> list[float] | None:
    """Return a nested interval, or None where an edge of it is undefined."""
    interval = dig(data, *keys)
    return None if not interval or None in interval else interval


def part(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a nested mapping, an empty one where there is none."""
    return dig(data, *keys) or {}


def rows(data: Any, *keys: str) -> list[Any]:
    """Return a nested list, an empty one where there is none."""
    return dig(data, *keys) or []


def splits(facts: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and scores of each scored split: test, held-out, unseen humans, valid, others."""
    scores = part(facts.data, "scores")
    known = [name for name in DETECTOR_SCORES.splits if name in scores]
    for name in [*known, *sorted(set(scores) - set(known))]:
        if part(scores, name, "metrics"):
            yield name, scores[name]


def split_said(facts: RunFacts, name: str) -> str:
    """Return a split in words: what was held out is named."""
    if name == "held_out":
        held_out = facts.get("settings", "hold_out")
        return f"held-out data ({held_out})" if held_out else "held-out data"
    return name.replace("_", " ")


def with_edges(value: float | None, between: list[float] | None) -> str:
    """Write a score with its interval.

    >>> with_edges(0.5, [0.41, 0.6]), with_edges(None, None)
    ('0.500 (0.410 to 0.600)', 'undefined')
    """
    value_text = score(value)
    return (
        value_text
        if value is None or not between
        else f"{value_text} ({between[0]:.3f} to {between[1]:.3f})"
    )


def metric_said(scores: Mapping[str, Any], metric: str) -> str:
    """Write a score of a split with its interval."""
    return with_edges(dig(scores, "metrics", metric), edges(scores, "intervals", metric))


def rate_said(value: float | None, between: list[float] | None) -> str:
    """Write a rate in per cent with its interval.

    >>> rate_said(0.012, [0.006, 0.021])
    '1.2 % (0.6 % to 2.1 %)'
    """
    if value is None:
        return "undefined"
    return share(value) + (f" ({share(between[0])} to {share(between[1])})" if between else "")


def lead_said(difference: list[float | None] | None) -> str:
    """Write a difference with its interval, or nothing.

    >>> lead_said([0.02, 0.01, 0.03]), lead_said([0.02, None, None])
    ('+0.020 (+0.010 to +0.030)', '+0.020')
    """
    first, low, high = difference or NO_LEAD
    if first is None:
        return ""
    between = "" if low is None or high is None else f" ({signed(low)} to {signed(high)})"
    return signed(first) + between


def signed(value: float) -> str:
    """Write a difference with its sign; one that rounds to 0 has none.

    >>> signed(0.02), signed(-0.0002)
    ('+0.020', '0.000')
    """
    text = f"{value:+.3f}"
    return text if float(text) else "0.000"


class Beside(NamedTuple):
    """One metric of the model beside a floor: `standing` is one of the words above."""

    metric: str
    ours: float | None
    other: float
    lead: Any
    standing: str


def standing_of(ours: float | None, other: float | None, difference: Any) -> str:
    """Say how a score stands to a floor's: settled by the interval of the lead where there is one.

    >>> standing_of(0.9, 0.8, [0.1, 0.05, 0.15]), standing_of(0.9, 0.8, [0.1, -0.05, 0.2])
    ('ahead', 'level')
    >>> standing_of(0.9, 0.8, None)
    'above'
    """
    _, low, high = difference or NO_LEAD
    if low is not None and high is not None:
        return AHEAD if low > 0 else BEHIND if high < 0 else LEVEL
    if ours is None or other is None:
        return ""
    return ABOVE if ours > other else NOT_ABOVE


def floors_of(scores: Mapping[str, Any]) -> dict[str, list[Beside]]:
    """Return by floor how the model stands in each score that both have; best floor first.

    Frozen thresholds realise different false-positive rates, so TPRs are compared at one rate, and
    at the frozen thresholds only where nothing else is known.
    """
    comparisons = {}
    for name, baseline in part(scores, "floors").items():
        beside = []
        at_one_rate = dig(scores, "metrics", "tpr_at_fpr") is not None
        for metric in ("roc_auc", "tpr_at_fpr" if at_one_rate else "tpr"):
            ours, other = dig(scores, "metrics", metric), dig(baseline, "metrics", metric)
            difference = dig(baseline, "lead", metric)
            if ours is not None and other is not None:
                stands = standing_of(ours, other, difference)
                beside.append(Beside(metric, ours, other, difference, stands))
        if beside:
            comparisons[name] = beside
    order = sorted(comparisons, key=lambda name: [-each.other for each in comparisons[name]])
    return {name: comparisons[name] for name in order}


def is_beaten(beside: list[Beside]) -> bool:
    """Say whether the model is ahead of a floor in every metric that was compared."""
    return all(each.standing == AHEAD for each in beside)


# ------------------------------------------------------------------------------------------------
# What a report says of the similarity space: retrieval of the same task, and pairs.


PAIR_SCORES = ("roc_auc", "average_precision", "accuracy", "f1")


def similarity_headline(facts: RunFacts) -> str:
    """Return the finding of a run that has only a similarity space, in one sentence."""
    main = _main_retrieval(facts)
    return _retrieval_said(main) if main is not None else _pairs_said(facts)


def similarity_verdicts(facts: RunFacts) -> list[str]:
    """Return a line on retrieval, one per crossing of languages, and one on pairs."""
    main = _main_retrieval(facts)
    lines = [f"Similarity: {_retrieval_said(main)}"] if main is not None else []
    crossings = [row for row in rows(facts.data, "similarity", "retrieval") if row is not main]
    for name in dict.fromkeys(name for row in crossings for name in part(row, "floors")):
        lines += _crossings_said(name, crossings)
    pairs = _pairs_said(facts)
    return lines + ([pairs] if pairs else [])


def _main_retrieval(facts: RunFacts) -> Mapping[str, Any] | None:
    """Return the row of all languages on test, else the first one."""
    retrievals = rows(facts.data, "similarity", "retrieval")
    whole = [row for row in retrievals if row.get("query") == "all" and row.get("pool") == "all"]
    on_test = [row for row in whole if row.get("split") == "test"]
    return next(iter([*on_test, *whole, *retrievals]), None)


def crossing(row: Mapping[str, Any]) -> str:
    """Write which queries look into which pool."""
    query, pool = (row.get(key) or "all" for key in ("query", "pool"))
    return "all languages" if query == pool == "all" else f"{query} to {pool}"


def _retrieval_said(row: Mapping[str, Any]) -> str:
    text = f"MRR {with_edges(dig(row, 'mrr'), edges(row, 'mrr_interval'))}, MAP@R "
    text += with_edges(dig(row, "map_at_r"), edges(row, "map_at_r_interval"))
    text += f" for {count(dig(row, 'n_queries'))} queries in a pool of "
    text += f"{count(dig(row, 'pool_size'))} programs ({row.get('split', 'test')}, {crossing(row)})"
    baselines = [_floor_said(row, name) for name in part(row, "floors")]
    return "; ".join([text, *filter(None, baselines)]) + "."


def _floor_said(row: Mapping[str, Any], name: str) -> str:
    baseline = part(row, "floors", name)
    other, difference = dig(baseline, "mrr"), baseline.get("lead")
    stands = standing_of(dig(row, "mrr"), other, difference)
    if other is None or not stands:
        return ""
    verb = "beats" if stands == AHEAD else "does not beat"
    by = lead_said(difference)
    return f"it {verb} {FLOOR_NAMES.get(name, name)} (MRR {score(other)}" + (
        f", lead {by})" if by else ")"
    )


def _crossings_said(name: str, crossings: list[Mapping[str, Any]]) -> Iterator[str]:
    """Say in how many crossings a floor is beaten, and name those where it is not."""
    stands = {}
    for row in crossings:
        baseline = part(row, "floors", name)
        standing = standing_of(dig(row, "mrr"), dig(baseline, "mrr"), baseline.get("lead"))
        if standing:
            stands[f"{crossing(row)} ({row.get('split', 'test')})"] = standing
    if not stands:
        return
    ahead = sum(standing == AHEAD for standing in stands.values())
    result = (
        f"Against {FLOOR_NAMES.get(name, name)} by MRR it is ahead in {ahead} of {len(stands)} "
    )
    result += "further retrievals"
    rest = [f"{where} {standing}" for where, standing in stands.items() if standing != AHEAD]
    rest.sort(key=lambda text: not text.endswith(BEHIND))
    shown = "; ".join(rest[:5]) + ("; and more" if len(rest) > 5 else "")
    yield f"{result}; not in: {shown}." if rest else f"{result}."


def _pairs_said(facts: RunFacts) -> str:
    pairs = part(facts.data, "similarity", "pairs")
    area = dig(pairs, "roc_auc")
    if area is None:
        return ""
    text = "Pairs of the same task against hard negatives: ROC-AUC "
    text += with_edges(area, edges(pairs, "roc_auc_interval"))
    for key, title in (("accuracy", "accuracy"), ("f1", "F1")):
        value = dig(pairs, key)
        text += f", {title} {score(value)}" if value is not None else ""
    for name, baseline in part(pairs, "floors").items():
        other = dig(baseline, "roc_auc")
        if other is not None:
            difference = lead_said(_pair_lead(baseline))
            title = FLOOR_NAMES.get(name, name)
            text += f"; {title} {score(other)}" + (f", lead {difference}" if difference else "")
    return f"{text}."


def _pair_lead(baseline: Any) -> Any:
    """Return the lead in ROC-AUC, which stands alone or by metric."""
    difference = dig(baseline, "lead")
    return dig(difference, "roc_auc") if isinstance(difference, Mapping) else difference


def retrieval_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per retrieval and scorer, floors below the model."""
    for row in rows(facts.data, "similarity", "retrieval"):
        base = {"split": str(row.get("split") or ""), "query": str(row.get("query") or "")}
        base |= {"pool": str(row.get("pool") or ""), "queries": dig(row, "n_queries")}
        base["pool size"] = dig(row, "pool_size")
        for name, values in {MODEL: row, **part(row, "floors")}.items():
            cells = {"scorer": FLOOR_NAMES.get(name, name), "mrr": dig(values, "mrr")}
            cells |= {"mrr interval": edges(values, "mrr_interval")}
            cells |= {"map_at_r": dig(values, "map_at_r")}
            cells |= {"map_at_r interval": edges(values, "map_at_r_interval")}
            difference = None if name == MODEL else dig(values, "lead")
            yield base | cells | {"lead": difference, "note": _note(values)}


def pair_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per scorer of pairs."""
    pairs = part(facts.data, "similarity", "pairs")
    if dig(pairs, "n_pairs") is None and dig(pairs, "roc_auc") is None:
        return
    for name, values in {MODEL: pairs, **part(pairs, "floors")}.items():
        cells: dict[str, Any] = {"scorer": FLOOR_NAMES.get(name, name)}
        cells |= {metric: dig(values, metric) for metric in PAIR_SCORES}
        cells |= {"roc_auc interval": edges(values, "roc_auc_interval")}
        cells |= {"threshold": dig(values, "threshold")}
        difference = None if name == MODEL else _pair_lead(values)
        yield cells | {"lead": difference, "note": _note(values)}


def _note(values: Any) -> str:
    return dig(values, "skipped") or ""


# ------------------------------------------------------------------------------------------------
# Sentences of a detector's report: the promise of its threshold, precision, worst slices, cost.


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
    target, outcomes = dig(facts.data, "operating_point", "target_fpr"), []
    for name, scores in splits(facts):
        realised, between = dig(scores, "metrics", "fpr"), edges(scores, "intervals", "fpr")
        if target is None or realised is None or name == "valid":
            continue  # the threshold was chosen on valid: there it holds by construction
        verdict = OPEN
        if between:
            verdict = BROKEN if between[0] > target else KEPT if between[1] <= target else OPEN
        humans, tasks = dig(scores, "n_human"), dig(scores, "n_tasks")
        outcomes.append(Promise(name, humans, tasks, target, realised, between, verdict))
    return outcomes


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
    text = f"The threshold {threshold:.4g} was chosen"
    text += f" on {count(humans)} human programs" if humans is not None else ""
    text += f" ({on})" if on else ""
    target = dig(point, "target_fpr")
    text += f" for a false-positive rate of at most {_percent(target)}, and frozen."
    promised, rate = dig(point, "promised_fpr"), dig(point, "valid_fpr")
    if promised is None:
        return text
    text += f" There it is {share(rate)}; " if rate is not None else " There "
    text += f"so many humans promise at most {share(promised)}, one-sided, with 95 % confidence"
    if target is None or promised <= target or not 0 < target < 1:
        return f"{text}."
    needed = count(humans_needed(target))
    return f"{text}: a promise of {_percent(target)} takes {needed}, none of them above it."


def abstain_said(facts: RunFacts) -> str:
    """Return the band in which the detector says nothing, and how often that is."""
    point = part(facts.data, "operating_point")
    band = edges(point, "abstain")
    if band is None:
        return "There is no band of abstention." if point else ""
    text = f"From p {band[0]:.4g} to {band[1]:.4g} the detector says undecided: at most "
    text += f"{_percent(dig(point, 'target_miss_rate'))} of validation's AI programs score lower."
    shares = {name: dig(scores, "metrics", "abstain_share") for name, scores in splits(facts)}
    undecided = [
        f"{share(value)} on {split_said(facts, name)}"
        for name, value in shares.items()
        if value is not None
    ]
    return f"{text} Undecided: {', '.join(undecided)}." if undecided else text


def calibration_said(facts: RunFacts) -> str:
    """Return how far a probability can be read as one."""
    temperature, errors = dig(facts.data, "operating_point", "temperature"), []
    sentences = [] if temperature is None else [f"Temperature {temperature:.3g}, fitted on valid."]
    for name, scores in splits(facts):
        ece = dig(scores, "metrics", "ece")
        if ece is not None:
            errors.append(f"{score(ece)} on {split_said(facts, name)}")
    sentences += [f"The calibration error (ECE) is {', '.join(errors)}."] if errors else []
    if errors and facts.get("settings", "class_weights") == "balanced":
        sentences.append(
            "Both classes weigh alike in training, so a probability is meant for equal shares of "
            "human and AI code; where the shares differ, that adds to the error."
        )
    return " ".join(sentences)


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
    slices = []
    for metric in ("tpr", "fpr", "roc_auc"):
        if is_named(scores, metric):
            worst = part(scores, "worst", metric)
            value_text = with_edges(dig(worst, metric), edges(worst, f"{metric}_interval"))
            slices.append(f"{DETECTOR_SCORES.short(metric)} {value_text} at {slice_said(worst)}")
    if slices:
        limit = f"of at least {MIN_ROWS} programs of each class that counts"
        yield f"Worst slices, {limit}: {'; '.join(slices)}."


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
        means = [
            f"{DETECTOR_SCORES.short(metric)} {score(dig(values, metric))}"
            for metric in ("roc_auc", "tpr", "fpr")
            if dig(values, metric) is not None and sum(is_large(o, metric) for o in ours) > 1
        ]
        if means and " x " not in kind:
            yield f"{kind} {', '.join(means)}"


def slice_said(one: Mapping[str, Any]) -> str:
    """Write which programs a slice holds."""
    return f"{one.get('by', 'slice')} = {one.get('value', 'unknown')}"


def audit_said(facts: RunFacts) -> str:
    """Return the verdict of the audit with its reasons."""
    verdict, reasons = facts.get("audit", "verdict"), rows(facts.data, "audit", "reasons")
    if not verdict:
        return ""
    went_on = facts.get("settings", "on_failed_audit") == "go_on" and verdict == "hopeless"
    text = f"Audit of the data: {verdict}" + (
        ", and the run went on as it was told" if went_on else ""
    )
    why = "; ".join(reason.rstrip(".") for reason in reasons)
    return f"{text}: {why}." if why else f"{text}."


def audit_warnings(facts: RunFacts) -> list[str]:
    """Return the warnings of the audit, but for the humans that the threshold's promise names."""
    warnings = rows(facts.data, "audit", "warnings")
    is_there = dig(facts.data, "operating_point", "promised_fpr") is not None
    return [text for text in warnings if not (is_there and text.startswith(VALIDATION_HUMANS))]


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
        known_rows = [row for row in of_split.to_dict("records") if known(row["value"]) is not None]
        for row in known_rows:
            title = DETECTOR_SCORES.title(row["metric"])
            value, low, high = (known(row[key]) for key in ("value", "low", "high"))
            lines.append(f"  {title:<20}{score(value):<9}{interval([low, high])}".rstrip())
        lines += ["  the others          undefined"] if len(known_rows) < len(of_split) else []
        lines += [*_floor_lines(facts, split), ""]
    return lines


def _floor_lines(facts: RunFacts, split: str) -> Iterator[str]:
    """Yield our lead over each floor, a column per score."""
    baselines = floors_of(part(facts.data, "scores", split))
    for at, (name, beside) in enumerate(baselines.items()):
        if not at:
            titles = (f"{DETECTOR_SCORES.short(each.metric):<29}" for each in beside)
            yield f"  {'lead over':<20}{''.join(titles)}".rstrip()
        differences = (f"{lead_said(each.lead) or 'unknown':<29}" for each in beside)
        yield f"  {FLOOR_NAMES.get(name, name):<20}{''.join(differences)}".rstrip()


def cost_lines(facts: RunFacts) -> list[str]:
    """Return what a page has in sections: threshold, precision, band, and the cost of it all."""
    test = part(facts.data, "scores", "test")
    sentences = [point_said(facts), *precision_said(test), abstain_said(facts), speed_said(facts)]
    sentences += [phases_said(facts), compile_said(facts), inference_said(facts)]
    return [sentence for sentence in sentences if sentence]


def speed_said(facts: RunFacts) -> str:
    """Return the speed of training, and MFU with its convention."""
    speed = part(facts.data, "throughput")
    programs, useful = dig(speed, "programs_per_s"), dig(speed, "useful_tokens_per_s")
    padded, mfu = dig(speed, "padded_tokens_per_s"), dig(speed, "mfu_6n")
    rates = [f"{programs:,.1f} programs/s"] if programs is not None else []
    if useful is not None:
        with_padding = f" of {count(padded)} with padding" if padded is not None else ""
        rates.append(f"{count(useful)} useful tokens/s{with_padding}")
    rates += [f"MFU {share(mfu)} {MFU}"] if mfu is not None else []
    return f"Speed of training: {'; '.join(rates)}." if rates else ""


def compile_said(facts: RunFacts) -> str:
    """Return how often layers were compiled anew, and whether their gradients were checked."""
    compile_facts = part(facts.data, "compile")
    if not compile_facts:
        return ""
    if compile_facts.get("is_on") is not True:
        why = part(compile_facts, "self_test").get("reason")
        return "torch.compile was off" + (f" ({why})." if why else ".")
    recompiles = dig(compile_facts, "recompiles")
    text = "torch.compile was on"
    text += f", {count(recompiles)} recompiles" if recompiles is not None else ""
    checked = [
        f"{str(name).replace('_', ' ')} {value:.3g}"
        if isinstance(value, float)
        else f"{str(name).replace('_', ' ')} {value}"
        for name, value in part(compile_facts, "self_test").items()
        if name != "is_on" and value is not None
    ]
    return text + (f"; compiled beside eager: {', '.join(checked)}." if checked else ".")


def inference_said(facts: RunFacts) -> str:
    """Return the time to score one file; reading it and making tokens of it are not in it."""
    speed = part(facts.data, "inference")
    each, files = dig(speed, "ms_per_file"), dig(speed, "n_files")
    if each is None:
        return ""
    text = f"Scoring takes {each:.3g} ms per file, its tokens at hand"
    per_s, size = dig(speed, "files_per_s"), dig(speed, "batch_size")
    text += f", {per_s:,.1f} files per second" if per_s is not None else ""
    text += f", in batches of {count(size)}" if size is not None else ""
    text += f", over {count(files)} files" if files is not None else ""
    alone = dig(speed, "ms_alone")
    return text + (f"; of one file at a time {alone:.3g} ms." if alone is not None else ".")


def phases_said(facts: RunFacts) -> str:
    """Return where the time of training went."""
    phases = {name: dig(part(facts.data, "phases"), name) for name in part(facts.data, "phases")}
    total = sum(value for value in phases.values() if value)
    if not total:
        return ""
    phase_texts = [
        f"{name.removesuffix('_s')} {duration(value)} ({share(value / total)})"
        for name, value in phases.items()
        if value
    ]
    return f"Training by phase: {', '.join(phase_texts)}."


# ------------------------------------------------------------------------------------------------
# The tables of a detector's report: scores, promise, floors, slices, edits, similarity, cost.


BESIDE = ("roc_auc", "tpr_at_fpr", "tpr", "fpr", "f1")  # of the model and its floors
MOST_FEATURES = 8


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return what makes each table, by its name."""
    own = {
        "scores": scores_rows,
        "promise": promise_rows,
        "floors": floors_rows,
        "prevalence": prevalence_rows,
        "slices": slices_rows,
        "macro": macro_rows,
        "edits": edits_rows,
        "reliability": reliability_rows,
        "retrieval": retrieval_rows,
        "pairs": pair_rows,
        "targets": targets_rows,
        "phases": phases_rows,
        "throughput": throughput_rows,
        "inference": inference_rows,
        "data": data_rows,
        "data_parts": data_parts_rows,
        "features": features_rows,
    }
    table_makers = {name: _table(make) for name, make in own.items()}
    return table_makers | {
        "memory": memory_table,
        "memory_lines": memory_lines_table,
        "gpus": gpus_table,
        "timing": timing_table,
        "training": training_table,
        "settings": settings_table,
    }


def _table(make: Callable[[RunFacts], Iterator[dict[str, Any]]]) -> Callable[..., pd.DataFrame]:
    def made(facts: RunFacts) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(list(make(facts)))

    return made


def _between(between: list[float] | None, name: str = "") -> dict[str, float | None]:
    low, high = between or (None, None)
    return {f"{name} low".strip(): low, f"{name} high".strip(): high}


def scores_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per split and metric; another name of a metric has no row of its own."""
    for split, scores in splits(facts):
        for metric in DETECTOR_SCORES.names():
            is_own = not DETECTOR_SCORES.metric(metric).alias_of
            if is_own and metric in part(scores, "metrics"):
                row = {"split": split, "metric": metric, "value": dig(scores, "metrics", metric)}
                yield row | _between(edges(scores, "intervals", metric))


def promise_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the promised and the realised false-positive rate of each split."""
    for each in promises(facts):
        row = {"split": each.split, "humans": each.humans, "tasks": each.tasks}
        row |= {"promised": each.promised}
        yield row | {"realised": each.realised, **_between(each.interval), "promise": each.verdict}


def floors_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the model and its floors by split, each at its own frozen threshold, with our leads."""
    for split, scores in splits(facts):
        baselines = part(scores, "floors")
        for name, values in {MODEL: scores, **baselines}.items() if baselines else ():
            row: dict[str, Any] = {"split": split, "scorer": FLOOR_NAMES.get(name, name)}
            for metric in BESIDE:
                row[metric] = dig(values, "metrics", metric)
                row[f"{metric} interval"] = edges(values, "intervals", metric)
            for metric in DETECTOR_SCORES.differences():
                row[f"{metric} lead"] = None if name == MODEL else dig(values, "lead", metric)
            yield row | {"note": dig(values, "skipped") or ""}


def prevalence_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the precision of each split at the named shares of AI code."""
    for split, scores in splits(facts):
        for prevalence, values in part(scores, "at_prevalence").items():
            row = {"split": split, "share of AI": prevalence, "precision": dig(values, "precision")}
            yield row | _between(edges(values, "precision_interval"))


def slices_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield one row per slice; `worst` names the scores that are lowest, or highest, there."""
    for split, scores in splits(facts):
        worst = part(scores, "worst")
        for one in rows(scores, "slices"):
            row: dict[str, Any] = {"split": split, "by": _text(one, "by")}
            row |= {"value": _text(one, "value")}
            row |= {key: dig(one, key) for key in ("n_human", "n_ai", "roc_auc", "tpr")}
            row |= {"tpr interval": edges(one, "tpr_interval"), "fpr": dig(one, "fpr")}
            row |= {"fpr interval": edges(one, "fpr_interval")}
            place = (row["by"], row["value"])
            named = [
                metric
                for metric in worst
                if (_text(worst[metric], "by"), _text(worst[metric], "value")) == place
                if is_named(scores, metric)
            ]
            yield row | {"worst": ", ".join(named)}


def macro_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the mean over the slices of each kind, each slice counted once."""
    for split, scores in splits(facts):
        for kind, values in part(scores, "macro").items():
            means = {metric: dig(values, metric) for metric in ("roc_auc", "tpr", "fpr")}
            if any(value is not None for value in means.values()):
                yield {"split": split, "by": kind} | means


def edits_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield per edit and scorer what it does: AI programs edited, and human programs edited."""
    for split, scores in splits(facts):
        for edit, values in part(scores, "edits").items():
            for name, of in {MODEL: values, **part(values, "floors")}.items():
                row: dict[str, Any] = {"split": split, "edit": edit}
                row |= {"scorer": FLOOR_NAMES.get(name, name)}
                row |= _changed(values, of, "n_ai", "tpr")
                row["tpr lost"] = _difference(row["tpr before"], row["tpr after"])
                row["tpr lost interval"] = edges(of, "tpr_loss_interval")
                row |= _changed(values, of, "n_human", "fpr")
                row["fpr gained"] = _difference(row["fpr after"], row["fpr before"])
                # Of the model it counts the programs that the edit left out.
                yield row | {"note": "" if name == MODEL else dig(of, "skipped") or ""}


def _changed(values: Any, of: Any, count: str, rate: str) -> dict[str, Any]:
    row: dict[str, Any] = {count: dig(values, count)}
    row |= {f"{rate} before": dig(of, f"{rate}_unedited"), f"{rate} after": dig(of, rate)}
    return row | {f"{rate} after interval": edges(of, f"{rate}_interval")}


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def reliability_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the bins of probabilities: what was said, and how many were AI."""
    for split, scores in splits(facts):
        for one in rows(scores, "reliability"):
            keys = ("low", "high", "n", "mean_p", "share_ai")
            yield {"split": split} | {key: dig(one, key) for key in keys}


def targets_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the preset's success criteria beside what was measured; `op` is <= of an error."""
    measured_scores = available(facts.data)
    for metric, target in part(facts.data, "settings", "targets").items():
        if not facts.is_complete or target is None:
            continue
        value = measured_scores.get(metric)
        row = {
            "metric": metric,
            "op": "<=" if DETECTOR_SCORES.is_upper_bound(metric) else ">=",
            "target": target,
        }
        row |= {"value": value, "passed": DETECTOR_SCORES.is_reached(metric, value, target)}
        missing = "not measured" if DETECTOR_SCORES.may_exist(metric) else "no such score"
        yield row | {"note": "" if metric in measured_scores else missing}


def phases_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield seconds of training by phase, and their share."""
    seconds_by_phase = {
        name: dig(facts.data, "phases", name) for name in part(facts.data, "phases")
    }
    total = sum(value for value in seconds_by_phase.values() if value)
    for name, value in seconds_by_phase.items():
        if value:
            title = name.removesuffix("_s")
            yield {"phase": title, "seconds": value, "share": value / total if total else None}


def throughput_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield training speed: useful tokens are those of programs, the others count padding."""
    names = {
        "programs_per_s": ("programs", "per s"),
        "useful_tokens_per_s": ("useful tokens", "per s"),
        "padded_tokens_per_s": ("tokens with padding", "per s"),
        "useful_share": ("useful tokens per padded token", "this run"),
        "mfu_6n": ("MFU", MFU),
    }
    for key, (what, unit) in names.items():
        value = dig(facts.data, "throughput", key)
        if value is not None:
            yield {"what": what, "value": value, "unit": unit}


def inference_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the time to score a file."""
    names = {
        "ms_per_file": "ms per file, in batches",
        "ms_alone": "ms per file, one at a time",
        "files_per_s": "files per s",
        "batch_size": "files per batch",
        "n_files": "files measured",
    }
    for key, what in names.items():
        value = dig(facts.data, "inference", key)
        if value is not None:
            yield {"what": what, "value": value}


def data_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the programs of each split, by label, and its tasks."""
    for name, values in part(facts.data, "data", "splits").items():
        keys = ("rows", "human", "ai", "unlabelled", "tasks")
        yield {"split": name} | {key: dig(values, key) for key in keys}


def data_parts_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the programs of each split by language, source and generator."""
    for name, values in part(facts.data, "data", "splits").items():
        for kind in ("languages", "sources", "generators"):
            for value, labels in part(values, kind).items():
                row: dict[str, Any] = {"split": name, "by": kind.removesuffix("s"), "value": value}
                yield row | {key: dig(labels, key) for key in ("human", "ai", "unlabelled")}


def features_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield the single features that tell the classes apart best, by the audit of the data."""
    for one in rows(facts.data, "audit", "facts", "features")[:MOST_FEATURES]:
        row = {"feature": _text(one, "feature"), "AUC raw": dig(one, "raw")}
        row |= {"AUC canonical": dig(one, "canonical")}
        yield row | {"higher in": _text(one, "higher_in")}


def _text(values: Any, key: str) -> str:
    value = dig(values, key)
    return "" if value is None else str(value)[:80]


# ------------------------------------------------------------------------------------------------
# Tables of a detector's report as a page shows them: every cell is text.


UNDEFINED = "–"


def _records(table: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    for row in table.to_dict("records") if table is not None else ():
        yield {name: _known(value) for name, value in row.items()}


def _known(value: Any) -> Any:
    return value if isinstance(value, list) else known(value)


def _frame(rows: list[dict[str, str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def score_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Put the splits side by side: one row per metric, `value (low to high)` per split.

    What another row says, or another table, is left out; an undefined score is a dash.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cell = UNDEFINED if row["value"] is None else with_edges(row["value"], between)
        if row["metric"] in DETECTOR_SCORES.names("test", PAGE):
            cells.setdefault(row["metric"], {})[row["split"]] = cell
    return _frame([{"metric": DETECTOR_SCORES.title(m)} | splits for m, splits in cells.items()])


def target_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each target with what it bounds."""
    rows = []
    for row in _records(table):
        value = row["note"] or "undefined" if row["value"] is None else f"{row['value']:.4g}"
        cells = {"metric": row["metric"], "wanted": f"{row['op']} {row['target']:g}"}
        rows.append(cells | {"value": value, "passed": bool(row["passed"])})
    return _frame(rows)


def promise_cells(
    table: pd.DataFrame | None, precisions: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Write rates in per cent, and beside them the precision at the named shares of AI code."""
    named: dict[str, dict[str, str]] = {}
    for row in _records(precisions):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cell = UNDEFINED if row["precision"] is None else with_edges(row["precision"], between)
        title = f"precision if {100 * float(row['share of AI']):g} % are AI"
        named.setdefault(row["split"], {})[title] = cell
    rows = []
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cells = {"split": row["split"], "human programs": count(row["humans"])}
        cells |= {"tasks": "" if row["tasks"] is None else count(row["tasks"])}
        cells |= {"promised FPR": f"{100 * row['promised']:.3g} %"}
        cells |= {"realised FPR": rate_said(row["realised"], between), "promise": row["promise"]}
        rows.append(cells | named.get(row["split"], {}))
    return _frame(rows)


def floor_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and leads; on valid every threshold was chosen."""
    rows = []
    for row in (row for row in _records(table) if row["split"] != "valid"):
        cells = {"split": row["split"], "scorer": row["scorer"]}
        for metric in ("roc_auc", "tpr_at_fpr"):
            is_known, title = row[metric] is not None, DETECTOR_SCORES.title(metric)
            cell = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells |= {title: cell, f"lead in {title}": lead_said(row[f"{metric} lead"])}
        for metric in ("tpr", "fpr"):
            cell = "" if row[metric] is None else score(row[metric])
            cells[f"{metric.upper()} at its threshold"] = cell
        rows.append(cells | _skipped(row, "ROC-AUC"))
    return _once(rows, "split")


def slice_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Write rates with intervals, and where a slice is the worst."""
    rows = []
    for row in _records(table):
        worst = [DETECTOR_SCORES.short(name) for name in row["worst"].split(", ") if name]
        name = f"{row['by']}: {row['value']}" + (f" (worst {', '.join(worst)})" if worst else "")
        cells = {"split": row["split"], "slice": name}
        cells |= {"human": count(row["n_human"]), "AI": count(row["n_ai"])}
        cells |= {"ROC-AUC": "" if row["roc_auc"] is None else score(row["roc_auc"])}
        for metric in ("tpr", "fpr"):
            is_known = row[metric] is not None
            cell = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells[metric.upper()] = cell
        rows.append(cells)
    return _once(rows, "split")


def edited_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write TPR of AI programs and FPR of human programs, before and after an edit of these."""
    rows = []
    for row in _records(table):
        edit, on = EDIT_NAMES.get(row["edit"], row["edit"]), row["split"]
        n_ai, n_human = (count(row[key] or 0) for key in ("n_ai", "n_human"))
        edit = f"{edit if on == 'test' else f'{edit}, {on}'} ({n_ai} AI, {n_human} human)"
        lost = "" if row["tpr lost"] is None else row["tpr lost interval"] or [None, None]
        cells = {"edit": edit, "scorer": row["scorer"], "TPR": _before_after(row, "tpr")}
        cells |= {"TPR lost": lost and lead_said([row["tpr lost"], *lost])}
        rows.append(cells | {"FPR": _before_after(row, "fpr")} | _skipped(row, "TPR"))
    return _once(rows, "edit")


def _once(rows: list[dict[str, str]], column: str) -> pd.DataFrame:
    """Write what neighbouring rows share in the first of them alone."""
    shown = [row[column] for row in rows]
    for before, row, own in zip(shown, rows[1:], shown[1:], strict=False):
        row[column] = "" if own == before else own
    return _frame(rows)


def _skipped(row: Mapping[str, Any], column: str) -> dict[str, str]:
    """Return why a scorer has no scores, in the place of one."""
    return {column: f"not scored: {row['note']}"} if row["note"] else {}


def _before_after(row: Mapping[str, Any], rate: str) -> str:
    before, after = row[f"{rate} before"], row[f"{rate} after"]
    return (
        "" if before is None and after is None else f"{score(before)}\u00a0to\u00a0{score(after)}"
    )


def retrieval_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and the lead; scorers that were skipped are left out."""
    rows = []
    for row in (row for row in _records(table) if not row["note"]):
        ways = f"{row['query']} to {row['pool']}" if row["query"] != "all" else "all languages"
        ways = f"{row['split']}, {ways} ({count(row['queries'])} in {count(row['pool size'])})"
        cells = {"queries in a pool": ways, "scorer": row["scorer"]}
        for metric, title in (("mrr", "MRR"), ("map_at_r", "MAP@R")):
            is_known = row[metric] is not None
            cells[title] = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            if metric == "mrr":
                cells["lead in MRR"] = lead_said(row["lead"])
        rows.append(cells)
    return _once(rows, "queries in a pool")


def pair_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores and the lead."""
    rows = []
    for row in _records(table):
        cells = {"scorer": row["scorer"]}
        is_known = row["roc_auc"] is not None
        cell = with_edges(row["roc_auc"], row["roc_auc interval"]) if is_known else ""
        cells |= {"ROC-AUC": cell}
        for metric, title in (
            ("average_precision", "average precision"),
            ("accuracy", "accuracy"),
            ("f1", "F1"),
        ):
            cells[title] = "" if row[metric] is None else score(row[metric])
        rows.append(cells | {"lead in ROC-AUC": lead_said(row["lead"])} | _skipped(row, "ROC-AUC"))
    return _frame(rows)


def data_cells(table: pd.DataFrame | None, parts: pd.DataFrame | None) -> pd.DataFrame:
    """Put the splits side by side: programs by label and tasks, then by language and the like."""
    cells: dict[str, dict[str, str]] = {}
    for row in _records(table):
        cells.setdefault("all", {})[row["split"]] = _by_label(row)
        cells.setdefault("tasks", {})[row["split"]] = (
            "" if not row["tasks"] else count(row["tasks"])
        )
    for row in _records(parts):
        cells.setdefault(f"{row['by']}: {row['value']}", {})[row["split"]] = _by_label(row)
    rows = [{"human + AI programs": name} | splits for name, splits in cells.items()]
    return _frame([row for row in rows if any(list(row.values())[1:])])


def _by_label(row: Mapping[str, Any]) -> str:
    both = " + ".join(count(row[key] or 0) for key in ("human", "ai"))
    more = f" + {count(row['unlabelled'])} unlabelled" if row["unlabelled"] else ""
    return both + more


def setting_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each setting's reason, or who chose it where there is none."""
    rows = []
    for row in _records(table):
        cells = {key: _short(row[key]) for key in ("setting", "base", "this run")}
        rows.append(cells | {"why": row["why"] or row["from"]})
    return _frame(rows)


def _short(text: Any) -> str:
    """Write a table of values as its names."""
    is_table = isinstance(text, str) and text.startswith("{")
    if is_table and text != "{}":
        return f"{text.count(':')} values"
    return "none" if is_table else str(text)
