"""The process of `nbhelpers.jobs.serve` without a model, and a run folder to go with it.

The logit of a program is what it writes as `score(NUMBER)`, else 0; its vector counts its words.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

from nbhelpers.jobs.serve import Line, serve

SIZE = 32
POINT = {"threshold": 0.9, "threshold_logit": 2.1972245773, "temperature": 1.0}
POINT |= {"target_fpr": 0.01, "abstain": [0.5, 0.9]}


def operations(line: Line) -> dict[str, Any]:
    def load(trained: dict[str, Any], device: str) -> dict[str, Any]:
        return {"device": "cpu"}

    def score(codes: list[str], batch_size: int, vectors: bool) -> dict[str, Any]:
        told: dict[str, Any] = {"logits": [logit(code) for code in codes]}
        told["tokens"] = [len(words(code)) + 2 for code in codes]
        if vectors:
            rows = b"".join(struct.pack(f"<{SIZE}f", *vector(code)) for code in codes)
            told |= {"vectors": base64.b64encode(rows).decode(), "dimensions": SIZE}
        return told

    return {"load": load, "score": score}


def words(code: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", code)


def logit(code: str) -> float:
    found = re.search(r"score\((-?[\d.]+|nan)\)", code)
    return float(found[1]) if found else 0.0


def vector(code: str) -> list[float]:
    row = [0.0] * SIZE
    for word in words(code):
        row[zlib.crc32(word.encode()) % SIZE] += 1.0
    length = sum(value**2 for value in row) ** 0.5 or 1.0
    return [value / length for value in row]


def program(score: float, name: str = "f") -> str:
    """A Python program with a score, distinct by its name, long enough for a call."""
    lines = [f"def {name}(values):", f"    score({score})", f"    {name}_sum = 0"]
    lines += [f"    for {name}_each in values:", f"        {name}_sum += {name}_each * {name}_sum"]
    lines += [f"    return {name}_sum, {name}_each, {name}, values"]
    return "\n".join(lines) + "\n"


def write_run(folder: Path, **changes: Any) -> Path:
    """Write a finished run of the job detector with a best checkpoint; nothing can load it."""
    step = folder / "checkpoints" / "step-00000008"
    step.mkdir(parents=True)
    settings = {"format": 1, "objective": "both", "pooling": "mean", "canonical": "text"}
    settings |= {"seq_len": 100, "projection_size": SIZE} | changes
    (step / "detector.json").write_text(json.dumps(settings))
    (step / "config.json").write_text("{}")
    (step / "model.safetensors").write_bytes(b"weights of " + folder.name.encode())
    (folder / "checkpoints" / "index.json").write_text(json.dumps({"best": step.name}))
    (folder / "run.json").write_text(json.dumps({"run_id": folder.name, "job": "detector"}))
    languages = {name: {"human": 50, "ai": 50} for name in ("python", "java")}
    test = {"n_human": 200, "metrics": {"fpr": 0.015}, "intervals": {"fpr": [0.003, 0.04]}}
    unseen = {"n_human": 100, "metrics": {"fpr": 0.5}, "intervals": {"fpr": [0.4, 0.6]}}
    result = {"run_id": folder.name, "operating_point": POINT, "model": {"name": "tiny"}}
    result["data"] = {"splits": {"train": {"languages": languages}}}
    result["scores"] = {"test": test, "unseen_humans": unseen}
    result["similarity"] = {"pairs": {"threshold": 0.8}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = Line(int(sys.argv[1]), int(sys.argv[2]))
    serve(found, operations(found))
