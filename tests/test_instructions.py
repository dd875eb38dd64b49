"""Promise: instructions load from any form, bad rows are told by place, and held-out rows stay so.

Rows in every file format, forms of columns, splits that do not move, duplicates across splits. The
hub is a server on this machine, asked from a process of its own.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import (
    instruction_files,
    instruction_overlap,
    instruction_rows,
    load_instructions,
)
from nbhelpers.data.instructions import InstructionData
from nbhelpers.errors import ConfigError, DataError
from tests.local_hub import LocalHub

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

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


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    expected = load(write(tmp_path / "x" / "rows.jsonl", lines(ROWS)))
    found = load(WRITERS[name](tmp_path / name, ROWS))
    assert found.fingerprint == expected.fingerprint
    texts = {k: [(s.prompt, s.completion) for s in v] for k, v in found.splits.items()}
    assert texts == {k: [(s.prompt, s.completion) for s in v] for k, v in expected.splits.items()}
    assert {k: len(v) for k, v in texts.items()} == {"train": 30, "valid": 4, "test": 6}


def test_marks_and_line_ends_are_noted(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + lines(ROWS).replace("\n", "\r\n").encode()
    counts = load(write(tmp_path / "a.jsonl", data)).problems["counts"]
    assert counts["byte_order_mark"] == 1 and counts["crlf"] == 40
    rows = [{**row, "output": row["output"].replace("\n", "\r\n")} for row in ROWS]
    found = load(write(tmp_path / "b.jsonl", lines(rows)))
    assert found.problems["counts"]["crlf_text"] == 40
    assert not any("\r" in sample.completion for sample in found.splits["train"])


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


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_columns_is_understood(tmp_path: Path, form: str) -> None:
    plain = [{"instruction": row["instruction"], "output": row["output"]} for row in ROWS]
    expected = load(write(tmp_path / "x" / "a.jsonl", lines(plain)))
    found = load(write(tmp_path / "a.jsonl", lines([FORMS[form](row) for row in ROWS])))
    assert found.template == "alpaca"
    assert {s.prompt: s.completion for part in found.splits.values() for s in part} == {
        s.prompt: s.completion for part in expected.splits.values() for s in part
    }
    has_other_names = form in ("question and answer", "capitals", "text and code", "dolly")
    assert ("columns_read" in found.problems["counts"]) == has_other_names


def test_prompts_of_their_own_are_used_as_they_are(tmp_path: Path) -> None:
    rows = [{"prompt": r["instruction"], "completion": r["output"]} for r in ROWS]
    found = load(write(tmp_path / "a.jsonl", lines(rows)), template="alpaca")
    sample = found.splits["train"][0]
    assert found.template == "none" and sample.prompt in {r["instruction"] for r in ROWS}
    assert found.problems["counts"]["own_prompts"] == 1


def test_the_prompt_column_that_holds_the_answer_is_never_the_prompt(tmp_path: Path) -> None:
    rows = [{**r, "prompt": f"### Instruction: {r['instruction']} {r['output']}"} for r in ROWS]
    found = load(write(tmp_path / "a.jsonl", lines(rows)))
    for part in found.splits.values():
        assert not any(sample.completion in sample.prompt for sample in part)
    own = [{"prompt": r["prompt"], "completion": r["output"]} for r in rows]
    message = told(write(tmp_path / "b.jsonl", lines(own)), on_bad_rows="drop")
    assert "the prompts hold their own answers" in message and "40 of 40 prompts" in message


BAD_LINES = [
    ('{"instruction": "x", ', "broken_json", "Expecting"),
    ("[1, 2]", "not_a_row", "it is list"),
    ('"text"', "not_a_row", "it is str"),
    ('{"instruction": "a", "output": ""}', "empty_answer", "output is empty"),
    ('{"instruction": "a", "output": " \\n"}', "empty_answer", "white space only"),
    ('{"instruction": "", "output": "b"}', "empty_question", "instruction is empty"),
    ('{"instruction": "a", "output": null}', "null_value", "output is null"),
    ('{"instruction": "a", "input": "b"}', "null_value", "no output; the columns are"),
    ('{"instruction": "a", "output": 3}', "not_text", "output is int: 3"),
    ('{"instruction": "a", "output": NaN}', "not_text", "output is float"),
    ('{"instruction": "a", "input": ["b"], "output": "c"}', "not_text", "input is list"),
    ('{"instruction": "a", "output": "\\ud800"}', "bad_text", "lone surrogate at character 1"),
    ('{"instruction": "a", "output": "b\\u0000"}', "bad_text", "NUL"),
    ('{"instruction": "a", \0 "output": "b"}', "nul_byte", "at byte 22"),
    (b'{"instruction": "\xe9", "output": "b"}', "not_utf8", "byte 18 of the line is 0xe9"),
    ("[" * 100_000, "broken_json", ""),
]


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    BAD_LINES,
    ids=[f"{n}-{kind}" for n, (_, kind, _) in enumerate(BAD_LINES)],
)
def test_a_bad_row_stops_with_its_place_or_is_dropped(
    tmp_path: Path, line: str | bytes, kind: str, detail: str
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    path = write(
        tmp_path / "a.jsonl", lines(ROWS[:20]).encode() + raw + b"\n" + lines(ROWS[20:]).encode()
    )
    message = told(path)
    assert f"1 {kind}" in message and "a.jsonl:21" in message and detail in message
    assert 'on_bad_rows="drop"' in message
    found = load(path, on_bad_rows="drop")
    assert found.problems["rows_dropped"] == {"a.jsonl": 1}
    assert found.problems["counts"][kind] == 1
    assert sum(map(len, found.splits.values())) == 40


BAD_TURNS = [
    (None, "null_value", "messages is null"),
    ([], "empty_answer", "no turn of the assistant"),
    ("hello", "bad_turns", "messages is str"),
    ([{"role": "user", "content": "a"}], "empty_answer", "no turn of the assistant"),
    ([{"role": "assistant", "content": "a"}], "empty_question", "no turn of the user"),
    ([{"role": "narrator", "content": "a"}], "bad_turns", "turn 1 of messages: 'narrator'"),
    (["a"], "bad_turns", "turn 1 of messages is str"),
    ([{"role": "user", "content": 3}], "not_text", "turn 1 of messages"),
    (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}],
        "empty_answer",
        "turn 2 of messages is empty",
    ),
]


@pytest.mark.parametrize(("turns", "kind", "detail"), BAD_TURNS)
def test_a_conversation_that_cannot_be_used_is_told(
    tmp_path: Path, turns: Any, kind: str, detail: str
) -> None:
    rows = [FORMS["messages"](row) for row in ROWS] + [{"messages": turns}]
    message = told(write(tmp_path / "a.jsonl", lines(rows)))
    assert f"1 {kind}" in message and "a.jsonl:41" in message and detail in message


def test_turns_after_the_last_answer_are_left_out_and_parts_are_joined(tmp_path: Path) -> None:
    rows = [FORMS["messages"](row) for row in ROWS]
    rows[0]["messages"].append({"role": "user", "content": "Thank you"})
    rows[1]["messages"][0]["content"] = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    found = load(write(tmp_path / "a.jsonl", lines(rows)), template="plain")
    assert found.problems["counts"]["turns_after_answer"] == 1
    prompts = [s.prompt for part in found.splits.values() for s in part]
    assert "# ab\n" in prompts and not any("Thank you" in prompt for prompt in prompts)


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty.jsonl": ("", "0 bytes"),
    "blank.jsonl": ("\n\n", "a file has no rows"),
    "list.json": ("[]", "a file has no rows"),
    "binary.jsonl": (bytes(range(256)) * 50, "is a binary file"),
    "pickle.json": (b"\x80\x04\x95abc", "is a pickle; nothing is unpickled here"),
    "page.json": ("<!DOCTYPE html><p>no</p>", "is a web page"),
    "wide.jsonl": (lines(ROWS).encode("utf-16"), "mark of UTF-16"),
    "wide2.jsonl": (lines(ROWS).encode("utf-16-le"), "looks like UTF-16 without its mark"),
    "packed.jsonl": (b"\x1f\x8b\x08abc", "gunzip"),
    "pointer.parquet": ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "damaged.parquet": (b"PAR1 and no more", "is not Parquet, or damaged"),
    "renamed.csv": (b"PAR1\0\0", "is a Parquet file; name it .parquet"),
    "cut.json": (json.dumps(ROWS, indent=1)[:-40], "is not JSON"),
    "latin.json": ('[{"instruction": "é"}]'.encode("latin-1"), "line 1: byte 0xe9 is not UTF-8"),
    "number.json": ("3", "it is int: 3"),
    "columns.json": ('{"instruction": {"0": "a"}, "output": {"0": "b"}}', "column by column"),
    "object.json": ('{\n"name": 1,\n"rows_of": 2}', "is one JSON object (name, rows_of)"),
    "unknown.jsonl": (lines([{"foo": 1, "bar": 2}] * 30), "the columns are foo, bar. Read are: "),
    "unclear.jsonl": (
        lines([{"question": "a", "answer": "b", "response": "c"}] * 9),
        "response and answer could each be the answer",
    ),
    "both.jsonl": (
        lines([{"instruction": "a", "output": "b", "messages": []}] * 9),
        "could each be the row",
    ),
    "mixed.jsonl": (lines([*ROWS, FORMS["messages"](ROWS[0])]), "chat at mixed.jsonl:41"),
    "twice.csv": ("instruction,output,output\na,b,c\n", "names a column twice: output"),
    "open.csv": ('instruction,output\na,b\n"c,d\ne,f\n', "is not CSV from line 3 on"),
    "header.csv": ("instruction,output\n", "a file has no rows"),
    "first.csv": ("a,b\nc,d\n", "the columns are a, b"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_read_is_told_even_when_rows_may_be_dropped(
    tmp_path: Path, name: str
) -> None:
    data, detail = BAD_FILES[name]
    message = told(write(tmp_path / name, data), on_bad_rows="drop")
    assert detail in message and name in message and "Fix: " in message


def test_csv_rows_are_told_by_the_line_where_they_begin(tmp_path: Path) -> None:
    good = "".join(f'"say\n{n}",x = {n}\n' for n in range(20))
    path = write(
        tmp_path / "a.csv", f"instruction,output\n{good}a,b,c\n\nd\n".encode() + b"\xe9,e\n"
    )
    message = told(path)
    for part in ("a.csv:42: 3 cells under 2 columns", "a.csv:44: 1 cells", "a.csv:45: a cell"):
        assert part in message
    assert sum(map(len, load(path, on_bad_rows="drop").splits.values())) == 20


def test_parquet_rows_that_are_null_or_not_utf8_are_told_by_row(tmp_path: Path) -> None:
    texts = pa.array([*(r["output"].encode() for r in ROWS), b"\xff", None], pa.binary())
    questions = [*(r["instruction"] for r in ROWS), "a", "b"]
    table = pa.table({"instruction": questions, "output": texts.view(pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    message = told(tmp_path / "a.parquet")
    assert "a.parquet:41: byte 1 of a text" in message and "a.parquet:42: output is null" in message


def test_ids_are_the_data_sets_own_or_places_and_stand_once(tmp_path: Path) -> None:
    placed = load(write(tmp_path / "a.jsonl", lines(ROWS)))
    assert {"a.jsonl:1", "a.jsonl:40"} <= {s.id for part in placed.splits.values() for s in part}
    rows = [{**row, "id": n} for n, row in enumerate(ROWS)]
    own = load(write(tmp_path / "b.jsonl", lines(rows)))
    assert {s.id for part in own.splits.values() for s in part} == {str(n) for n in range(40)}
    rows[7]["id"] = 3
    message = told(write(tmp_path / "c.jsonl", lines(rows)))
    assert "c.jsonl:8: id '3' stands at c.jsonl:4 too" in message


def test_what_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS))
    monkeypatch.setattr(instruction_files, "MAX_FILE_BYTES", 1000)
    assert "too large to be held in memory" in told(path)
    monkeypatch.setattr(instruction_files, "MAX_FILE_BYTES", 10**6)
    monkeypatch.setattr(instruction_files, "MAX_JSON_BYTES", 1000)
    assert "write one row a line" in told(write(tmp_path / "a.json", json.dumps(ROWS)))
    monkeypatch.setattr(instruction_rows, "MAX_CHARACTERS", 1000)
    long = [*ROWS, {"instruction": "a", "output": "b" * 1001}]
    assert "output has 1,001 characters" in told(write(tmp_path / "b.jsonl", lines(long)))


def test_files_of_a_folder_are_sorted_into_splits(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.jsonl", lines(ROWS[:15]))
    write(tmp_path / "train-00001-of-00002.jsonl", lines(ROWS[15:30]))
    write_csv(tmp_path / "dev.csv", ROWS[30:34])
    write_parquet(tmp_path / "test.parquet", ROWS[34:])
    write(tmp_path / "notes.json", "{}")
    write(tmp_path / ".hidden" / "train.jsonl", "x")
    found = load(tmp_path)
    assert {k: len(v) for k, v in found.splits.items()} == {"train": 30, "valid": 4, "test": 6}
    assert "notes.json: no split in its name" in " ".join(found.problems["notes"])
    (tmp_path / "train-00001-of-00002.jsonl").unlink()
    assert "train lacks part 00001 of 00002" in told(tmp_path)


@pytest.mark.parametrize(
    ("names", "detail"),
    [
        (["a.jsonl", "b.jsonl"], "no name says train, valid or test: a.jsonl, b.jsonl"),
        (["train.jsonl", "train.csv"], "train stands in train.csv, train.jsonl"),
        (["x/train.jsonl", "y/train.jsonl"], "train stands in x, y"),
        (["test.jsonl", "valid.jsonl"], "no train.*; there are test.jsonl, valid.jsonl"),
        (["readme.md"], "it holds: readme.md"),
        ([], "it holds: nothing"),
    ],
)
def test_a_folder_that_is_not_clear_is_told(tmp_path: Path, names: list[str], detail: str) -> None:
    for name in names:
        write(tmp_path / name, lines(ROWS))
    message = told(tmp_path)
    assert detail in message and "Fix: " in message


def test_forms_that_differ_between_splits_are_told(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", lines(ROWS))
    write(tmp_path / "test.jsonl", lines([{"prompt": "a", "completion": "b"}]))
    assert "instruction in train.jsonl, completion in test.jsonl" in told(tmp_path)


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("./nowhere.jsonl", "There is no file or folder ./nowhere.jsonl"),
        ("nowhere/x.csv", "There is no file or folder"),
        ("smok", "neither `smoke`, nor a file or folder here"),
        ("a b/c", "neither `smoke`"),
        ("", "neither `smoke`"),
        ("x" * 5000, "neither `smoke`"),
    ],
)
def test_a_source_that_is_nothing_is_told(source: str, detail: str) -> None:
    message = told(source)
    assert detail in message and len(message) < 1500


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    message = told(write(tmp_path / "rows.txt", lines(ROWS)))
    assert "its name ends in .txt" in message and ".jsonl" in message


def ids(data: InstructionData, split: str) -> list[str]:
    return [sample.prompt for sample in data.splits[split]]


def test_held_out_rows_depend_on_split_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS))
    first = load(path)
    for options in ({"seed": 9}, {"train_fraction": 0.2}, {"max_train_samples": 3}):
        other = load(path, **options)
        assert ids(other, "test") == ids(first, "test")
        assert ids(other, "valid") == ids(first, "valid")
    moved = load(
        write(tmp_path / "b.jsonl", lines([{"instruction": "New.", "output": "y"}, *ROWS[::-1]]))
    )
    kept = set(ids(moved, "test")) & set(ids(first, "test"))
    assert len(kept) >= 5  # a row more and another order move at most one
    assert ids(load(path, split_seed=1), "test") != ids(first, "test")


def test_train_rows_are_drawn_with_seed_and_smaller_draws_are_part_of_larger(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS))
    every = ids(load(path), "train")
    some = ids(load(path, max_train_samples=10), "train")
    few = ids(load(path, train_fraction=0.2), "train")
    assert len(some) == 10 and len(few) == 6 and set(few) < set(some) < set(every)
    assert some == [prompt for prompt in every if prompt in some]
    assert ids(load(path, max_train_samples=10, seed=1), "train") != some
    assert len(load(path, train_fraction=0.5, max_train_samples=4).splits["train"]) == 4


def test_equal_questions_stay_on_one_side(tmp_path: Path) -> None:
    rows = [{**row, "output": f"{row['output']} # {n}"} for row in ROWS for n in range(3)]
    for seed in range(5):
        found = load(write(tmp_path / "a.jsonl", lines(rows)), split_seed=seed)
        sides = [set(ids(found, name)) for name in ("train", "valid", "test")]
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
        assert len(found.splits["test"]) == 6 and len(found.splits["valid"]) == 3
    assert found.problems["counts"]["short_split"] == 1


def test_splits_of_the_data_itself_are_cut_to_what_was_asked(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", lines(ROWS[:20]))
    write(tmp_path / "test.jsonl", lines(ROWS[20:]))
    found = load(tmp_path)
    assert {k: len(v) for k, v in found.splits.items()} == {"train": 16, "valid": 4, "test": 6}
    assert found.problems["counts"]["split_cut"] == 14
    assert ids(load(tmp_path, seed=5), "test") == ids(found, "test")


@pytest.mark.parametrize(
    ("n", "fix"),
    [(10, "eval_samples=1 and valid_samples=1"), (2, "give more rows")],
)
def test_too_few_rows_are_told_with_what_fits(tmp_path: Path, n: int, fix: str) -> None:
    message = told(write(tmp_path / "a.jsonl", lines(ROWS[:n])))
    assert f"{n} training rows, too few to hold out" in message and fix in message


CHANGED = {**ROWS[0], "output": ROWS[0]["output"] + "  # so"}
LONG = " ".join(f"word{n}" for n in range(40))


def folder_with_duplicates(folder: Path) -> Path:
    near = {"instruction": f"{LONG} end", "output": "x = 1"}
    train = [*ROWS[:10], ROWS[9], {"instruction": f"  {LONG}\n", "output": "x = 1"}]
    write(folder / "train.jsonl", lines(train))
    equal = {**ROWS[3], "output": ROWS[3]["output"].replace("\n", "\n\n")}
    write(folder / "test.jsonl", lines([equal, near, *ROWS[20:24]]))
    same = {**ROWS[5], "output": "something else altogether"}
    write(folder / "valid.jsonl", lines([same, *ROWS[30:33]]))
    return folder


def test_train_rows_like_an_evaluation_row_are_counted_by_kind(tmp_path: Path) -> None:
    found = load(folder_with_duplicates(tmp_path))
    facts = found.problems["duplicates"]
    assert facts["train_rows_like"] == {
        "test": {"equal": 1, "same_question": 0, "near": 1},
        "valid": {"equal": 0, "same_question": 1, "near": 0},
    }
    assert facts["within_train"]["equal"] == 1 and facts["removed"] == 0
    assert {"row": "train.jsonl:4", "like": "test.jsonl:1", "kind": "equal", "similarity": 1.0} in (
        facts["examples"]
    )
    assert len(found.splits["train"]) == 12


def test_many_train_rows_are_compared_in_blocks_with_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(folder_with_duplicates(tmp_path)).problems["duplicates"]
    monkeypatch.setattr(instruction_overlap, "ROWS_AT_ONCE", 5)
    blocks = load(tmp_path).problems["duplicates"]
    assert blocks["within_train"] == {"equal": 1, "near": None}
    assert {**blocks, "within_train": whole["within_train"]} == whole


def test_they_are_removed_on_request_before_train_rows_are_drawn(tmp_path: Path) -> None:
    found = load(folder_with_duplicates(tmp_path), remove_duplicates=True, max_train_samples=9)
    assert found.problems["duplicates"]["removed"] == 3
    assert found.problems["counts"]["removed_rows"] == 3
    held = {s.prompt for name in ("test", "valid") for s in found.splits[name]}
    assert len(found.splits["train"]) == 9 and not held & set(ids(found, "train"))


def test_nothing_is_left_where_train_is_the_test(tmp_path: Path) -> None:
    for name in ("train", "test", "valid"):
        write(tmp_path / f"{name}.jsonl", lines(ROWS[:4]))
    assert "Every train row equals" in told(tmp_path, remove_duplicates=True)


def test_mbpp_in_one_file_keeps_its_own_splits(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"Write a function for number {n}.",
            "code": f"def f{n}(x):\n    return x + {n}",
            "task_id": n,
            "test_list": [f"assert f{n}(1) == {n + 1}", f"assert f{n}(0) == {n}"],
        }
        for n in (1, 10, 11, 12, 510, 511, 600, 601, 602, 974)
    ]
    found = load(write(tmp_path / "mbpp.jsonl", lines(rows)), template="plain")
    assert {k: [s.id for s in v] for k, v in found.splits.items()} == {
        "train": ["601", "602", "974"],
        "valid": ["511", "600"],
        "test": ["11", "12", "510"],
    }
    assert found.problems["counts"]["official_splits"] == 10
    prompt = found.splits["test"][0].prompt
    assert "# Name it `f11`." in prompt and "f11(1) == 12" in prompt and "f11(0)" not in prompt


def test_the_fingerprint_follows_the_rows_and_nothing_else(tmp_path: Path) -> None:
    first = load(write(tmp_path / "a.jsonl", lines(ROWS)))
    for options in ({"seed": 3}, {"split_seed": 3}, {"template": "plain"}, {"train_fraction": 0.3}):
        assert load(tmp_path / "a.jsonl", **options).fingerprint == first.fingerprint
    turned = load(
        write(tmp_path / "b.jsonl", lines([{**r, "id": str(n)} for n, r in enumerate(ROWS[::-1])]))
    )
    assert turned.fingerprint == first.fingerprint
    other = load(write(tmp_path / "c.jsonl", lines([*ROWS[1:], CHANGED])))
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_bad_rows": "skip"}, "on_bad_rows"),
        ({"train_fraction": 0}, "train_fraction"),
        ({"train_fraction": True}, "train_fraction"),
        ({"max_train_samples": 0}, "max_train_samples"),
        ({"valid_samples": 0}, "valid_samples"),
        ({"eval_samples": 1.5}, "eval_samples"),
        ({"template": "alpacca"}, "template"),
        ({"template": "chat"}, "template"),
    ],
)
def test_an_argument_out_of_range_is_told(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(write(tmp_path / "a.jsonl", lines(ROWS)), **options)


def test_the_bundled_sample_loads_clean_with_its_note() -> None:
    found = load_instructions("smoke", valid_samples=10_000, eval_samples=10_000)
    assert all(found.splits[name] for name in ("train", "valid", "test")) and found.note
    assert found.problems["rows_dropped"] == {} and not found.problems["examples"]
    assert found.source == "smoke" and found.revision is None and found.licence == "Apache-2.0"
    assert json.loads(json.dumps(found.problems)) == found.problems
    page = found._repr_html_()
    assert "template alpaca" in repr(found) and "<td>train</td>" in page


PROBE = """
import json, sys, time
from nbhelpers.data import load_instructions
from nbhelpers.data.coding_tasks import load_tasks
from nbhelpers.errors import DataError
for case in json.loads(sys.argv[1]):
    began = time.perf_counter()
    try:
        if "mbpp_data" in case:
            tasks = load_tasks("mbpp", **case)
            found = {"ids": [task.id for task in tasks], "source": tasks[0].source}
        else:
            data = load_instructions(**case)
            found = {name: getattr(data, name) for name in ("revision", "fingerprint", "licence")}
            found |= {"counts": data.problems["counts"], "test": data.splits["test"]}
    except DataError as error:
        found = {"error": str(error)}
    print(json.dumps(found | {"elapsed_s": time.perf_counter() - began}))
