"""Promise: clone data is read whole or not at all, as CodeXGLUE's folder or the hub's Parquet.

Every row that cannot be used is named by file and number, with all others, in one report. What is
known of the pairs is counted: texts that train has seen, what splits share, rows that repeat.
"""

from __future__ import annotations

import json
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.findings import EXAMPLES_SHOWN, KINDS
from nbhelpers.data.pairs import ClonePairs, fingerprint, subsample
from nbhelpers.errors import ConfigError, DataError
from tests import parquet_folder
from tests.clone_folder import (
    FUNCTIONS,
    PAIRS,
    append,
    function_line,
    load,
    pair_lines,
    write_folder,
)
from tests.parquet_folder import SCHEMA, SPLITS, TEXTS, rows_of, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


def report_of(folder: Path, **arguments: object) -> DataError:
    with pytest.raises(DataError) as caught:
        load(folder, **arguments)
    return caught.value


def test_a_good_folder_keeps_file_order_ids_and_texts(folder: Path) -> None:
    data = load(folder)
    assert data.ids == list(FUNCTIONS) and data.functions == list(FUNCTIONS.values())
    for name, rows in PAIRS.items():
        pairs = data.splits[name]
        got = zip(pairs.left, pairs.right, pairs.label, strict=True)
        assert [(data.ids[a], data.ids[b], int(c)) for a, b, c in got] == rows
        assert (pairs.left.dtype, pairs.right.dtype, pairs.label.dtype) == (
            np.int32,
            np.int32,
            np.int8,
        )
    assert not data.problems.n_problems and data.problems.n_dropped == 0


BAD_FUNCTIONS = [
    ("broken_json", b"{'func': 'x', 'idx': '9'}\n"),
    ("broken_json", b'\xef\xbb\xbf{"func": "x", "idx": "9"}\n'),
    ("not_an_object", b'["x", "9"]\n'),
    ("not_an_object", b"null\n"),
    ("missing_key", b'{"func": "x"}\n'),
    ("missing_key", b'{"idx": "9"}\n'),
    ("missing_key", b"{}\n"),
    ("wrong_type", b'{"func": null, "idx": "9"}\n'),
    ("wrong_type", b'{"func": ["x"], "idx": "9"}\n'),
    ("wrong_type", b'{"func": "x", "idx": true}\n'),
    ("wrong_type", b'{"func": "x", "idx": 9.0}\n'),
    ("wrong_type", b'{"func": "x", "idx": null}\n'),
    ("bad_id", b'{"func": "x", "idx": ""}\n'),
    ("bad_id", b'{"func": "x", "idx": "9\\t9"}\n'),
    ("bad_id", b'{"func": "x", "idx": " 9"}\n'),
    ("bad_id", b'{"func": "x", "idx": "9\\ud800"}\n'),
    ("empty_function", b'{"func": "", "idx": "9"}\n'),
    ("empty_function", b'{"func": " \\n\\t", "idx": "9"}\n'),
    ("bad_text", b'{"func": "x\\ud800", "idx": "9"}\n'),
    ("bad_text", b'{"func": "x\\u0000", "idx": "9"}\n'),
    ("not_utf8", b'{"func": "caf\xe9", "idx": "9"}\n'),
    ("nul_byte", b'{"func": "x\0", "idx": "9"}\n'),
]


BAD_PAIRS = [
    ("bad_label", b"1\t2\t2\n"),
    ("bad_label", b"1\t2\t1 \n"),
    ("bad_label", b"1\t2\t1.0\n"),
    ("bad_label", b"1\t2\tTrue\n"),
    ("bad_label", b"1\t2\t\n"),
    ("bad_label", b"1\t2\t-1\n"),
    ("bad_label", "1\t2\t\u0661\n".encode()),  # a digit one, but not ours
    ("bad_label", b"id1\tid2\tlabel\n"),
    ("wrong_columns", b"1 2 0\n"),
    ("wrong_columns", b"1,2,0\n"),
    ("wrong_columns", b"1\t2\n"),  # a list without labels
    ("wrong_columns", b"1\t2\t0\t0\n"),
    ("wrong_columns", b"1\t5\t0\r2\t5\t0\r\n"),
    ("unknown_id", b"1\t99\t0\n"),
    ("unknown_id", b" 1\t2\t0\n"),
    ("unknown_id", b'"1"\t2\t0\n'),
    ("unknown_id", b"01\t2\t0\n"),
    ("unknown_id", b"\t2\t0\n"),
    ("nul_byte", b"1\x00\t2\t0\n"),
    ("not_utf8", b"\xff1\t2\t0\n"),
    ("self_pair", b"5\t5\t1\n"),
]


