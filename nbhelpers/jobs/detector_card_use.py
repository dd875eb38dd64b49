"""What a detector's card says of its use: what for, its limits, how to contest, how to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbhelpers.jobs.detector_card_parts import at, began_random, figure, is_whole, mapping, percent

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
    for name, floor in mapping(test, "floors").items():
        lead = at(floor, "lead", "tpr_at_fpr") or at(floor, "lead", "tpr")
        if is_whole(lead) and lead[1] <= 0:
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
        name: told
        for name, told in mapping(test, "edits").items()
        if at(told, "tpr_loss") is not None
    }
    if not losses:
        return []
    worst = max(losses, key=lambda name: losses[name]["tpr_loss"])
    told = losses[worst]
    if told["tpr_loss"] <= 0:
        return []
    return [
        f"- Whoever edits the code can avoid it: after `{worst}` the TPR falls from "
        f"{figure(told.get('tpr_unedited'))} to {figure(told.get('tpr'))}, and the false-positive "
        f"rate becomes {percent(told.get('fpr'))}."
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
        "from nbhelpers.detect import load_detector",
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
