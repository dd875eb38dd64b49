"""The same few pairs in the hub's Parquet form and in the CodeXGLUE layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = {i: f"int f{i}(int x) {{ return x + {i}; }}" for i in range(1, 9)}
SPLITS = {
    "train": [(1, 2, True), (1, 3, False), (2, 3, False), (3, 4, True)],
    "valid": [(5, 6, True), (6, 1, False)],
    "test": [(7, 8, True), (8, 5, False)],
}
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("id1", pa.int32()),
        ("id2", pa.int32()),
        ("func1", pa.string()),
        ("func2", pa.string()),
        ("label", pa.bool_()),
    ]
)

Row = dict[str, Any]


def rows_of(pairs: list[tuple[int, int, bool]]) -> list[Row]:
    return [
        {"id": n, "id1": a, "id2": b, "func1": TEXTS[a], "func2": TEXTS[b], "label": label}
        for n, (a, b, label) in enumerate(pairs)
    ]


def write(path: Path, rows: list[Row], schema: pa.Schema = SCHEMA) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_hub_form(folder: Path) -> Path:
    """Files named as on the hub's main branch, the train split in two parts."""
    rows = rows_of(SPLITS["train"])
    write(folder / "data/train-00000-of-00002.parquet", rows[:3])
    write(folder / "data/train-00001-of-00002.parquet", rows[3:])
    write(folder / "data/validation-00000-of-00001.parquet", rows_of(SPLITS["valid"]))
    write(folder / "data/test-00000-of-00001.parquet", rows_of(SPLITS["test"]))
    (folder / "README.md").write_text("card")
    return folder


def write_folder_form(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"func": text, "idx": str(id_)}) + "\n" for id_, text in TEXTS.items()]
    (folder / "data.jsonl").write_text("".join(reversed(lines)))
    for name, pairs in SPLITS.items():
        text = "".join(f"{a}\t{b}\t{int(label)}\n" for a, b, label in pairs)
        (folder / f"{name}.txt").write_text(text)
    return folder