BAD_LINES = [
    *(("data.jsonl", *bad) for bad in BAD_FUNCTIONS),
    *(("train.txt", *bad) for bad in BAD_PAIRS),
]


@pytest.mark.parametrize(("name", "kind", "line"), BAD_LINES)
def test_a_bad_line_is_named_and_can_be_dropped(
    folder: Path, name: str, kind: str, line: bytes
) -> None:
    clean = load(folder)
    number = append(folder / name, line)
    error = report_of(folder)
    assert KINDS[kind][1] in error.message and f"{name}:{number}" in str(error)
    assert KINDS[kind][2] in error.fix and "on_bad_rows" in error.fix
    dropped = load(folder, on_bad_rows="drop")
    assert dropped.ids == clean.ids and dropped.fingerprint == clean.fingerprint
    assert dropped.problems.rows_dropped == {name: 1}


def test_the_same_pair_with_both_labels_loses_both_rows_in_either_order(folder: Path) -> None:
    append(folder / "train.txt", b"2\t1\t0\n")
    error = report_of(folder)
    assert "2 x the same pair stands with both labels" in error.message
    assert "train.txt:1:" in error.details and "train.txt:4:" in error.details
    dropped = load(folder, on_bad_rows="drop")
    assert len(dropped.splits["train"]) == 2 and dropped.problems.rows_dropped == {"train.txt": 2}


def test_an_id_with_two_texts_is_withdrawn_with_its_pairs(folder: Path) -> None:
    append(folder / "data.jsonl", function_line("2", "another text"))
    error = report_of(folder)
    assert f"2 x {KINDS['clashing_id'][1]}; 2 x {KINDS['bad_function'][1]}" in error.message
    assert "data.jsonl:2:" in error.details and "data.jsonl:7:" in error.details
    dropped = load(folder, on_bad_rows="drop")
    assert "2" not in dropped.ids and len(dropped.splits["train"]) == 1
    assert dropped.problems.rows_dropped == {"data.jsonl": 2, "train.txt": 2}
    assert [dropped.ids[i] for i in dropped.splits["test"].left] == ["4", "4"]


def test_pairs_of_a_bad_function_are_told_apart_from_unknown_ids(folder: Path) -> None:
    append(folder / "data.jsonl", function_line("7", " "))
    append(folder / "data.jsonl", function_line("8", 8))
    append(folder / "train.txt", b"1\t7\t0\n1\t8\t0\n1\t9\t0\n")
    wanted = f"1 x {KINDS['unknown_id'][1]}; 2 x {KINDS['bad_function'][1]}"
    assert wanted in report_of(folder).message


def test_an_id_whose_first_text_was_empty_is_not_taken_from_a_later_line(folder: Path) -> None:
    append(folder / "data.jsonl", function_line("7", ""))
    append(folder / "data.jsonl", function_line("7", "int seven() { return 7; }"))
    assert "1 x function is empty; 1 x one id, different texts" in report_of(folder).message
    assert "7" not in load(folder, on_bad_rows="drop").ids


def test_int_ids_are_read_as_text_with_a_note_not_dropped(folder: Path) -> None:
    before = load(folder)
    lines = [function_line(int(id_), text) for id_, text in FUNCTIONS.items()]
    (folder / "data.jsonl").write_bytes(b"".join(lines))
    data = load(folder)
    assert data.ids == list(FUNCTIONS) and data.problems.counts["int_id"] == len(FUNCTIONS)
    assert data.fingerprint == before.fingerprint
    append(folder / "data.jsonl", function_line("1", "an int and a text id that meet"))
    assert KINDS["clashing_id"][1] in report_of(folder).message


