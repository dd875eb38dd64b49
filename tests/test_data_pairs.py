"""Promise: pairs are what the files say, and what is known of them is counted, not assumed.

Which texts train has seen, what the splits share, how many rows repeat, which data a result is for.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.pairs import ClonePairs, fingerprint, subsample
from nbhelpers.errors import ConfigError
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


@pytest.mark.parametrize(
    "arguments",
    [
        {"train_fraction": 0},
        {"train_fraction": 1.1},
        {"max_train_samples": 0},
        {"on_bad_rows": "skip"},
    ],
)
def test_arguments_out_of_range_are_refused(folder: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        load(folder, **arguments)


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
    began = time.perf_counter()
    data = load(real_folder)
    assert time.perf_counter() - began < 3
    assert (len(data.functions), data.n_distinct_texts) == (9134, 8068)
    assert [len(data.splits[name]) for name in ("train", "valid", "test")] == [90102, 4000, 4000]
    assert data.facts["share_of_clones"] == {"train": 0.5, "valid": 0.5, "test": 0.5}
    assert set(data.facts["ids_in_both"].values()) == {0}
    assert data.facts["functions_of_the_second_whose_text_is_in_the_first"]["train/test"] == 126
    assert sum(data.facts["identical_texts_with_label_0"].values()) == 2
    assert data.facts["repeated_rows"]["train"] > 0
    assert np.bincount(data.seen_members("test")).sum() == 4000
