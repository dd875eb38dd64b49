"""Score files with the `model.onnx` that lies beside this program: python use_detector.py FILE ...

Needs onnxruntime, tokenizers and numpy; neither torch nor nbhelpers. A line of JSON comes for each
file: its score, or why it has none. A score is no evidence of misconduct, and without a threshold
that was fixed on code of the same people it only ranks files: nothing is called AI here.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.data.canonical import canonical
from nbhelpers.metrics.stack import FILE, Stack

MAX_BYTES = 2_000_000  # of one file, as where nbhelpers scores it
NO_THRESHOLD = (
    "No threshold is used here and nothing is called AI: one holds only for the people on whose "
    "code it was fixed (nbhelpers calibrate)."
)


class OnnxDetector:
    """The graph with its tokenizer and what `detector.json` tells of both."""

    def __init__(self, folder: Path) -> None:
        """Read an exported folder."""
        import onnxruntime
        import tokenizers

        self.facts = json.loads((folder / "detector.json").read_text(encoding="utf-8"))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True  # text that looks like one stays text
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        self.outputs = [each.name for each in self.session.get_outputs()]
        # What is summed with the graph's logit; without it that is the score.
        self.stack = Stack.load(folder / FILE) if (folder / FILE).exists() else None

    def ids(self, code: str) -> list[int]:
        """Return the token ids of a program, cut to what the model reads."""
        ends = self.facts["tokens"]
        first = [] if ends["first"] is None else [ends["first"]]
        encoding = self.tokenizer.encode(
            canonical(code, self.facts["canonical"]), add_special_tokens=False
        )
        return [*first, *encoding.ids[: self.facts["seq_len"] - 1 - len(first)], ends["last"]]

    def run(self, rows: Sequence[Sequence[int]], width: int = 0) -> dict[str, Any]:
        """Return `logit` (rows,) and `vector` (rows, dimensions), as far as the graph has them.

        Args:
            rows: Token ids of each program.
            width: Pad to so many tokens; at least to the longest.
        """
        width = max(width, *map(len, rows))
        ids = np.full((len(rows), width), self.facts["tokens"]["pad"], dtype=np.int64)
        mask = np.zeros_like(ids)
        for line, row in enumerate(rows):
            ids[line, : len(row)], mask[line, : len(row)] = row, 1
        arrays = self.session.run(self.outputs, {"input_ids": ids, "attention_mask": mask})
        return dict(zip(self.outputs, arrays, strict=True))

    def score(self, code: str) -> dict[str, float]:
        """Return the score (AI against human) and its probability; {} without a classifier.

        Where the score is a sum, `encoder` is the graph's logit, one of its members.
        """
        outputs = self.run([self.ids(code)])
        if "logit" not in outputs:
            return {}
        logit, members = float(outputs["logit"][0]), {}
        if self.stack is not None:
            text, members = canonical(code, self.stack.form), {"encoder": logit}
            logit = float(self.stack.score([text], np.array([logit]))[0])
        point = self.facts.get("operating_point") or {}
        scaled = logit / (point.get("temperature") or 1.0)
        return {"logit": logit, "p_ai": 0.5 * (1.0 + math.tanh(scaled / 2)), **members}

    @property
    def notice(self) -> str:
        """What must be read beside every score: of `detector.json`, and that nothing is called."""
        texts = [self.facts.get("data_note"), self.facts.get("notice"), NO_THRESHOLD]
        return " ".join(text for text in texts if text)


def code_in(place: Path) -> tuple[str, str]:
    """Return the program in a file and "", or "" and why there is none."""
    try:
        if place.is_dir():
            return "", "a folder: name the files in it"
        if not place.is_file():
            return "", "no such file" if not place.exists() else "no plain file"
        if place.stat().st_size >= MAX_BYTES:
            return "", f"too large: {MAX_BYTES / 1e6:g} MB or more"
        data = place.read_bytes()
    except OSError as error:
        return "", error.strerror or type(error).__name__
    if place.suffix.lower() == ".ipynb":
        return "", f"a notebook; save its code first: jupyter nbconvert --to script {place.name}"
    if b"\0" in data:
        return "", "no text of code"
    code = data.decode("utf-8-sig", errors="replace")
    return (code, "") if code.strip() else ("", "empty")


def main(names: list[str]) -> int:
    """Print a line of JSON for each file; return 1 where one has no score."""
    parser = argparse.ArgumentParser(
        prog="python use_detector.py",
        description="Score files of code; a line of JSON for each: logit, p_ai (0 to 1).",
        epilog=f"A score is no evidence of misconduct. {NO_THRESHOLD}",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of code")
    asked = parser.parse_args(names)
    detector = OnnxDetector(Path(__file__).resolve().parent)
    n_faults = 0
    for name in asked.files:
        code, fault = code_in(Path(name))
        n_faults += bool(fault)
        fields = {"error": fault} if fault else {**detector.score(code), "call": None}
        sys.stdout.write(json.dumps({"file": name, **fields, "notice": detector.notice}) + "\n")
    return int(n_faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