def variant(folder: Path, change: str) -> None:
    for path in folder.iterdir():
        content = path.read_bytes()
        if "crlf" in change:
            content = content.replace(b"\n", b"\r\n")
        if "bom" in change:
            content = b"\xef\xbb\xbf" + content
        if "blank" in change:
            content = b"\n" + content.replace(b"\n", b"\n \n", 1) + b"\r\n\n"
        if "no final newline" in change:
            content = content.rstrip(b"\r\n")
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        ("crlf", {"crlf": 13}),
        ("bom", {"byte_order_mark": 4}),
        ("bom crlf", {"byte_order_mark": 4, "crlf": 13}),
        ("blank", {"blank_line": 16}),
        ("no final newline", {}),
        ("crlf, no final newline", {"crlf": 9}),
    ],
)
def test_line_ends_marks_and_blank_lines_change_neither_data_nor_fingerprint(
    folder: Path, change: str, notes: dict[str, int]
) -> None:
    before = load(folder)
    variant(folder, change)
    after = load(folder)
    assert after.functions == before.functions and after.fingerprint == before.fingerprint
    for name, pairs in before.splits.items():
        assert after.splits[name].label.tolist() == pairs.label.tolist()
    known = {
        kind: n for kind, n in after.problems.counts.items() if kind not in before.problems.counts
    }
    assert known == notes and not after.problems.n_problems


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\xfe\xff" + "1\t2\t0\n".encode("utf-16-be"), "wrong_encoding"),
        (b"\x1f\x8b\x08\x00", "unreadable_file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "unreadable_file"),
        (b"\n\n", "empty_file"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "valid.txt"])
def test_a_file_that_is_something_else_stops_under_both_policies(
    folder: Path, start: bytes, kind: str, name: str
) -> None:
    (folder / name).write_bytes(start)
    for policy in ("stop", "drop"):
        error = report_of(folder, on_bad_rows=policy)
        assert KINDS[kind][1] in error.message and name in error.message
        assert KINDS["unknown_id"][1] not in str(error)


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("valid.txt", "dev.txt", "did you mean dev.txt? Rename it to valid.txt"),
        ("valid.txt", "val.txt", "did you mean val.txt? Rename it to valid.txt"),
        ("test.txt", "test1.txt", "did you mean test1.txt? Rename it to test.txt"),
        ("train.txt", "Train.txt", "did you mean Train.txt? Rename it to train.txt"),
        ("data.jsonl", "functions.jsonl", "Rename it to data.jsonl"),
        ("data.jsonl", "data.zip", "unpack data.zip, or name it as the data"),
    ],
)
def test_a_missing_file_is_met_with_what_is_there(
    folder: Path, name: str, there: str, said: str
) -> None:
    (folder / name).rename(folder / there)
    error = report_of(folder)
    assert said in str(error) and "the folder holds" in str(error) and there in str(error)


def test_all_missing_files_and_bad_lines_stand_in_one_report(folder: Path) -> None:
    (folder / "valid.txt").unlink()
    append(folder / "data.jsonl", b"broken\n")
    append(folder / "train.txt", b"1\t99\t0\n")
    kinds = ("missing_file", "broken_json", "unknown_id")
    wanted = "; ".join(f"1 x {KINDS[kind][1]}" for kind in kinds)
    assert wanted in report_of(folder).message


def test_a_folder_above_the_data_reads_the_folder_that_has_them(folder: Path) -> None:
    before = load(folder).fingerprint
    inner = folder / "dataset"
    inner.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(inner / path.name)
    assert load(folder).fingerprint == before


def test_an_evaluation_only_folder_loads_when_only_test_is_asked(folder: Path) -> None:
    (folder / "train.txt").unlink()
    (folder / "valid.txt").unlink()
    (folder / "test_unseen.txt").write_bytes(pair_lines([("1", "6", 0)]))
    assert "2 x a file that is needed is not there" in report_of(folder).message
    data = load(folder, require=("test",))
    assert set(data.splits) == {"test", "test_unseen"}
    with pytest.raises(DataError, match="no train split"):
        data.seen_members("test")


def test_dropping_every_row_of_a_split_is_an_error(folder: Path) -> None:
    (folder / "valid.txt").write_bytes(b"1\t99\t0\n")
    error = report_of(folder, on_bad_rows="drop")
    assert KINDS["no_rows_left"][1] in error.message or KINDS["empty_file"][1] in error.message