"""


def probe(environment: dict[str, str], *cases: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(cases)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_hub_sets(root: Path) -> None:
    """The columns and file names of the two data sets that are the defaults."""
    rows = [{**r, "prompt": f"Below… {r['instruction']} {r['output']}"} for r in ROWS]
    write_parquet(root / "code" / "data" / "train-00000-of-00001-8b6e212f3e1ece96.parquet", rows)
    write(root / "code" / "README.md", "card")
    problem = {"code": "def f(x):\n    return x", "test_list": ["assert f(1) == 1"]}
    for split, ids_ in (
        ("train", (601,)),
        ("validation", (511,)),
        ("test", (11, 12)),
        ("prompt", (1,)),
    ):
        for folder, question in (("full", "text"), ("sanitized", "prompt")):
            some = [{question: f"Problem {n}", "task_id": n, **problem} for n in ids_]
            if folder == "sanitized":
                some = [{**row, "test_imports": ["import math"]} for row in some[:1]]
            write_parquet(root / "mbpp" / folder / f"{split}-00000-of-00001.parquet", some)


@pytest.mark.slow
def test_the_hubs_data_sets_load_by_commit_and_from_the_cache(tmp_path: Path) -> None:
    write_hub_sets(tmp_path)
    code, mbpp = "iamtarun/python_code_instructions_18k_alpaca", "google-research-datasets/mbpp"
    few = {"source": code, "valid_samples": 4, "eval_samples": 6}
    cases = [
        few,
        {**few, "revision": "nope"},
        {"source": "own/none"},
        {"mbpp_data": mbpp},
        {"mbpp_data": f"{mbpp}/sanitized"},
        {"source": mbpp, "valid_samples": 1, "eval_samples": 2},
        {"source": "own/text"},
    ]
    write(tmp_path / "text" / "README.md", "nothing")
    with LocalHub() as hub:
        repo = hub.add(code, tmp_path / "code")
        hub.add(mbpp, tmp_path / "mbpp")
        hub.add("own/text", tmp_path / "text")
        online = probe(hub.environment(tmp_path / "cache"), *cases)
        fetched = [path for method, path in hub.requests if method == "GET" and "resolve" in path]
    data, nope, none, full, sanitized, rows, text = online
    (cached,) = probe(hub.environment(tmp_path / "cache", offline=True), few)
    local = load(tmp_path / "code")
    assert data["revision"] == repo.commit and data["licence"] == "not stated"
    assert data["fingerprint"] == cached["fingerprint"] == local.fingerprint
    assert data["test"] == cached["test"] and cached["counts"]["from_cache"] == 1
    assert not any("Below…" in prompt for _, prompt, _ in data["test"])
    assert "has no revision 'nope'" in nope["error"] and "does not exist" in none["error"]
    assert full["ids"] == ["MBPP/11", "MBPP/12"] and sanitized["ids"] == ["MBPP/11"]
    assert "mbpp/full at" in full["source"] and "test split" in full["source"]
    assert [len(rows["test"]), rows["licence"]] == [2, "CC-BY-4.0"]
    assert "no files of rows" in text["error"] and "README.md" in text["error"]
    assert not any("README" in path for path in fetched)
    assert all(found["elapsed_s"] < 10 for found in online)


@pytest.mark.slow
def test_eighteen_thousand_real_rows_take_seconds(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "instructions" / "code_alpaca_python.jsonl"
    if not source.is_file():
        pytest.skip(f"{source} is not there")
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    many = [
        {**rows[n % len(rows)], "input": f"{rows[n % len(rows)]['input']} case {n}"}
        for n in range(18_612)
    ]
    path = write(tmp_path / "a.jsonl", lines(many))
    began = time.process_time()
    found = load_instructions(str(path), valid_samples=200, eval_samples=200)
    assert time.process_time() - began < 15
    like = found.problems["duplicates"]["train_rows_like"]["test"]
    assert like["near"] > 1000 and found.problems["duplicates"]["within_train"]["near"] > 10_000
