"""README.md of an exported detector: scores, limits, how to contest, how to load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbhelpers.jobs.cards import CARD, table
from nbhelpers.jobs.public import hub_name, public_name, without_paths
from nbhelpers.metrics.registry import DETECTOR_SCORES
from nbhelpers.presets.jobs import DETECTOR
from nbhelpers.use.facts import NO_EVIDENCE

# ------------------------------------------------------------------------------------------------
# Parts of a detector's card: how figures and texts are written, and the tables of scores.


METRICS = DETECTOR_SCORES.card()
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
    is_random = at(result, "model", "random_weights")
    is_own = at(result, "settings", "model") in DETECTOR.models.embedded
    return True if is_own else is_random


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


def scored(baselines: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the floors that were scored."""
    return {
        name: baseline
        for name, baseline in baselines.items()
        if baseline and "skipped" not in baseline
    }


def split_table(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of one split beside those of its floors, with intervals."""
    baselines = scored(mapping(scores, "floors"))
    sides = [scores, *baselines.values()]
    head = ["score", "this model", *(f"floor: {FLOORS.get(name, name)}" for name in baselines)]
    rows = []
    for name, title in METRICS.items():
        values = [(at(s, "metrics", name), at(s, "intervals", name)) for s in sides]
        if any(value is not None for value, _ in values):
            rows.append([title, *(figure(*pair) for pair in values)])
    lines = grid(head, rows)
    for name, baseline in mapping(scores, "floors").items():
        if "skipped" in (baseline or {}):
            lines += [
                "",
                f"Floor not scored, {FLOORS.get(name, name)}: {one_line(at(baseline, 'skipped'))}.",
            ]
    return [*lines, *lead_lines(baselines)]


def lead_lines(baselines: Mapping[str, Any]) -> Iterator[str]:
    """Say for each floor whether the model is ahead of it by more than the interval."""
    first = True
    for name, baseline in baselines.items():
        for metric, difference in mapping(baseline, "lead").items():
            if metric not in DETECTOR_SCORES.differences() or not is_whole(difference):
                continue
            if first:
                yield ""
            first = False
            estimate, low, high = difference[:3]
            verdict = "ahead" if low > 0 else "behind" if high < 0 else "no clear difference"
            title = METRICS.get(metric, metric)
            yield (
                f"- Against {FLOORS.get(name, name)}, {title}: {estimate:+.3f} "
                f"[{low:+.3f}, {high:+.3f}]: {verdict}."
            )


def prevalence_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the precision at stated shares of AI code."""
    rows = [
        [
            f"{100 * float(share):g} %",
            percent(at(share_scores, "precision"), at(share_scores, "precision_interval")),
        ]
        for share, share_scores in mapping(scores, "at_prevalence").items()
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
    for metric, worst_slice in mapping(scores, "worst").items():
        if not worst_slice:
            continue
        name = f"{one_line(worst_slice.get('by'))} {one_line(worst_slice.get('value'))}"
        size = f"{count(worst_slice.get('n_human'))} human, {count(worst_slice.get('n_ai'))} AI"
        value = figure(worst_slice.get(metric), worst_slice.get(f"{metric}_interval"))
        rows.append([METRICS.get(metric, metric), name, value, size])
    return grid(("measure", "worst slice", "value", "programs"), rows) if rows else []


def edit_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return what each edit of the code does to the calls."""
    rows = []
    for name, edited in mapping(scores, "edits").items():
        if edited:
            rows.append(
                [
                    EDITS.get(name, name),
                    figure(edited.get("tpr_unedited")),
                    figure(edited.get("tpr"), edited.get("tpr_interval")),
                    figure(edited.get("fpr_unedited")),
                    figure(edited.get("fpr"), edited.get("fpr_interval")),
                    count(edited.get("skipped")),
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
    for name, split in mapping(data, "splits").items():
        if split:
            rows.append([name, count(split.get("rows")), _labels(split), count(split.get("tasks"))])
    return grid(("split", "programs", "of them", "tasks"), rows) if rows else []


def _labels(split: Mapping[str, Any]) -> str:
    named = [(label, split.get(label)) for label in ("human", "ai", "unlabelled")]
    return ", ".join(f"{value:,.0f} {label}" for label, value in named if value is not None)


def retrieval_table(rows: list[Mapping[str, Any]]) -> list[str]:
    """Return how well the programs of the same task are found, beside the floors."""
    lines = []
    for row in rows:
        tfidf, raw = mapping(row, "floors", "tfidf"), mapping(row, "floors", "raw_encoder")
        difference = tfidf.get("lead")
        lines.append(
            [
                one_line(f"{row.get('query')} to {row.get('pool')} ({row.get('split')})"),
                count(row.get("n_queries")),
                count(row.get("pool_size")),
                figure(row.get("mrr"), row.get("mrr_interval")),
                figure(row.get("map_at_r"), row.get("map_at_r_interval")),
                figure(tfidf.get("mrr")),
                figure(raw.get("mrr")),
                f"{difference[0]:+.3f} [{difference[1]:+.3f}, {difference[2]:+.3f}]"
                if is_whole(difference)
                else UNKNOWN,
            ]
        )
    head = ("same task", "queries", "pool", "MRR", "MAP@R", "MRR of character n-grams")
    head += ("MRR of the encoder before training", "lead in MRR over n-grams")
    return grid(head, lines)


def pairs_table(pairs: Mapping[str, Any]) -> list[str]:
    """Return how well pairs of the same task are told from hard negatives."""
    names = {"roc_auc": "ROC-AUC", "average_precision": "average precision"}
    names |= {"accuracy": "accuracy", "f1": "F1"}
    baselines = scored(mapping(pairs, "floors"))
    rows = []
    for name, title in names.items():
        values = [figure(baseline.get(name)) for baseline in baselines.values()]
        rows.append([title, figure(pairs.get(name), pairs.get(f"{name}_interval")), *values])
    head = ("pairs of the same task", "this model", *(FLOORS.get(k, k) for k in baselines))
    size = f"{count(pairs.get('n_pairs'))} pairs, {count(pairs.get('n_positive'))} of the same task"
    caption = f"{size}; the others are of the same language and like length."
    return [caption, "", *grid(head, rows)]


# ------------------------------------------------------------------------------------------------
# What a detector's card says of its use: what for, its limits, how to contest, how to load.


HERE = "path/to/this/folder"
EXAMPLE = "use_detector.py"


def use_lines() -> list[str]:
    """Return what the model is for, and what it is not for."""
    return [
        "- For: sorting many programs so that a person looks at some of them first; studies of "
        "how AI-written code differs; finding programs that solve the same task.",
        "- Not for: grading, accusing or ranking people; any decision about a person that a "
        "person does not make; code of people whose known-human code it was not calibrated on.",
        "- Among programs that it calls AI, the share that is AI falls with the share of AI code "
        "there is: see precision at each share under Scores.",
    ]


def limit_lines(result: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return what the run's own figures forbid to promise."""
    detector, test = mapping(facts, "detector"), mapping(result, "scores", "test")
    lines = []
    if not result:
        lines.append("- There is no record of a finished run: no score is known.")
    if began_random(result):
        lines.append("- The encoder began with random weights.")
    if seq_len := detector.get("seq_len"):
        lines.append(f"- Only the first {seq_len} tokens of a program are read.")
    if not mapping(result, "scores", "held_out"):
        lines.append("- No source, generator or language was left out of training to test on it.")
    lines += _behind(test)
    lines += _fragile(test)
    lines += [
        "- It learnt the AI models and the people of its data. Newer AI models, other tasks, other "
        "languages and other people are unknown to it.",
        "- One run with one seed: the spread over seeds is not told here.",
        "- Short programs carry little; a model for them is right by luck more often.",
    ]
    return lines


def _behind(test: Mapping[str, Any]) -> list[str]:
    """Name the floors that the model does not beat by more than the interval."""
    names = []
    for name, baseline in mapping(test, "floors").items():
        difference = at(baseline, "lead", "tpr_at_fpr") or at(baseline, "lead", "tpr")
        if is_whole(difference) and difference[1] <= 0:
            names.append(name)
    if not names:
        return []
    return [
        f"- On the test split it is not clearly better than these floors: {', '.join(names)} "
        "(TPR at the promised false-positive rate). They are simpler and cheaper."
    ]


def _fragile(test: Mapping[str, Any]) -> list[str]:
    """Name the edit that costs the most."""
    losses = {
        name: edited
        for name, edited in mapping(test, "edits").items()
        if at(edited, "tpr_loss") is not None
    }
    if not losses:
        return []
    worst = max(losses, key=lambda name: losses[name]["tpr_loss"])
    edited = losses[worst]
    if edited["tpr_loss"] <= 0:
        return []
    return [
        f"- Whoever edits the code can avoid it: after `{worst}` the TPR falls from "
        f"{figure(edited.get('tpr_unedited'))} to {figure(edited.get('tpr'))}, and the "
        f"false-positive rate becomes {percent(edited.get('fpr'))}."
    ]


def contest_lines() -> list[str]:
    """Return what a person can do whose code was scored."""
    return [
        "- Ask for the evidence sheet of the file: its hash, the model, the threshold with its "
        "false-positive rate, and the scores after each edit. Anybody with this folder can make "
        "it again: `nbhelpers detect FILE --model FOLDER --evidence SHEETS`.",
        "- Ask on whose code the threshold was calibrated. Without calibration on people like "
        "you there is no threshold, only a rank.",
        "- Compare: the scores of your own older code, and of the task's template, which you did "
        "not write.",
        "- What counts is what a person can check: drafts, version history, an explanation of the "
        "code. A score counts for nothing against these, nor on its own.",
    ]


def load_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return commands and programs that load the folder; nothing in it is pickled."""
    place = facts.get("repo_id")
    lines = []
    if place:
        lines += [
            "Fetch it:",
            "",
            "```shell",
            f"hf download {place} --local-dir {HERE}",
            "```",
            "",
        ]
    lines += [
        "Weights are in safetensors, all else is JSON and text: loading runs no code of this "
        "folder. With nbhelpers:",
        "",
        "```shell",
        f"nbhelpers detect FILE_OR_FOLDER --model {HERE}",
        "```",
        "",
        "```python",
        "from nbhelpers.use.detector import load_detector",
        "",
        f'with load_detector("{HERE}") as detector:',
        '    print(detector.score_code("hello.py"))',
        "```",
    ]
    if facts.get("onnx"):
        lines += [
            "",
            "With onnxruntime, without torch and nbhelpers "
            "(`pip install onnxruntime tokenizers numpy`):",
            "",
            "```shell",
            f"python {HERE}/{EXAMPLE} FILE ...",
            "```",
            "",
            "It prints scores and calls nothing AI: a threshold holds only for the people on whose "
            "code it was fixed (`nbhelpers calibrate`).",
            "",
            "`model.onnx` takes `input_ids` and `attention_mask` (batch, length) int64 and gives "
            "`logit` (batch,) and `vector` (batch, dimensions), both float32.",
        ]
    return lines


# ------------------------------------------------------------------------------------------------
# README.md of an exported detector: what its run recorded, what it did not, what it is not for.
#
# Every figure comes from `result.json` or from the export's own measurement. What is missing there
# is said to be missing; no path of this machine is told.


_VERSIONS = ("python", "nbhelpers", "torch", "transformers", "tokenizers", "accelerate", "cuda")
_VERSIONS += ("scikit-learn", "onnx", "onnxruntime")


def write_card(folder: Path, result: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write README.md into a folder; the arguments are those of `detector_card`."""
    (folder / CARD).write_text(detector_card(result, facts), encoding="utf-8")


def detector_card(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card.

    Args:
        result: What `public.public_result` tells; empty for a run without a result.
        facts: `detector` (what detector.json holds), `model` (settings of the run that name the
            encoder), `agreement` (what the export measured), `name`, `repo_id`, `parameters`.
    """
    title = f"# Code detector on {_encoder_name(result, facts)}"
    head = [front_matter(result, facts), title, _opening(result, facts), f"**{NO_EVIDENCE}**"]
    sections = {
        "What it is": _model(result, facts),
        "Training data": _data(result),
        "Audit of the data": _audit(result),
        "Operating point": _point(facts),
        "Scores": _scores(result),
        "Where it is worst": _worst(result),
        "Edited code": _edits(result),
        "People it never saw": _unseen(result),
        "Similarity": _similarity(result),
        "Intended use": use_lines(),
        "Limits": limit_lines(result, facts),
        "How to contest a score": contest_lines(),
        "How to load it": load_lines(facts),
        "Agreement of this folder with the trained model": _agreement(facts),
        "Versions": _versions(result, facts),
        "Citation": _citation(result, facts),
    }
    texts = [
        f"## {name}\n\n{without_paths(chr(10).join(lines))}" for name, lines in sections.items()
    ]
    return "\n\n".join([*head, *texts]) + "\n"


def front_matter(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the YAML block that the hub reads; only keys whose value is known."""
    fields: dict[str, Any] = {"library_name": "nbhelpers"}
    model = hub_name(_source(result, facts, "model"))
    if model and at(result, "model", "random_weights") is False:
        fields |= {"base_model": model, "base_model_relation": "finetune"}
    if data := hub_name(_source(result, facts, "data")):
        fields["datasets"] = [data]
    fields["pipeline_tag"] = "text-classification"
    fields["tags"] = ["code", "ai-code-detection", "code-similarity"]
    # A JSON value is a YAML value as well, whatever characters it holds.
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _source(result: Mapping[str, Any], facts: Mapping[str, Any], key: str) -> str:
    """The model or the data as the settings name it."""
    source = at(result, "settings", key) or at(facts, "settings", key)
    return source or ""


def _encoder_name(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    recorded_name = at(result, "model", "name")  # public already, unless the run has no result
    return recorded_name or public_name(_source(result, facts, "model"))


def _opening(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    objective = at(facts, "detector", "objective")
    what = {
        "detect": "says how much a program looks AI-written",
        "similar": "gives programs that solve the same task vectors close to each other",
    }.get(
        str(objective),
        "says how much a program looks AI-written, and gives programs that solve the same task "
        "vectors close to each other",
    )
    text = f"An encoder that {what}; trained by nbhelpers in the run `{facts['name']}`."
    if _source(result, facts, "data") == "smoke":
        text += (
            " It was trained on the bundled sample, whose two classes are two styles of writing: "
            "it shows the machinery and detects nothing real."
        )
    return f"{text} This card is written from what the run recorded."


def _model(result: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    model, detector = mapping(result, "model"), mapping(facts, "detector")
    is_random = began_random(result)
    began = "pretrained weights" if is_random is False else None
    rows = {
        "encoder": _encoder_name(result, facts),
        "revision": model.get("revision"),
        "architecture": model.get("architecture"),
        "parameters": count(facts.get("parameters") or model.get("parameters")),
        "began as": "random weights" if is_random else began,
        "objective": detector.get("objective"),
        "form that code is brought to": detector.get("canonical"),
        "tokens per program at most": count(detector.get("seq_len")),
        "what stands for a program": {
            "mean": "the mean of its token states",
            "first": "the first token's state",
            "mean_max": "the mean of its token states and their maximum, side by side",
        }.get(str(detector.get("pooling"))),
        "heads": ", ".join(map(str, detector.get("heads") or [])) or None,
        "dimensions of the similarity space": count(detector.get("projection_size")),
    }
    if pretrain := mapping(model, "pretrain"):
        pretraining = ", ".join(f"{one_line(k)} {one_line(v)}" for k, v in pretrain.items())
        rows["masked-language-model steps first"] = pretraining
    return table(rows, ("model", ""))


def _data(result: Mapping[str, Any]) -> list[str]:
    data = mapping(result, "data")
    if not data:
        return ["Not recorded."]
    rows = {
        "source": data.get("source"),
        "revision": data.get("revision"),
        "licence": one_line(data["licence"]) if data.get("licence") else None,
        "fingerprint": data.get("fingerprint"),
    }
    lines = table(rows, ("data", ""))
    if counts := split_counts(data):
        lines += ["", *counts]
    if overlap := mapping(data, "overlap"):
        zero = all(value == 0 for value in leaves(overlap))
        shared_counts = "none" if zero else one_line(json.dumps(overlap))
        lines += ["", f"Programs, tasks and authors that two splits share: {shared_counts}."]
        if "held_out" in mapping(data, "splits"):
            lines[-1] += " Test and held_out may share some; nothing was trained on either."
    if data.get("note"):
        lines += ["", f"{one_line(data['note'])}."]
    return lines


def _audit(result: Mapping[str, Any]) -> list[str]:
    audit = mapping(result, "audit")
    if not audit:
        return ["Not recorded."]
    lines = [f"Verdict: **{one_line(audit.get('verdict') or 'not recorded')}**."]
    for title, key in (("Reason", "reasons"), ("Warning", "warnings")):
        lines += [f"- {title}: {one_line(text)}." for text in items(audit, key)]
    return [lines[0], "", *lines[1:]] if lines[1:] else lines


def _point(facts: Mapping[str, Any]) -> list[str]:
    point, calibration = mapping(facts, "point"), mapping(facts, "calibration")
    lines = _point_table(point) if point else []
    if calibration:
        lines += ["", "Fixed anew on known-human code by the one who exported this; it is used "]
        lines[-1] += "only where it is named (`--calibration calibration.json`):"
        lines += [""]
        lines += _calibration_table(calibration)
    if not lines:
        return ["None: this model has no threshold. It scores and ranks; it calls nothing AI."]
    return [
        *lines,
        "",
        "The threshold promises its rate for people like those it was chosen on, and for nobody "
        "else: on other people's code a threshold that promised 1 % has flagged 42 to 98.6 % of "
        "the humans. Calibrate it on known-human code of the people it is used on "
        "(`nbhelpers calibrate`).",
    ]


def _point_table(point: Mapping[str, Any]) -> list[str]:
    band = point.get("abstain")
    rows = {
        "called AI when p_ai is above": figure(point.get("threshold")),
        "temperature of the logit": figure(point.get("temperature")),
        "promised false-positive rate": percent(point.get("target_fpr")),
        "humans it was chosen on": count(point.get("n_humans")),
        "false-positive rate on them": percent(
            point.get("valid_fpr"), point.get("valid_fpr_interval")
        ),
        "undecided between": f"{band[0]:.3f} and {band[1]:.3f}" if is_whole(band) else None,
        "chosen on": one_line(point["chosen_on"]) if point.get("chosen_on") else None,
    }
    notes = [f"- {one_line(text)}." for text in items(point, "warnings")]
    return [*table(rows, ("operating point", "")), *([""] if notes else []), *notes]


def _calibration_table(calibration: Mapping[str, Any]) -> list[str]:
    rows = {
        "called AI when the logit is above": figure(calibration.get("threshold_logit")),
        "human programs it was fixed on": count(calibration.get("n")),
        "of them above the threshold": count(calibration.get("exceed")),
        "asked for": percent(calibration.get("target_fpr")),
        "promised for people like these, at most": percent(calibration.get("promised_fpr")),
        "written": calibration.get("created"),
    }
    return table(rows, ("calibration", ""))


def _scores(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, title in SPLITS.items():
        scores = mapping(result, "scores", name)
        if not scores:
            continue
        size = f"{count(scores.get('n_human'))} human and {count(scores.get('n_ai'))} AI programs"
        lines += [f"### {title}", "", f"{size}; 95 % intervals in brackets.", ""]
        lines += [*split_table(scores), *prevalence_lines(scores), ""]
    return lines[:-1] if lines else ["Not evaluated as a detector."]


def _worst(result: Mapping[str, Any]) -> list[str]:
    return slice_lines(mapping(result, "scores", "test")) or ["No slice was scored."]


def _edits(result: Mapping[str, Any]) -> list[str]:
    lines = edit_lines(mapping(result, "scores", "test"))
    if not lines:
        return ["Not measured: how the scores move when code is edited is not known."]
    head = "The same test programs, human and AI, after an edit that leaves their meaning alone:"
    return [head, "", *lines]


def _unseen(result: Mapping[str, Any]) -> list[str]:
    scores = mapping(result, "scores", "unseen_humans")
    if not scores:
        return [
            "Not measured: how often this model is wrong about other people is not known. "
            "A threshold does not carry over to them."
        ]
    rate = percent(at(scores, "metrics", "fpr"), at(scores, "intervals", "fpr"))
    return [
        f"On {count(scores.get('n_human'))} programs of other people, all human, the frozen "
        f"threshold calls {rate} AI (in brackets: the 95 % interval). Every one of these calls is "
        "wrong."
    ]


def _similarity(result: Mapping[str, Any]) -> list[str]:
    similarity = mapping(result, "similarity")
    rows = items(similarity, "retrieval")
    lines = retrieval_table(rows) if rows else []
    if pairs := mapping(similarity, "pairs"):
        lines += ["", *pairs_table(pairs)]
    return lines or ["Not evaluated: how near two programs are says nothing that was measured."]


def _agreement(facts: Mapping[str, Any]) -> list[str]:
    rows = items(facts, "agreement")
    if not rows:
        return ["Not measured."]
    head = ("form", "programs", "largest difference of a logit", "of a vector", "allowed")
    cells = [
        [
            row["form"],
            count(row["programs"]),
            f"{row['logit']:.2g}",
            f"{row['vector']:.2g}",
            f"{row['limit']:g}",
        ]
        for row in rows
    ]
    where = one_line(facts.get("programs") or "programs that were given")
    return [f"Measured on {where}, when this folder was written:", "", *grid(head, cells)]


def _versions(result: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for title, record in (("Trained", result), ("Exported", facts)):
        known = {k: str(v) for k, v in mapping(record, "versions").items() if v}
        versions = [
            f"{name} {one_line(known[name])}"
            for name in _VERSIONS
            if name in known and not known[name].startswith(("not ", "none"))
        ]
        if versions:
            lines.append(f"- {title} with {', '.join(versions)}.")
    return lines or ["Not recorded."]


def _citation(result: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    commit = result.get("git_commit")
    known = f", commit {one_line(commit)}" if commit else ""
    command = result.get("command")
    lines = [
        f"Cite the run `{one_line(facts['name'])}` of nbhelpers{known}, seed "
        f"{count(at(result, 'settings', 'seed'))}."
    ]
    if command:
        lines += ["", "Made by:", "", "```shell", without_paths(command), "```"]
    return lines