def test_a_flood_of_one_kind_does_not_hide_a_single_finding_of_another(folder: Path) -> None:
    append(folder / "train.txt", b"1\t99\t0\n" * 5000 + b"1\t2\tyes\n")
    error = report_of(folder)
    assert (
        "5,000 x id is not among the functions" in error.message and "label 'yes'" in error.details
    )
    assert error.details.count("train.txt:") <= EXAMPLES_SHOWN + 1 and len(error.details) < 5000


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "x.jsonl"])
def test_a_path_with_nothing_there_fails_at_once_and_is_named(source: str) -> None:
    began = time.process_time()
    with pytest.raises(DataError, match="There is no file or folder") as caught:
        load_clone_data(source)
    assert source in str(caught.value) and time.process_time() - began < 1


def test_a_file_in_place_of_a_folder_and_a_bare_word_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="is a file, not a folder"):
        load_clone_data(str(folder / "train.txt"))
    with pytest.raises(DataError, match="owner/name"):
        load_clone_data("smoek")


def test_a_revision_of_a_folder_is_noted_not_swallowed(folder: Path) -> None:
    data = load(folder, revision="main")
    assert data.problems.counts["ignored_revision"] == 1 and data.revision is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"[" + b",".join([function_line("1", "x").strip()] * 3) + b"]\n", "not_an_object"),
        (b'{"func": "x\0", "idx": "1"}\n', "nul_byte"),
        (b"null\n" * 3, "not_an_object"),
    ],
)
def test_functions_that_are_all_bad_leave_nothing_to_drop_to(
    folder: Path, content: bytes, kind: str
) -> None:
    (folder / "data.jsonl").write_bytes(content)
    for policy in ("stop", "drop"):
        assert KINDS[kind][1] in report_of(folder, on_bad_rows=policy).message
    assert KINDS["no_rows_left"][1] in report_of(folder, on_bad_rows="drop").message


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": "x"},
        {"max_train_samples": 1.5},
        {"max_train_samples": 0},
        {"train_fraction": "x"},
        {"train_fraction": 0},
        {"train_fraction": 1.1},
        {"on_bad_rows": "skip"},
    ],
    ids=str,
)
def test_an_argument_of_another_kind_or_out_of_range_is_refused(
    folder: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        load(folder, **arguments)


# What is known of the pairs


def test_texts_that_differ_in_white_space_share_a_group_and_count_as_seen(folder: Path) -> None:
    data = load(folder)
    assert data.text_group.tolist() == [0, 1, 2, 2, 3, 4] and data.n_distinct_texts == 5
    assert data.seen_members("test").tolist() == [1, 1]  # 4 is a twin of 3; 5 and 6 are unseen
    assert data.seen_members("valid").tolist() == [0, 1]
    assert data.seen_members("train").tolist() == [2, 2, 2]
    assert data.seen_members("test").dtype == np.int8


def test_seen_follows_the_train_pairs_that_are_used(folder: Path) -> None:
    data = load(folder, max_train_samples=1, seed=3)
    used = {data.functions[i].split()[1] for i in data.splits["train"].functions()}
    assert len(data.splits["train"]) == 1
    assert data.seen_members("test").tolist() == [int("three()" in used)] * 2


def test_the_fingerprint_sees_a_changed_text_and_a_changed_label(folder: Path) -> None:
    before = load(folder).fingerprint
    content = (folder / "data.jsonl").read_text()
    (folder / "data.jsonl").write_text(content.replace("int one()", "int  one()"))
    changed_text = load(folder).fingerprint
    (folder / "data.jsonl").write_text(content)
    (folder / "train.txt").write_bytes(pair_lines([("1", "2", 0), *PAIRS["train"][1:]]))
    assert len({before, changed_text, load(folder).fingerprint}) == 3


def test_the_fingerprint_ignores_ids_row_order_and_functions_without_pairs() -> None:
    def pairs(rows: list[tuple[int, int, int]]) -> dict[str, ClonePairs]:
        left, right, label = (np.array(column) for column in zip(*rows, strict=True))
        return {"test": ClonePairs(left=left, right=right, label=label.astype(np.int8))}

    one = fingerprint(["a", "b", "c"], pairs([(0, 1, 1), (0, 2, 0)]))
    assert one == fingerprint(["unused", "c", "b", "a"], pairs([(3, 1, 0), (3, 2, 1)]))
    assert one != fingerprint(["a", "b", "c"], pairs([(1, 0, 1), (0, 2, 0)]))


def test_repeated_and_mirrored_rows_and_functions_are_notes(folder: Path) -> None:
    append(folder / "train.txt", b"1\t2\t1\n2\t1\t1\n1\t2\t1\n")
    append(folder / "data.jsonl", function_line("1", FUNCTIONS["1"]))
    counts = load(folder).problems.counts
    assert (counts["duplicate_rows"], counts["mirrored_rows"], counts["repeated_function"]) == (
        2,
        1,
        1,
    )


def test_facts_tell_what_the_splits_share(folder: Path) -> None:
    append(folder / "train.txt", b"3\t4\t0\n2\t4\t1\n")
    append(folder / "test.txt", b"4\t2\t1\n")
    facts = load(folder).facts
    assert facts["distinct_texts"] == 5 and facts["identical_texts_with_label_0"]["train"] == 1
    assert (
        facts["text_pairs_with_both_labels"]["train"] == 1
    )  # 2-3 is 0, 2-4 is 1, 3 and 4 are twins
    assert facts["ids_in_both"]["train/test"] == 2 and facts["pairs_in_both"]["train/test"] == 1
    assert facts["share_of_clones"]["valid"] == 0.5


def test_a_subsample_is_seeded_ordered_and_takes_the_fraction_first() -> None:
    n = 1000
    column = np.arange(n, dtype=np.int32)
    pairs = ClonePairs(left=column, right=column, label=np.zeros(n, dtype=np.int8))
    drawn = subsample(pairs, fraction=0.29, seed=7)
    assert len(drawn) == 290 and (np.diff(drawn.left) > 0).all()
    assert drawn.left.tolist() == subsample(pairs, fraction=0.29, seed=7).left.tolist()
    assert drawn.left.tolist() != subsample(pairs, fraction=0.29, seed=8).left.tolist()
    both = subsample(pairs, fraction=0.29, max_samples=100, seed=7)
    assert len(both) == 100 and set(both.left) <= set(drawn.left)
    assert len(subsample(pairs, fraction=0.5, max_samples=900)) == 500
    hundred = pairs.take(column[:100])
    assert len(subsample(hundred, fraction=0.29)) == 29  # 0.29 * 100 is 28.999999999999996
    assert len(subsample(pairs, fraction=0.0001)) == 1 and subsample(pairs) is pairs


def test_subsampling_touches_train_only_and_not_the_fingerprint(folder: Path) -> None:
    data = load(folder, train_fraction=0.5)
    assert [len(pairs) for pairs in data.splits.values()] == [1, 2, 2]
    assert data.fingerprint == load(folder).fingerprint


def test_reports_are_json_and_escape_what_they_quote(folder: Path) -> None:
    append(folder / "train.txt", b"1\t<i>\t0\n")
    data = load(folder, on_bad_rows="drop")
    assert json.loads(json.dumps(data.to_dict()))["splits"]["train"] == {
        "pairs": 3, "clones": 1, "functions": 3,
    }  # fmt: skip
    page = data.problems._repr_html_() + data._repr_html_()
    assert "<i>" not in page and "&lt;i&gt;" in page
    assert "\n" not in repr(data) + repr(data.problems)


def test_the_bundled_sample_loads_under_the_strict_policy() -> None:
    data = load_clone_data("smoke")
    assert set(data.splits) == {"train", "valid", "test", "test_unseen"}
    assert data.note and data.licence and not data.problems.n_problems


@pytest.fixture
def real_folder() -> Path:
    root = os.environ.get("NBHELPERS_DATA")
    path = Path(root or "") / "bigclonebench_10pct"
    if not root or not path.is_dir():
        pytest.skip("NBHELPERS_DATA does not point to a folder with bigclonebench_10pct")
    return path


def test_the_real_ten_percent_loads_in_three_seconds_with_its_known_facts(
    real_folder: Path,
) -> None:
    began = time.process_time()
    data = load(real_folder)
    assert time.process_time() - began < 3
    assert (len(data.functions), data.n_distinct_texts) == (9134, 8068)
    assert [len(data.splits[name]) for name in ("train", "valid", "test")] == [90102, 4000, 4000]
    assert data.facts["share_of_clones"] == {"train": 0.5, "valid": 0.5, "test": 0.5}
    assert set(data.facts["ids_in_both"].values()) == {0}
    assert data.facts["functions_of_the_second_whose_text_is_in_the_first"]["train/test"] == 126
    assert sum(data.facts["identical_texts_with_label_0"].values()) == 2
    assert data.facts["repeated_rows"]["train"] > 0
    assert np.bincount(data.seen_members("test")).sum() == 4000


# The hub's Parquet


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return parquet_folder.write_hub_form(tmp_path / "parquet")


def test_both_forms_give_the_same_pairs_and_the_same_fingerprint(
    parquet: Path, tmp_path: Path
) -> None:
    ours = load_clone_data(str(parquet))
    folder = load_clone_data(str(parquet_folder.write_folder_form(tmp_path / "folder")))
    assert ours.fingerprint == folder.fingerprint
    assert sorted(ours.ids) == sorted(folder.ids) == [str(i) for i in TEXTS]
    for name, pairs in SPLITS.items():
        got = ours.splits[name]
        named = [
            (int(ours.ids[a]), int(ours.ids[b])) for a, b in zip(got.left, got.right, strict=True)
        ]
        assert named == [(a, b) for a, b, _ in pairs]
        assert got.label.tolist() == [int(label) for *_, label in pairs]
    assert not ours.problems.n_problems


def test_functions_are_numbered_in_row_order(tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        write(tmp_path / f"{name}.parquet", rows_of([(8, 3, True), (2, 3, False), (5, 8, True)]))
    assert load_clone_data(str(tmp_path)).ids == ["8", "2", "5", "3"]


def test_rows_beyond_one_batch_keep_their_order_and_their_numbers(tmp_path: Path) -> None:
    rows = rows_of([(1 + n % 7, 8, n % 7 > 2) for n in range(10_000)])
    rows[9_000]["func1"] = None
    folder = tmp_path / "big"
    for name in ("train", "validation", "test"):
        write(folder / f"{name}.parquet", rows if name == "train" else rows_of(SPLITS["test"]))
    with pytest.raises(DataError) as caught:
        load_clone_data(str(folder))
    assert "train.parquet:9001: func1" in str(caught.value)
    data = load_clone_data(str(folder), on_bad_rows="drop")
    train = data.splits["train"]
    kept = [n for n in range(10_000) if n != 9_000]
    assert [int(data.ids[i]) for i in train.left] == [1 + n % 7 for n in kept]
    assert train.label.tolist() == [int(n % 7 > 2) for n in kept]


TEST_FILE = "data/test-00000-of-00001.parquet"


def changed(**values: Any) -> dict[str, Any]:
    return {**rows_of([(7, 6, False)])[0], **values}


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("clashing_id", changed(func1="another text")),
        ("null_value", changed(func2=None)),
        ("null_value", changed(label=None)),
        ("null_value", changed(id1=None)),
        ("empty_function", changed(id2=99, func2=" \n")),
        ("bad_text", changed(id2=99, func2="x\0")),
        ("self_pair", changed(id2=7, func2=TEXTS[7])),
        ("both_labels", changed(id2=8, func2=TEXTS[8])),
    ],
)
def test_a_bad_row_is_named_by_file_and_row(parquet: Path, kind: str, row: dict[str, Any]) -> None:
    write(parquet / TEST_FILE, [*rows_of(SPLITS["test"]), row])
    with pytest.raises(DataError) as caught:
        load_clone_data(str(parquet))
    assert KINDS[kind][1] in caught.value.message and f"{TEST_FILE}:3:" in str(caught.value)
    if kind not in ("both_labels", "clashing_id"):
        dropped = load_clone_data(str(parquet), on_bad_rows="drop")
        assert len(dropped.splits["test"]) == 2
        assert dropped.problems.rows_dropped == {TEST_FILE: 1}


