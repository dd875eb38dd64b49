"""Promise: rows come out of every format as they went in, and no bytes at all raise anything else.

What cannot be read is a finding with its file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbhelpers.data import load_clone_data, load_instructions
from nbhelpers.data.detection import load_detection_data
from nbhelpers.data.files import read_records
from nbhelpers.data.findings import KINDS, Findings
from nbhelpers.data.hub import Files
from nbhelpers.data.sources import sort_files, split_of
from nbhelpers.errors import DataError
from tests.clone_folder import write_folder

quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Rows = list[dict[str, Any]]
# Of many control characters it is said that they are no text.
signs = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\n\r")
texts = st.text(signs, max_size=12)
row_lists = st.lists(
    st.fixed_dictionaries({"id": st.integers(0, 99).map(str), "code": texts, "Größe": texts}),
    min_size=1,
    max_size=6,
)


def as_csv(rows: Rows, delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL)
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, row_group_size=2)
    return stream.getvalue()


def as_lines(rows: Rows, end: str = "\n", **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + end for row in rows).encode()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "a.jsonl": as_lines,
    "mark.ndjson": lambda rows: b"\xef\xbb\xbf" + as_lines(rows, ensure_ascii=False),
    "crlf.jsonl": lambda rows: as_lines(rows, "\r\n"),
    "lines.json": as_lines,
    "list.json": lambda rows: json.dumps(rows).encode(),
    "spread.json": lambda rows: json.dumps({"version": 1, "data": rows}, indent=1).encode(),
    "oneline.json": lambda rows: json.dumps({"data": rows}).encode(),
    "packed.jsonl.gz": lambda rows: gzip.compress(as_lines(rows)),
    "packed.csv.gz": lambda rows: gzip.compress(as_csv(rows, ",")),
    "comma.csv": lambda rows: as_csv(rows, ","),
    "semicolon.CSV": lambda rows: as_csv(rows, ";"),
    "tab.tsv": lambda rows: as_csv(rows, "\t"),
    "a.parquet": as_parquet,
}


def read(path: Path, data: bytes) -> tuple[Rows, list[int], Findings]:
    path.write_bytes(data)
    findings = Findings("drop", "here")
    records = list(read_records(path, path.name, findings))
    assert all(record.file == path.name for record in records)
    return [r.values for r in records], [r.line for r in records], findings


@quick
@given(rows=row_lists)
@pytest.mark.parametrize("name", FORMATS)
def test_rows_come_back_as_they_were_with_their_places(
    tmp_path: Path, name: str, rows: Rows
) -> None:
    values, places, findings = read(tmp_path / name, FORMATS[name](rows))
    assert values == rows and not findings.n_problems and findings.rows_read == {name: len(rows)}
    if ".csv" not in name.lower() and ".tsv" not in name:  # whose cells may hold line ends
        assert places == list(range(1, len(rows) + 1))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file with other bytes at some places, cut short, or of chance bytes."""
    name = draw(st.sampled_from(list(FORMATS)))
    data = bytearray(FORMATS[name](draw(row_lists)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\n")
    whole = bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)
    return name, draw(st.one_of(st.just(whole), st.binary(max_size=40)))


@settings(quick, max_examples=200)
@given(file=damaged())
def test_any_bytes_give_rows_or_findings(tmp_path: Path, file: tuple[str, bytes]) -> None:
    values, _, findings = read(tmp_path / file[0], file[1])
    assert values or findings.n_problems
    assert findings.report().encode(errors="surrogatepass")


@settings(quick, max_examples=80)
@given(file=damaged(), loader=st.sampled_from([load_instructions, load_detection_data]))
def test_damaged_data_is_one_error_that_names_its_file(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes], loader: Any
) -> None:
    path = tmp_path_factory.mktemp("damaged") / file[0]
    path.write_bytes(file[1])
    with pytest.raises(DataError) as caught:  # the rows are too few, and of no form that is read
        loader(str(path), on_bad_rows="drop")
    assert path.name in str(caught.value) and caught.value.fix


PAIR_LINES = {
    "1\t2\t1": True,
    "5\t6\t0": True,
    "1\t2\t2": False,
    "1\t2\t1 ": False,
    "01\t2\t1": False,
    "1\t2\t0\t1": False,
    "1\t2": False,
    '"1"\t2\t0': False,
    "1\t2\t0\r1\t2\t0": False,  # the line ends of an old Mac
    "\u0661\t2\t1": False,
    "": None,
}


