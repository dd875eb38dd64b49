"""README.md of an exported detector: what its run recorded, what it did not, what it is not for.

Every figure comes from `result.json` or from the export's own measurement. What is missing there is
said to be missing; no path of this machine is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.detector_notice import NO_EVIDENCE
from nbhelpers.jobs import detector_card_parts as parts
from nbhelpers.jobs.detector_card_parts import at, count, figure, items, mapping, one_line, percent
from nbhelpers.jobs.detector_card_use import contest_lines, limit_lines, load_lines, use_lines
from nbhelpers.jobs.detector_public import hub_name, public_name
from nbhelpers.jobs.model_card import CARD
from nbhelpers.jobs.model_card_parts import table
from nbhelpers.jobs.public import without_paths

_VERSIONS = ("python", "nbhelpers", "torch", "transformers", "tokenizers", "accelerate", "cuda")
_VERSIONS += ("scikit-learn", "onnx", "onnxruntime")


def write_card(folder: Path, result: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write README.md into a folder; the arguments are those of `detector_card`."""
    (folder / CARD).write_text(detector_card(result, facts), encoding="utf-8")


def detector_card(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card.

    Args:
        result: What `detector_public.public_result` tells; empty for a run without a result.
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
    texts = [f"## {name}\n\n{without_paths(chr(10).join(told))}" for name, told in sections.items()]
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
    found = at(result, "settings", key) or at(facts, "settings", key)
    return found or ""


def _encoder_name(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    told = at(result, "model", "name")  # public already, unless the run has no result
    return told or public_name(_source(result, facts, "model"))


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
    is_random = parts.began_random(result)
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
        told = ", ".join(f"{one_line(k)} {one_line(v)}" for k, v in pretrain.items())
        rows["masked-language-model steps first"] = told
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
    if counts := parts.split_counts(data):
        lines += ["", *counts]
    if overlap := mapping(data, "overlap"):
        zero = all(value == 0 for value in parts.leaves(overlap))
        told = "none" if zero else one_line(json.dumps(overlap))
        lines += ["", f"Programs, tasks and authors that two splits share: {told}."]
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
        "undecided between": f"{band[0]:.3f} and {band[1]:.3f}" if parts.is_whole(band) else None,
        "chosen on": one_line(point["chosen_on"]) if point.get("chosen_on") else None,
    }
    notes = [f"- {one_line(text)}." for text in items(point, "warnings")]
    return [*table(rows, ("operating point", "")), *([""] if notes else []), *notes]


def _calibration_table(told: Mapping[str, Any]) -> list[str]:
    rows = {
        "called AI when the logit is above": figure(told.get("threshold_logit")),
        "human programs it was fixed on": count(told.get("n")),
        "of them above the threshold": count(told.get("exceed")),
        "asked for": percent(told.get("target_fpr")),
        "promised for people like these, at most": percent(told.get("promised_fpr")),
        "written": told.get("created"),
    }
    return table(rows, ("calibration", ""))


def _scores(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, title in parts.SPLITS.items():
        scores = mapping(result, "scores", name)
        if not scores:
            continue
        size = f"{count(scores.get('n_human'))} human and {count(scores.get('n_ai'))} AI programs"
        lines += [f"### {title}", "", f"{size}; 95 % intervals in brackets.", ""]
        lines += [*parts.split_table(scores), *parts.prevalence_lines(scores), ""]
    return lines[:-1] if lines else ["Not evaluated as a detector."]


def _worst(result: Mapping[str, Any]) -> list[str]:
    return parts.slice_lines(mapping(result, "scores", "test")) or ["No slice was scored."]


def _edits(result: Mapping[str, Any]) -> list[str]:
    lines = parts.edit_lines(mapping(result, "scores", "test"))
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
    found = mapping(result, "similarity")
    rows = items(found, "retrieval")
    lines = parts.retrieval_table(rows) if rows else []
    if pairs := mapping(found, "pairs"):
        lines += ["", *parts.pairs_table(pairs)]
    return lines or ["Not evaluated: how near two programs are says nothing that was measured."]


def _agreement(facts: Mapping[str, Any]) -> list[str]:
    rows = items(facts, "agreement")
    if not rows:
        return ["Not measured."]
    head = ("form", "programs", "largest difference of a logit", "of a vector", "allowed")
    cells = [
        [
            told["form"],
            count(told["programs"]),
            f"{told['logit']:.2g}",
            f"{told['vector']:.2g}",
            f"{told['limit']:g}",
        ]
        for told in rows
    ]
    where = one_line(facts.get("programs") or "programs that were given")
    return [f"Measured on {where}, when this folder was written:", "", *parts.grid(head, cells)]


def _versions(result: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for title, told in (("Trained", result), ("Exported", facts)):
        known = {k: str(v) for k, v in mapping(told, "versions").items() if v}
        found = [
            f"{name} {one_line(known[name])}"
            for name in _VERSIONS
            if name in known and not known[name].startswith(("not ", "none"))
        ]
        if found:
            lines.append(f"- {title} with {', '.join(found)}.")
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