def test_a_row_of_a_later_part_is_numbered_within_that_part(parquet: Path) -> None:
    file = "data/train-00001-of-00002.parquet"
    write(parquet / file, [*rows_of(SPLITS["train"][3:]), changed(id2=7, func2=TEXTS[7])])
    with pytest.raises(DataError, match=KINDS["self_pair"][1]) as caught:
        load_clone_data(str(parquet))
    assert f"{file}:2: '7', '7'" in str(caught.value)


def test_an_id_with_two_texts_loses_its_rows_wherever_they_stand(parquet: Path) -> None:
    write(parquet / TEST_FILE, [*rows_of(SPLITS["test"]), changed(id1=3, func1="another text")])
    dropped = load_clone_data(str(parquet), on_bad_rows="drop")
    assert "3" not in dropped.ids and len(dropped.splits["train"]) == 1
    assert dropped.problems.n_dropped == 4 and len(dropped.splits["test"]) == 2


def test_text_that_is_not_utf8_is_named_and_not_replaced(parquet: Path) -> None:
    binary = pa.schema([f if f.name != "func1" else pa.field("func1", pa.binary()) for f in SCHEMA])
    rows = [{**row, "func1": row["func1"].encode()} for row in rows_of(SPLITS["test"])]
    rows.append({**rows[0], "id1": 99, "func1": b"caf\xe9"})
    table = pa.Table.from_pylist(rows, schema=binary)
    # The bytes of a text column: what a writer that does not check leaves in a file.
    column = table.column("func1").combine_chunks()
    text = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    table = table.set_column(table.schema.get_field_index("func1"), "func1", text)
    pq.write_table(table, parquet / TEST_FILE)
    with pytest.raises(DataError, match="line is not UTF-8") as caught:
        load_clone_data(str(parquet))
    assert f"{TEST_FILE}:3: text of id '99', byte 4" in str(caught.value)


