"""Forty rows of instructions, written in every file format, and what loading them says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbhelpers.data import InstructionData, load_instructions
from nbhelpers.errors import DataError

Rows = list[dict[str, Any]]
SUBJECTS = ("rivers", "birds", "coins", "trains", "letters", "clouds", "spoons", "wheels")
ROWS = [
    {
        "instruction": f"Write {n} lines on {SUBJECTS[n % 8]} of kind {n * n}.",
        "input": f"kind {n}" if n % 3 else "",
        "output": f"def {SUBJECTS[n % 8]}_{n}(x):\n    return x * {n} + {n * n}",
    }
    for n in range(40)
]
FEW = {"valid_samples": 4, "eval_samples": 6}


def load(source: object, **options: Any) -> InstructionData:
    return load_instructions(str(source), **{**FEW, **options})


def told(source: object, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(source, **options)
    return str(caught.value)


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def write_csv(path: Path, rows: Rows, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "a.jsonl": lambda path, rows: write(path, lines(rows)),
    "lines.json": lambda path, rows: write(path, lines(rows)),
    "list.json": lambda path, rows: write(path, json.dumps(rows)),
    "spread.json": lambda path, rows: write(path, json.dumps(rows, indent=1)),
    "data.json": lambda path, rows: write(path, json.dumps({"version": 1, "data": rows}, indent=2)),
    "oneline.json": lambda path, rows: write(path, json.dumps({"data": rows})),
    "a.csv": write_csv,
    "semicolon.csv": lambda path, rows: write_csv(path, rows, ";"),
    "a.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "a.parquet": write_parquet,
    "mark.jsonl": lambda path, rows: write(path, b"\xef\xbb\xbf" + lines(rows).encode()),
    "crlf.jsonl": lambda path, rows: write(path, lines(rows).replace("\n", "\r\n")),
    "UPPER.JSONL": lambda path, rows: write(path, lines(rows)),
}


TURN_KEYS = {"messages": ("role", "content"), "conversations": ("from", "value")}


def as_chat(row: dict[str, Any], column: str, human: str, model: str) -> dict[str, Any]:
    role, content = TURN_KEYS[column]
    turns = [(human, row["instruction"]), (model, row["output"])]
    return {column: [{role: who, content: text} for who, text in turns]}


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "messages": lambda r: as_chat(r, "messages", "user", "assistant"),
    "conversations": lambda r: as_chat(r, "conversations", "human", "gpt"),
    "json text": lambda r: {
        "messages": json.dumps(as_chat(r, "messages", "user", "assistant")["messages"])
    },
    "question and answer": lambda r: {"question": r["instruction"], "answer": r["output"]},
    "capitals": lambda r: {"Instruction": r["instruction"], "Response": r["output"]},
    "text and code": lambda r: {"text": r["instruction"], "code": r["output"]},
    "dolly": lambda r: {
        "instruction": r["instruction"],
        "context": "",
        "response": r["output"],
        "category": "x",
    },
    "others beside": lambda r: {
        "instruction": r["instruction"],
        "output": r["output"],
        "text": "all of it",
        "n": 1,
    },
}


def ids(data: InstructionData, split: str) -> list[str]:
    return [sample.prompt for sample in data.splits[split]]
