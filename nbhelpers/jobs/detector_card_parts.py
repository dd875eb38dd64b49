"""Parts of a detector's card: how figures and texts are written, and the tables of scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nbhelpers.catalog import MODELS
from nbhelpers.targets_detector import LEADS

METRICS = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "tpr": "AI code that is called AI (TPR)",
    "fpr": "human code that is called AI (FPR)",
    "tpr_at_fpr": "TPR with the FPR held on this very split",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "precision": "precision",
    "f1": "F1",
    "ece": "calibration error (ECE)",
    "brier": "Brier score",
    "abstain_share": "share left undecided",
    "accuracy_decided": "accuracy on the rest",
}
FLOORS = {
    "length": "length alone",
    "layout": "layout features",
    "tfidf": "character n-grams",
    "raw_encoder": "the encoder before training",
}
EDITS = {
    "reformat": "reformatted",
    "strip_comments": "comments removed",
    "rename": "local names changed",
    "rename_reformat": "names changed and reformatted",
}
SPLITS = {
    "test": "Test split",
    "held_out": "Left out of training",
    "valid": "Validation split (the threshold was chosen on it)",
}
UNKNOWN = "not computed"


def at(data: Any, *keys: str) -> Any:
    """Return a nested value, or None where any part of the way is missing.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": [1]}, "a", "b")
    (1, None)
    """
    for key in keys:
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a nested mapping; an empty one where there is none."""
    return at(data, *keys) or {}


def items(data: Any, *keys: str) -> list[Any]:
    """Return a nested list; an empty one where there is none."""
    return at(data, *keys) or []


def is_whole(numbers: Sequence[float | None] | None) -> bool:
    """Whether all edges of an interval, or parts of a lead, are known."""
    return bool(numbers) and None not in numbers


def began_random(result: Mapping[str, Any]) -> bool | None:
    """Whether the encoder had learnt nothing before the run; None where that is not recorded."""
    told = at(result, "model", "random_weights")
    is_own = at(result, "settings", "model") in MODELS["detector"].embedded
    return True if is_own else told


def one_line(text: Any) -> str:
    """Return a text as one line that breaks no table, list or code span.

    >>> one_line("a | b\\n<c>.")
    'a \\\\| b &lt;c>'
    """
    line = " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return line.rstrip(".")


def count(value: Any) -> str:
    """Write a whole number.

    >>> count(12345), count(None)
    ('12,345', 'not recorded')
    """
    return f"{value:,.0f}" if value is not None else "not recorded"


def figure(value: Any, edges: Any = None) -> str:
    """Write a score with its interval.

    >>> figure(0.5, [0.41, 0.6]), figure(None)
    ('0.500 [0.410, 0.600]', 'not computed')
    """
    text = f"{value:.3f}" if value is not None else UNKNOWN
    return f"{text} [{edges[0]:.3f}, {edges[1]:.3f}]" if is_whole(edges) else text


def percent(value: Any, edges: Any = None) -> str:
    """Write a share in percent with its interval.

    >>> percent(0.0123, [0.004, 0.05])
    '1.2 % [0.4, 5.0]'
    """
    text = f"{100 * value:.1f} %" if value is not None else UNKNOWN
    return f"{text} [{100 * edges[0]:.1f}, {100 * edges[1]:.1f}]" if is_whole(edges) else text


