"""A small folder in the CodeXGLUE layout, and what changes one line of it."""

from __future__ import annotations

import json
from pathlib import Path

from nbhelpers.data import CloneData, load_clone_data

FUNCTIONS = {
    "1": "int one() { return 1; }",
    "2": "int two() { return 2; }",
    "3": "int  three() {\n  return 3; }",
    "4": "int three() { return 3; }",
    "5": "int five() { return 5; }",
    "6": 'String s() { return "\u00e9</s>"; }',
}
PAIRS = {
    "train": [("1", "2", 1), ("1", "3", 0), ("2", "3", 0)],
    "valid": [("5", "6", 1), ("6", "1", 0)],
    "test": [("4", "5", 1), ("4", "6", 0)],
}


def function_line(id_: object, text: object) -> bytes:
    return json.dumps({"func": text, "idx": id_}).encode() + b"\n"


def pair_lines(rows: list[tuple[str, str, int]]) -> bytes:
    return "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows).encode()


def append(path: Path, line: bytes) -> int:
    """Add a line and return its number."""
    content = path.read_bytes() + line
    path.write_bytes(content)
    return content.count(b"\n")


def load(folder: Path, **arguments: object) -> CloneData:
    return load_clone_data(str(folder), **arguments)


def write_folder(path: Path) -> Path:
    """Write the functions and pairs in the CodeXGLUE layout."""
    lines = [function_line(id_, text) for id_, text in FUNCTIONS.items()]
    (path / "data.jsonl").write_bytes(b"".join(lines))
    for name, rows in PAIRS.items():
        (path / f"{name}.txt").write_bytes(pair_lines(rows))
    return path