def test_whole_number_labels_and_text_ids_are_read_and_others_refused(parquet: Path) -> None:
    fields = {"label": pa.int64(), "id1": pa.string(), "id2": pa.large_string()}
    schema = pa.schema([pa.field(f.name, fields.get(f.name, f.type)) for f in SCHEMA])
    rows = [
        {**row, "label": int(row["label"]), "id1": str(row["id1"]), "id2": str(row["id2"])}
        for row in rows_of(SPLITS["test"])
    ]
    before = load_clone_data(str(parquet)).fingerprint
    write(parquet / TEST_FILE, rows, schema)
    assert load_clone_data(str(parquet)).fingerprint == before
    words = pa.schema([pa.field(f.name, fields.get(f.name, f.type)) for f in SCHEMA])
    words = words.set(words.get_field_index("label"), pa.field("label", pa.string()))
    write(parquet / TEST_FILE, [{**row, "label": str(row["label"])} for row in rows], words)
    assert load_clone_data(str(parquet)).fingerprint == before
    write(parquet / TEST_FILE, [*rows, {**rows[0], "label": 2}, {**rows[0], "id1": ""}], schema)
    with pytest.raises(DataError) as caught:
        load_clone_data(str(parquet))
    assert "label 2" in str(caught.value) and "1 x id cannot be used" in caught.value.message


