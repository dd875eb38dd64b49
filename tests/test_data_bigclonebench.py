"""Promise: a CodeXGLUE folder is read whole or not at all; no bad line is skipped in silence.

Every line that cannot be used is named by file and line number, with all others, in one report.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.findings import EXAMPLES_SHOWN, KINDS
from nbhelpers.errors import ConfigError, DataError
from tests.clone_folder import (
    FUNCTIONS,
    PAIRS,
    append,
    function_line,
    load,
    pair_lines,
    write_folder,
)


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


def test_a_list_without_labels_says_so(folder: Path) -> None:
    (folder / "test.txt").write_bytes(b"4\t5\n4\t6\n")
    error = report_of(folder)
    assert "test.txt:1: 2 columns, the label is missing" in str(error)


def test_a_last_line_cut_within_its_line_end_is_read(folder: Path) -> None:
    (folder / "test.txt").write_bytes(b"4\t5\t1\r\n4\t6\t0\r")
    data = load(folder)
    assert data.splits["test"].label.tolist() == [1, 0] and data.problems.counts["crlf"] == 2


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


@pytest.mark.parametrize(("kind", "line"), BAD_FUNCTIONS)
def test_a_bad_function_line_is_named_and_can_be_dropped(
    folder: Path, kind: str, line: bytes
) -> None:
    number = append(folder / "data.jsonl", line)
    error = report_of(folder)
    assert KINDS[kind][1] in error.message and f"data.jsonl:{number}" in str(error)
    assert KINDS[kind][2] in error.fix and "on_bad_rows" in error.fix
    dropped = load(folder, on_bad_rows="drop")
    assert dropped.ids == list(FUNCTIONS) and dropped.problems.rows_dropped == {"data.jsonl": 1}


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
    ("wrong_columns", b"1\t2\n"),
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


@pytest.mark.parametrize(("kind", "line"), BAD_PAIRS)
def test_a_bad_pair_line_is_named_and_can_be_dropped(folder: Path, kind: str, line: bytes) -> None:
    number = append(folder / "train.txt", line)
    error = report_of(folder)
    assert KINDS[kind][1] in error.message and f"train.txt:{number}" in str(error)
    dropped = load(folder, on_bad_rows="drop")
    assert len(dropped.splits["train"]) == len(PAIRS["train"])
    assert dropped.problems.rows_dropped == {"train.txt": 1}
    assert dropped.fingerprint == load_clean(folder)


def load_clean(folder: Path) -> str:
    """Fingerprint of the same folder without its last train line."""
    (folder / "train.txt").write_bytes(pair_lines(PAIRS["train"]))
    return load(folder).fingerprint


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
        ("1\t2\t0\n".encode("utf-16"), "wrong_encoding"),
        (b"\xfe\xff" + "1\t2\t0\n".encode("utf-16-be"), "wrong_encoding"),
        (b"\x1f\x8b\x08\x00", "unreadable_file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "unreadable_file"),
        (b"", "empty_file"),
        (b"\n\n", "empty_file"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "valid.txt"])
@pytest.mark.parametrize("policy", ["stop", "drop"])
def test_a_file_that_is_something_else_stops_under_both_policies(
    folder: Path, start: bytes, kind: str, name: str, policy: str
) -> None:
    (folder / name).write_bytes(start)
    error = report_of(folder, on_bad_rows=policy)
    assert KINDS[kind][1] in error.message and name in error.message
    assert KINDS["unknown_id"][1] not in str(error)


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ("dev.txt", "valid.txt"),
        ("val.txt", "valid.txt"),
        ("test1.txt", "test.txt"),
        ("Train.txt", "train.txt"),
    ],
)
def test_a_missing_file_is_met_with_what_is_there(folder: Path, there: str, asked: str) -> None:
    (folder / asked).rename(folder / there)
    error = report_of(folder)
    assert f"did you mean {there}? Rename it to {asked}" in str(error)
    assert "the folder holds" in str(error) and "data.jsonl" in str(error)


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
    began = time.perf_counter()
    with pytest.raises(DataError, match="There is no file or folder") as caught:
        load_clone_data(source)
    assert source in str(caught.value) and time.perf_counter() - began < 1


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
    ("there", "said"),
    [
        ("data.jsonl.gz", "unpack it: gunzip data.jsonl.gz"),
        ("data.zip", "unpack it: unzip data.zip"),
        ("functions.jsonl", "Rename it to data.jsonl"),
    ],
)
def test_a_missing_file_says_what_to_do_with_its_likeness(
    folder: Path, there: str, said: str
) -> None:
    (folder / "data.jsonl").rename(folder / there)
    assert said in str(report_of(folder))


@pytest.mark.parametrize(
    "arguments",
    [{"seed": -1}, {"seed": "x"}, {"max_train_samples": 1.5}, {"train_fraction": "x"}],
    ids=str,
)
def test_an_argument_of_another_kind_is_refused(folder: Path, arguments: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        load(folder, **arguments)
