"""Promise: rows of code are read from every form, alike, and what cannot be used is named."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data.detection import load_detection_data, read_rows
from nbhelpers.data.findings import Findings
from nbhelpers.data.languages import language_of, task_id
from nbhelpers.errors import ConfigError, DataError
from tests.detection_on_disk import both_classes, load, program, record, write_rows


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))


def write_as(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The same rows in the format that the ending says."""
    if path.suffix == ".jsonl":
        return write_rows(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as stream:
            dialect = "excel-tab" if path.suffix == ".tsv" else "excel"
            writer = csv.DictWriter(stream, list(rows[0]), dialect=dialect)
            writer.writeheader()
            writer.writerows(rows)
    return path


def test_every_format_gives_the_same_rows_and_splits(tmp_path: Path) -> None:
    rows = both_classes(source="one", author="")
    endings = ("jsonl", "json", "csv", "tsv", "parquet")
    loaded = [load(write_as(tmp_path / f"rows.{ending}", rows)) for ending in endings]
    assert len({data.fingerprint for data in loaded}) == 1
    codes = [{n: {d.rows[at].code for at in d.splits[n]} for n in d.splits} for d in loaded]
    assert all(found == codes[0] for found in codes)
    assert sum(map(len, loaded[0].splits.values())) == 40


def test_columns_and_labels_are_known_by_other_names(tmp_path: Path) -> None:
    rows = [
        {"task_name": f"A {i}", "language_name": "C++", "program": program(i), "target": label}
        for i, label in enumerate(["Human_written", "Ai_generated", "0", 1, "LLM", False])
    ]
    found = read_rows(str(write_rows(tmp_path / "rows.jsonl", rows)))
    assert [row.label for row in found] == ["human", "ai", "human", "ai", "ai", "human"]
    assert {row.language for row in found} == {"cpp"} and found[3].task == "a-3"
    assert [row.place for row in found[:2]] == ["rows.jsonl:1", "rows.jsonl:2"]
    assert found[0].generator == "human" and found[1].generator == ""


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("rosetta:Knight's tour", "rosetta:Knights-tour", True),
        ("rosetta:Bitmap/Write a PPM file", "rosetta:Bitmap-Write-a-PPM-file", True),
        ("Vigenère cipher", "Vigen-re-cipher", True),
        ("Hofstadter-Conway $10,000 sequence", "hofstadter_conway_10_000_sequence", True),
        ("Burrows–Wheeler transform", "Burrows-Wheeler transform", True),
        ("MBPP/97", "mbpp:97", True),
        ("A + B", "A+B", True),
        ("A+B", "A-B", False),
        ("K-means++", "K-means", False),
        ("leetcode:24-game", "rosetta:24 game", False),
        ("day 1.2", "day 12", False),
        ("排序", "查找", False),
        ("x" * 200 + "a", "x" * 200 + "b", False),
        ("<", ">", False),
    ],
)
def test_task_ids_are_equal_where_only_the_spelling_differs(
    one: str, other: str, is_same: bool
) -> None:
    assert (task_id(one) == task_id(other)) is is_same
    assert task_id(task_id(one)) == task_id(one) != ""


def test_languages_have_one_spelling() -> None:
    names = ("Python3", "py", "C#", "c++17", "JS", "Node.js", "golang", "Java 8", "F#", "unknown")
    assert [language_of(name) for name in names] == [
        *("python", "python", "csharp", "cpp", "javascript", "javascript", "go", "java"),
        *("fsharp", ""),
    ]