def grid(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def scored(floors: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the floors that were scored."""
    return {name: floor for name, floor in floors.items() if floor and "skipped" not in floor}


def split_table(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of one split beside those of its floors, with intervals."""
    floors = scored(mapping(scores, "floors"))
    sides = [scores, *floors.values()]
    head = ["score", "this model", *(f"floor: {FLOORS.get(name, name)}" for name in floors)]
    rows = []
    for name, title in METRICS.items():
        values = [(at(s, "metrics", name), at(s, "intervals", name)) for s in sides]
        if any(value is not None for value, _ in values):
            rows.append([title, *(figure(*pair) for pair in values)])
    lines = grid(head, rows)
    for name, floor in mapping(scores, "floors").items():
        if "skipped" in (floor or {}):
            lines += [
                "",
                f"Floor not scored, {FLOORS.get(name, name)}: {one_line(at(floor, 'skipped'))}.",
            ]
    return [*lines, *lead_lines(floors)]


def lead_lines(floors: Mapping[str, Any]) -> Iterator[str]:
    """Say for each floor whether the model is ahead of it by more than the interval."""
    first = True
    for name, floor in floors.items():
        for metric, lead in mapping(floor, "lead").items():
            if metric not in LEADS or not is_whole(lead):
                continue
            if first:
                yield ""
            first = False
            verdict = "ahead" if lead[1] > 0 else "behind" if lead[2] < 0 else "no clear difference"
            title = METRICS.get(metric, metric)
            yield (
                f"- Against {FLOORS.get(name, name)}, {title}: {lead[0]:+.3f} "
                f"[{lead[1]:+.3f}, {lead[2]:+.3f}]: {verdict}."
            )


def prevalence_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the precision at stated shares of AI code."""
    rows = [
        [
            f"{100 * float(share):g} %",
            percent(at(told, "precision"), at(told, "precision_interval")),
        ]
        for share, told in mapping(scores, "at_prevalence").items()
        if _is_share(share)
    ]
    head = ("of all programs are AI-written", "of those called AI are AI-written (precision)")
    return ["", *grid(head, rows)] if rows else []


def _is_share(text: Any) -> bool:
    try:
        return 0 < float(text) < 1
    except (TypeError, ValueError):
        return False


def slice_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the slices in which the model is worst, by each measure."""
    rows = []
    for metric, told in mapping(scores, "worst").items():
        if not told:
            continue
        name = f"{one_line(told.get('by'))} {one_line(told.get('value'))}"
        size = f"{count(told.get('n_human'))} human, {count(told.get('n_ai'))} AI"
        value = figure(told.get(metric), told.get(f"{metric}_interval"))
        rows.append([METRICS.get(metric, metric), name, value, size])
    return grid(("measure", "worst slice", "value", "programs"), rows) if rows else []


def edit_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return what each edit of the code does to the calls."""
    rows = []
    for name, told in mapping(scores, "edits").items():
        if told:
            rows.append(
                [
                    EDITS.get(name, name),
                    figure(told.get("tpr_unedited")),
                    figure(told.get("tpr"), told.get("tpr_interval")),
                    figure(told.get("fpr_unedited")),
                    figure(told.get("fpr"), told.get("fpr_interval")),
                    count(told.get("skipped")),
                ]
            )
    head = ("edit", "TPR before", "TPR after", "FPR before", "FPR after", "not edited")
    return grid(head, rows) if rows else []


def leaves(data: Any) -> Iterator[Any]:
    """Return the plain values in nested mappings and lists.

    >>> list(leaves({"a": [1, {"b": 0}]}))
    [1, 0]
    """
    if isinstance(data, Mapping | list):
        for each in data.values() if isinstance(data, Mapping) else data:
            yield from leaves(each)
    else:
        yield data


def split_counts(data: Mapping[str, Any]) -> list[str]:
    """Return how many programs each split has, by label."""
    rows = []
    for name, told in mapping(data, "splits").items():
        if told:
            rows.append([name, count(told.get("rows")), _labels(told), count(told.get("tasks"))])
    return grid(("split", "programs", "of them", "tasks"), rows) if rows else []


def _labels(split: Mapping[str, Any]) -> str:
    named = [(label, split.get(label)) for label in ("human", "ai", "unlabelled")]
    return ", ".join(f"{value:,.0f} {label}" for label, value in named if value is not None)


def retrieval_table(rows: list[Mapping[str, Any]]) -> list[str]:
    """Return how well the programs of the same task are found, beside the floors."""
    lines = []
    for told in rows:
        tfidf, raw = mapping(told, "floors", "tfidf"), mapping(told, "floors", "raw_encoder")
        lead = tfidf.get("lead")
        lines.append(
            [
                one_line(f"{told.get('query')} to {told.get('pool')} ({told.get('split')})"),
                count(told.get("n_queries")),
                count(told.get("pool_size")),
                figure(told.get("mrr"), told.get("mrr_interval")),
                figure(told.get("map_at_r"), told.get("map_at_r_interval")),
                figure(tfidf.get("mrr")),
                figure(raw.get("mrr")),
                f"{lead[0]:+.3f} [{lead[1]:+.3f}, {lead[2]:+.3f}]" if is_whole(lead) else UNKNOWN,
            ]
        )
    head = ("same task", "queries", "pool", "MRR", "MAP@R", "MRR of character n-grams")
    head += ("MRR of the encoder before training", "lead in MRR over n-grams")
    return grid(head, lines)


def pairs_table(pairs: Mapping[str, Any]) -> list[str]:
    """Return how well pairs of the same task are told from hard negatives."""
    names = {"roc_auc": "ROC-AUC", "average_precision": "average precision"}
    names |= {"accuracy": "accuracy", "f1": "F1"}
    floors = scored(mapping(pairs, "floors"))
    rows = []
    for name, title in names.items():
        values = [figure(floor.get(name)) for floor in floors.values()]
        rows.append([title, figure(pairs.get(name), pairs.get(f"{name}_interval")), *values])
    head = ("pairs of the same task", "this model", *(FLOORS.get(k, k) for k in floors))
    size = f"{count(pairs.get('n_pairs'))} pairs, {count(pairs.get('n_positive'))} of the same task"
    told = f"{size}; the others are of the same language and like length."
    return [told, "", *grid(head, rows)]
