"""Promise: the hub's Parquet rows become the same data as the folder, each function once.

A bad row is named by file and row; a part that is missing or cut is an error, not a smaller split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.findings import KINDS
from nbhelpers.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
folders = pytest.importorskip("tests.parquet_folder")
SCHEMA, SPLITS, TEXTS = folders.SCHEMA, folders.SPLITS, folders.TEXTS
rows_of, write = folders.rows_of, folders.write
Row = dict[str, Any]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return folders.write_hub_form(tmp_path / "parquet")


def test_both_forms_give_the_same_pairs_and_the_same_fingerprint(
    parquet: Path, tmp_path: Path
) -> None:
    ours = load_clone_data(str(parquet))
    folder = load_clone_data(str(folders.write_folder_form(tmp_path / "folder")))
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


def changed(**values: Any) -> Row:
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
def test_a_bad_row_is_named_by_file_and_row(parquet: Path, kind: str, row: Row) -> None:
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
    with pytest.raises(DataError, match="not_utf8") as caught:
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
    write(parquet / TEST_FILE, [*rows, {**rows[0], "label": 2}, {**rows[0], "id1": ""}], schema)
    with pytest.raises(DataError) as caught:
        load_clone_data(str(parquet))
    assert "label 2" in str(caught.value) and "1 x id cannot be used" in caught.value.message


def test_wrong_columns_are_named_with_what_is_there(parquet: Path) -> None:
    schema = pa.schema([f if f.name != "label" else pa.field("label", pa.string()) for f in SCHEMA])
    schema = schema.remove(schema.get_field_index("func2"))
    rows = [{**row, "label": "1"} for row in rows_of(SPLITS["test"])]
    write(parquet / TEST_FILE, rows, schema)
    with pytest.raises(DataError) as caught:
        load_clone_data(str(parquet), on_bad_rows="drop")
    assert "no column func2; the columns are id, id1, id2, func1, label" in str(caught.value)
    assert "column label has type string" in str(caught.value)


def test_a_missing_part_of_a_split_is_an_error_not_a_smaller_split(parquet: Path) -> None:
    (parquet / "data/train-00000-of-00002.parquet").unlink()
    with pytest.raises(DataError, match="part 00000 of 00002"):
        load_clone_data(str(parquet), on_bad_rows="drop")


def test_two_exports_side_by_side_are_ambiguous(parquet: Path) -> None:
    write(parquet / "other/test/0000.parquet", rows_of(SPLITS["test"]))
    with pytest.raises(DataError, match=KINDS["ambiguous_files"][1]):
        load_clone_data(str(parquet))