@pytest.mark.parametrize(
    ("row", "said", "fix"),
    [
        ({"label": "robot"}, "rows.jsonl:2: 'robot' in the column label", "write human or ai"),
        ({"label": ""}, "row has no label: rows.jsonl:2", "in the column label"),
        ({"code": "  \n"}, "there is no code: rows.jsonl:2: white space only", "remove"),
        ({"code": None}, "there is no code: rows.jsonl:2: null", "remove"),
        ({"code": 3}, "rows.jsonl:2: the code is int", "write it as text"),
        ({"code": "a\0b"}, "rows.jsonl:2: the code holds a NUL at character 2", "NUL"),
        ({"code": "\ud800 = 1"}, "rows.jsonl:2: the code holds a lone surrogate", "surrogate"),
        ({"code": "\u200b\u200b"}, "nothing is left in the form text", "remove"),
        ({"code": "x = 1\n" * 350_000}, "2,100,000 characters; at most 1,000,000", "a table"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_left_out(
    tmp_path: Path, row: dict[str, Any], said: str, fix: str
) -> None:
    rows = both_classes()
    rows[1] |= row
    with pytest.raises(DataError) as caught:
        load(tmp_path / "rows.jsonl", rows)
    assert said in caught.value.message and fix in caught.value.fix
    assert 'on_bad_rows="drop"' in caught.value.fix
    data = load(tmp_path / "rows.jsonl", on_bad_rows="drop")
    assert len(data.rows) == 39 and data.problems["rows_dropped"] == {"rows.jsonl": 1}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b'{"kode": "x", "label": 0}\n', "rows.jsonl:1: no column code (or"),
        ("rows.jsonl", b'{"code": "x"}\n', "no column is called label, target"),
        ("rows.jsonl", b'{"code": "x", "label": null}\n', "the column label is empty"),
        ("rows.csv", b"code,label\nx,human\ny\n", "rows.csv:3: 1 cells under 2 columns"),
        ("rows.parquet", b"PAR1 nothing", "is not Parquet"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(tmp_path / name)
    assert said in caught.value.message and caught.value.fix


def write_files(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_two_folders_of_code_are_rows_with_labels(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for i in range(20):
        files[f"human/python/task{i}.py"] = program(i)
        files[f"AI-generated/task{i}.java"] = program(100 + i)
    files |= {"human/notes.md": "no code", "human/.git/x.py": "x = 1", "human/extra.txt": "y = 1"}
    data = load(write_files(tmp_path / "set", files))
    assert {(row.label, row.language) for row in data.rows} == {
        *(("human", "python"), ("ai", "java"), ("human", ""))
    }
    assert len(data.rows) == 41 and data.problems["counts"]["ignored_file"] == 1
    assert {row.task for row in data.rows} == {f"task{i}" for i in range(20)} | {""}
    for name in data.splits:  # the two of a task stay together
        tasks = [data.rows[at].task for at in data.splits[name] if data.rows[at].task]
        assert len(tasks) == 2 * len(set(tasks))


def test_one_class_in_folders_is_told(tmp_path: Path) -> None:
    write_files(tmp_path, {"human/a.py": program(1), "human/b.py": program(2)})
    with pytest.raises(DataError, match="two folders, human and ai"):
        load(tmp_path)
    (tmp_path / "ai").mkdir()
    write_files(tmp_path, {"ai/a.py": program(1), "ai/b.py": program(2)})
    with pytest.raises(DataError, match="every text stands under both labels"):
        load(tmp_path)


def test_code_files_are_read_in_mixed_encodings_and_the_others_told(tmp_path: Path) -> None:
    text = "print('café')\n"
    files = {
        "utf8.py": text.encode(),
        "mark.py": text.encode("utf-8-sig"),
        "utf16.py": text.encode("utf-16"),
        "plain16.py": text.encode("utf-16-le"),
        "latin.py": text.encode("latin-1"),
        "model/sub.go": b"package main\n",
        "bad/empty.py": b"",
        "bad/binary.py": b"\x7fELF\x01\x02\x03\0\0\0" * 50,
        "bad/nul.py": b"x = 1\n" * 50 + b"\0\n",
        "bad/large.py": b"x = 1\n" * 350_000,
        "bad/huge.py": b"x = 1\n" * 700_000,
        "package.json": b'{"name": "x"}',
    }
    write_files(tmp_path, files)
    with pytest.raises(DataError) as caught:
        read_rows(str(tmp_path))
    for said in ("empty.py: empty", "binary.py", "a NUL at byte 301", "huge.py: 4.2 MB"):
        assert said in str(caught.value)
    assert "large.py: 2,100,000 characters; at most 1,000,000 are read" in str(caught.value)
    log = Findings("drop", "here")
    rows = read_rows(str(tmp_path), findings=log)
    by_name = {row.place: row for row in rows}
    assert len(rows) == 6 and log.counts["decoded"] == 3 and log.counts["ignored_file"] == 1
    assert {by_name[n].code for n in files if n.endswith(("6.py", "8.py", "k.py", "n.py"))} == {
        text
    }
    assert by_name["model/sub.go"].label is None and by_name["model/sub.go"].language == "go"
    assert read_rows(str(tmp_path / "utf8.py"))[0].place == "utf8.py"


def test_a_folder_of_row_files_may_hold_a_script(tmp_path: Path) -> None:
    rows = both_classes()
    write_rows(tmp_path / "leetcode.jsonl", rows[:20])
    write_rows(tmp_path / "gcj.jsonl", rows[20:])
    write_files(tmp_path, {"prepare.py": "print(1)"})
    data = load(tmp_path)
    assert {row.source for row in data.rows} == {"leetcode", "gcj"} and len(data.rows) == 40
    write_files(tmp_path / "named", {})
    bare = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    write_rows(tmp_path / "named" / "human.jsonl", bare[::2])
    write_rows(tmp_path / "named" / "ai.jsonl", bare[1::2])
    found = read_rows(str(tmp_path / "named"))
    assert [sum(row.label == x for row in found) for x in ("human", "ai")] == [20, 20]


def test_an_unknown_language_is_kept_and_told_and_languages_choose(tmp_path: Path) -> None:
    rows = both_classes()
    for row in rows[:10]:
        row["language"] = "Befunge 98"
    data = load(tmp_path / "rows.jsonl", rows)
    assert {row.language for row in data.rows} == {"python", "befunge-98"}
    assert data.problems["counts"]["unknown_language"] == 1
    only = load(tmp_path / "rows.jsonl", languages=["Python3"])
    assert len(only.rows) == 30 and only.problems["counts"]["other_language"] == 10
    with pytest.raises(DataError, match="leaves no row") as caught:
        load(tmp_path / "rows.jsonl", languages=["java"])
    assert "python, befunge-98" in caught.value.fix


def test_one_class_and_arguments_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one class only: all 9 usable rows are human"):
        load(tmp_path / "rows.jsonl", [record(i) for i in range(9)])
    load_similar = load(tmp_path / "rows.jsonl", labelled=False)
    assert load_similar.to_dict()["splits"]["train"]["human"] == 7
    bare = [{"code": program(i), "label": i % 2} for i in range(9)]
    with pytest.raises(DataError, match="no column is called task"):
        load(tmp_path / "bare.jsonl", bare, labelled=False)
    bad: list[dict[str, Any]] = [{"split": "random"}, {"valid_share": 0.5}, {"seed": -1}]
    bad += [{"max_train_samples": 0}, {"train_fraction": 0}, {"hold_out": "colour=red"}]
    for options in bad:
        with pytest.raises(ConfigError):
            load(tmp_path / "two.jsonl", both_classes(), **options)
    with pytest.raises(DataError, match="nor a data set"):
        load_detection_data("no such thing")


@pytest.mark.slow
def test_real_data_loads_in_seconds_and_its_given_splits_lose_near_duplicates(
    shared_data: Path,
) -> None:
    path = shared_data / "detector" / "paired.jsonl"
    began = time.process_time()
    data = load(path)
    assert time.process_time() - began < 10
    assert len(data.rows) == 14_540 and data.problems["duplicates"]["near_code"] == 298
    left_out = data.problems["split"]["left_out"]
    assert (left_out["train"]["near_code"], left_out["valid"]["near_code"]) == (19, 3)
    assert not any(n for counts in data.overlap.values() for n in counts.values())
