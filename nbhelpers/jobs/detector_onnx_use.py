"""Score files with the `model.onnx` that lies beside this program: python use_detector.py FILE ...

Needs onnxruntime, tokenizers and numpy; neither torch nor nbhelpers. A line of JSON comes for each
file. A score is no evidence of misconduct, and without a threshold that was fixed on code of the
same people it only ranks files.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.data.canonical import canonical


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

    def ids(self, code: str) -> list[int]:
        """Return the token ids of a program, cut to what the model reads."""
        ends = self.facts["tokens"]
        first = [] if ends["first"] is None else [ends["first"]]
        found = self.tokenizer.encode(
            canonical(code, self.facts["canonical"]), add_special_tokens=False
        )
        return [*first, *found.ids[: self.facts["seq_len"] - 1 - len(first)], ends["last"]]

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
        found = self.session.run(self.outputs, {"input_ids": ids, "attention_mask": mask})
        return dict(zip(self.outputs, found, strict=True))

    def score(self, code: str) -> dict[str, float]:
        """Return the logit (AI against human) and its probability; {} without a classifier."""
        found = self.run([self.ids(code)])
        if "logit" not in found:
            return {}
        logit = float(found["logit"][0])
        point = self.facts.get("operating_point") or {}
        scaled = logit / (point.get("temperature") or 1.0)
        return {"logit": logit, "p_ai": 0.5 * (1.0 + math.tanh(scaled / 2))}


def main(names: list[str]) -> int:
    """Print a line of JSON for each file."""
    if not names:
        sys.stderr.write("python use_detector.py FILE ...\n")
        return 2
    detector = OnnxDetector(Path(__file__).resolve().parent)
    for name in names:
        code = Path(name).read_text(encoding="utf-8", errors="replace")
        sys.stdout.write(json.dumps({"file": name, **detector.score(code)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