@settings(quick, max_examples=80)
@given(
    kinds=st.lists(st.sampled_from([*PAIR_LINES]), min_size=1),
    end=st.sampled_from(["\n", "\r\n"]),
    is_cut=st.booleans(),
)
def test_each_line_of_pairs_is_a_pair_a_blank_or_a_finding(
    tmp_path: Path, kinds: list[str], end: str, is_cut: bool
) -> None:
    write_folder(tmp_path)
    text = end.join([*kinds, *(["1\t3\t0"] if is_cut else ["1\t3\t0", ""])])
    (tmp_path / "train.txt").write_bytes(text.encode())
    data = load_clone_data(str(tmp_path), on_bad_rows="drop")
    good = [line for line in kinds if PAIR_LINES[line]]
    n_bad = sum(PAIR_LINES[line] is False for line in kinds)
    train = data.splits["train"]
    ids = [data.ids[at] for at in train.left.tolist()]
    assert ids == [*(line[0] for line in good), "1"]
    assert data.problems.n_dropped == n_bad
    assert data.problems.counts.get("blank_line", 0) == sum(line == "" for line in kinds)
    n_crlf = (len(good) + n_bad + (not is_cut)) * (end == "\r\n")
    assert data.problems.counts.get("crlf", 0) == n_crlf


@settings(quick, max_examples=80)
@given(
    name=st.sampled_from(["data.jsonl", "train.txt"]), at=st.floats(0, 1), new=st.binary(max_size=3)
)
def test_a_damaged_clone_folder_is_data_or_one_error(
    tmp_path: Path, name: str, at: float, new: bytes
) -> None:
    write_folder(tmp_path)
    data = (tmp_path / name).read_bytes()
    place = int(at * len(data))
    (tmp_path / name).write_bytes(data[:place] + new + data[place + 1 :])
    try:
        loaded = load_clone_data(str(tmp_path))
        assert loaded.functions and not loaded.problems.n_problems
    except DataError as error:
        assert name in str(error) and error.fix


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty.jsonl": ("", "empty.jsonl: 0 bytes"),
    "blank.jsonl": ("\n\n", "0 rows"),
    "list.json": ("[]", "0 rows"),
    "binary.jsonl": (bytes(range(256)) * 50, "is a binary file"),
    "pickle.json": (b"\x80\x04\x95abc", "is a pickle; nothing is unpickled here"),
    "page.json": ("<!DOCTYPE html><p>no</p>", "is a web page"),
    "wide.jsonl": ('{"a": 1}\n'.encode("utf-16"), "mark of UTF-16"),
    "wide2.jsonl": ('{"a": 1}\n'.encode("utf-16-le"), "looks like UTF-16 without its mark"),
    "packed.jsonl": (b"\x1f\x8b\x08abc", "is compressed, but damaged"),
    "pointer.parquet": ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "damaged.parquet": (b"PAR1 and no more", "is not Parquet, or damaged"),
    "renamed.csv": (b"PAR1\0\0", "is a Parquet file; name it .parquet"),
    "cut.json": ('[\n {"a": 1}', "is not JSON"),
    "latin.json": ('[{"a": "é"}]'.encode("latin-1"), "line 1: byte 0xe9 is not UTF-8"),
    "number.json": ("3", "it is int: 3"),
    "columns.json": ('{"a": {"0": "a"}, "b": {"0": "b"}}', "column by column"),
    "object.json": ('{\n"name": 1,\n"rows_of": 2}', "is one JSON object (name, rows_of)"),
    "twice.json": ('[{"a": 1, "a": 2}]', "'a' stands twice"),
    "deep.jsonl": ('{"a":' * 100_000, "deep.jsonl:1: nested too deeply"),
    "nul.jsonl": ('{"a": 1}\n{"b": "' + "x" * 40 + '\0"}\n', "nul.jsonl:2: at byte 48"),
    "latin.jsonl": (b'{"a": 1}\n{"b": "\xe9"}\n', "latin.jsonl:2: byte 8 of the line is 0xe9"),
    "broken.jsonl": ('{"a": 1}\n{"a": \n', "broken.jsonl:2: Expecting value"),
    "twice.csv": ("a,b,b\na,b,c\n", "names a column twice: b"),
    "nameless.csv": ("a,b,,\na,b,,\n", "twice: (no name)"),
    "open.csv": ('a,b\na,b\n"c,d\ne,f\n', "is not CSV from line 3 on"),
    "header.csv": ("a,b\n", "0 rows"),
    "ragged.csv": ('a,b\n"1\n2",3\nd\n', "ragged.csv:4: 1 cells under 2 columns"),
    "latin.csv": (b"a,b\n\n\xe9,e\n", "latin.csv:3: a cell holds other bytes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_cannot_be_read_is_told_by_file_and_line(tmp_path: Path, name: str) -> None:
    data, detail = BAD_FILES[name]
    *_, findings = read(tmp_path / name, data if isinstance(data, bytes) else data.encode())
    report = findings.report()
    if name not in ("number.json",):  # a row that is no object: for the reader of rows
        assert detail in report and name in report and findings.n_problems == 1
    with pytest.raises(DataError) as caught:
        load_instructions(str(tmp_path / name))
    assert detail in str(caught.value) and caught.value.fix


def test_a_parquet_row_that_python_cannot_hold_is_told_by_its_row(tmp_path: Path) -> None:
    bytes_ = pa.array([b"a", b"\xff", None], pa.binary()).view(pa.string())
    far = pa.array([2**40] * 3, pa.timestamp("s"))
    values, places, findings = read_table(tmp_path, {"a": bytes_, "at": far})
    assert (values, places) == ([{"a": "a", "at": None}, {"a": None, "at": None}], [1, 3])
    assert "a.parquet:2: byte 1 of a text" in findings.report()
    inside = pa.array([{"at": 2**40}] * 3, pa.struct([("at", pa.timestamp("s"))]))
    values, _, findings = read_table(tmp_path, {"a": inside})
    assert not values and findings.counts["not_text"] == 3
    *_, findings = read_table(tmp_path, {"a": far, "A": far})
    assert "names a column twice: a" in findings.report()


def read_table(folder: Path, columns: dict[str, Any]) -> tuple[Rows, list[int], Findings]:
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return read(folder / "a.parquet", (folder / "a.parquet").read_bytes())


def test_what_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbhelpers.data.files.MAX_JSON_BYTES", 20)
    *_, findings = read(tmp_path / "a.json", b'[{"a": "long enough"}]')
    assert "write one row a line" in findings.report()
    monkeypatch.setattr("nbhelpers.data.files.MAX_FILE_BYTES", 10)
    *_, findings = read(tmp_path / "a.jsonl", b'{"a": "long enough"}')
    assert KINDS["too_large"][1] in findings.report()


HASH = "0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.parquet", "train"),
        (f"data/train-00000-of-00002-{HASH}.parquet", "train"),
        (f"data/train_sft-00000-of-00002-{HASH}.parquet", "train"),
        ("test_sft.jsonl", "test"),
        ("default/validation/0000.parquet", "valid"),
        ("valid-0.jsonl.gz", "valid"),
        ("dev.csv", "valid"),
        ("test_unseen-00000-of-00001.parquet", "test_unseen"),
        ("train_gen-00000-of-00001.parquet", None),
        ("training.parquet", None),
        ("latest.parquet", None),
        ("0000.parquet", None),
    ],
)
def test_the_split_of_a_file_follows_from_its_name(name: str, split: str | None) -> None:
    assert split_of(name) == split


