"""Small detection data in files: programs that differ, rows around them, and their loading."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from nbhelpers.data.detection import DetectionData, load_detection_data

Record = dict[str, Any]


def program(number: int, variant: int = 0) -> str:
    """A program of its own; a variant differs in one name, so that the two are near-duplicates."""
    draw = random.Random(number)
    names = [f"{draw.choice('abcdefgh')}{draw.randrange(10**6)}" for _ in range(12)]
    lines = [f"def f{number}({names[0]}):"]
    lines += [f"    {a} = {b} + {draw.randrange(10**6)}" for a, b in pairwise(names)]
    lines += [f"    return {names[-1]}" + f"  # v{variant}" * bool(variant)]
    return "\n".join(lines) + "\n"


def record(number: int, label: str | None = "human", **more: Any) -> Record:
    """A row of its own task, unless told otherwise."""
    base = {"code": program(number), "language": "python", "label": label, "task": f"t{number}"}
    return {**base, **more}


def both_classes(n: int = 40, **more: Any) -> list[Record]:
    """Human and AI rows in turn, two of each task."""
    labels = ("human", "ai")
    return [record(i, labels[i % 2], task=f"Task {i // 2}", **more) for i in range(n)]


def write_rows(path: Path, rows: list[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(path: Path, rows: list[Record] | None = None, **options: Any) -> DetectionData:
    """Load a file, after writing it where rows are given."""
    if rows is not None:
        write_rows(path, rows)
    return load_detection_data(str(path), **options)


def places(data: DetectionData, split: str) -> list[int]:
    """Lines of the file whose rows are in a split."""
    return sorted(int(data.rows[at].place.rpartition(":")[2]) for at in data.splits[split])