def test_wrong_columns_are_named_with_what_is_there(parquet: Path) -> None:
    schema = pa.schema([f if f.name != "label" else pa.field("label", pa.date32()) for f in SCHEMA])
    schema = schema.remove(schema.get_field_index("func2"))
    rows = [{**row, "label": date(2020, 1, 1)} for row in rows_of(SPLITS["test"])]
    write(parquet / TEST_FILE, rows, schema)
    with pytest.raises(DataError) as caught:
        load_clone_data(str(parquet), on_bad_rows="drop")
    assert "no column func2; the columns are id, id1, id2, func1, label" in str(caught.value)
    assert "column label has type date32[day]; read are the numbers 0 and 1" in str(caught.value)


def test_a_missing_part_of_a_split_is_an_error_not_a_smaller_split(parquet: Path) -> None:
    (parquet / "data/train-00000-of-00002.parquet").unlink()
    with pytest.raises(DataError, match="part 00000 of 00002"):
        load_clone_data(str(parquet), on_bad_rows="drop")


def test_two_exports_side_by_side_are_ambiguous(parquet: Path) -> None:
    write(parquet / "other/test/0000.parquet", rows_of(SPLITS["test"]))
    with pytest.raises(DataError, match=KINDS["ambiguous_files"][1]):
        load_clone_data(str(parquet))