PARTS = [f"data/train-0000{n}-of-00002-{HASH}.parquet" for n in range(2)]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        ([*PARTS, f"data/test-00000-of-00001-{HASH}.parquet"], {"train": 2, "test": 1}),
        (
            ["d/train_sft-00000-of-00001.parquet", "d/train_gen-00000-of-00001.parquet"],
            {"train": 1},
        ),
        (["default/train-0.parquet", "messages/train-0.parquet"], {"train": 1}),
        (["default/train/0000.parquet", "default/test/0000.parquet"], {"train": 1, "test": 1}),
        (["rows.csv"], {"train": 1}),
        (["train.jsonl", "notes.json"], {"train": 1}),
    ],
)
def test_files_are_sorted_as_data_sets_name_them(names: list[str], splits: dict[str, int]) -> None:
    found = sort_files(Files(Path(), names, "here", None, ""), Findings("stop", "here"))
    assert {split: len(files) for split, files in found.items()} == splits


@pytest.mark.parametrize(
    ("names", "detail"),
    [
        (["a.jsonl", "b.jsonl"], "no name says train, valid or test: a.jsonl, b.jsonl"),
        (["train.jsonl", "train.csv"], "train stands in train.csv, train.jsonl"),
        (["x/train.jsonl", "y/train.jsonl"], "train stands in x, y"),
        (["test.jsonl", "valid.jsonl"], "no train.*; there are test.jsonl, valid.jsonl"),
        (PARTS[1:], "train lacks part 00000 of 00002"),
        ([*PARTS, PARTS[0].replace("0123", "3210")], "files of two exports are mixed"),
        ([*PARTS, "data/train_sft.parquet"], "files of two exports are mixed"),
        (["train-00000-of-00001.jsonl", "train.jsonl"], "files of two exports are mixed"),
    ],
)
def test_files_that_are_not_clear_are_told(names: list[str], detail: str) -> None:
    with pytest.raises(DataError) as caught:
        sort_files(Files(Path(), names, "here", None, ""), Findings("drop", "here"))
    assert detail in str(caught.value) and caught.value.fix
