"""Promise: pairs are ranked as by comparing all of them, and given code does not make a pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_detector import program
from scipy.sparse import csr_matrix

from nbhelpers.errors import DataError
from nbhelpers.use import similar
from nbhelpers.use.similar import (
    MIN_FILES,
    baseline_vectors,
    best_pairs,
    given_runs,
    read_members,
    strip,
)


def units(n: int, seed: int, size: int = 8) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("split_at", [None, 7])
def test_blocks_find_what_all_pairs_at_once_find(
    monkeypatch: pytest.MonkeyPatch, split_at: int | None
) -> None:
    monkeypatch.setattr(similar, "BLOCK", 5)
    ours, plain = units(23, 0), units(23, 1)
    all_ours, all_plain = ours @ ours.T, plain @ plain.T
    pairs = [(i, j) for i in range(23) for j in range(i + 1, 23)]
    if split_at is not None:
        pairs = [(i, j) for i, j in pairs if i < split_at <= j]
    expected = sorted(pairs, key=lambda pair: -all_ours[pair])[:12]
    found = best_pairs(ours, csr_matrix(plain), top=12, split_at=split_at)
    assert [(pair.one, pair.other) for pair in found] == expected
    assert [pair.rank for pair in found] == list(range(1, 13)) and found[0].n == len(pairs)
    for pair in found:
        above = sum(all_plain[each] > all_plain[pair.one, pair.other] for each in pairs)
        assert pair.floor_rank - 1 == above


def test_equal_programs_come_in_their_order_and_no_more_than_asked() -> None:
    ours = np.ones((600, 1), np.float32)
    found = best_pairs(ours, csr_matrix(ours), top=3)
    assert [(pair.one, pair.other) for pair in found] == [(0, 1), (0, 2), (0, 3)]
    assert found[0].n == 600 * 599 // 2
    assert len(best_pairs(ours[:2], csr_matrix(ours[:2]), top=50)) == 1


def test_the_floor_is_high_for_shared_text_alone() -> None:
    codes = [program(0, "total"), program(0, "total_b"), "print('other words')\n"]
    grams = baseline_vectors(codes)
    plain = np.asarray((grams @ grams.T).todense())
    assert plain[0, 1] > 0.5 > plain[0, 2]
    pair = baseline_vectors(codes[::2])  # what two alone share is not all that they are
    assert (pair[0] @ pair[1].T).sum() < 0.5


STARTER = "import sys\n\ndef read_all(path):\n    with open(path) as f:\n        return f.read()\n"


def test_starter_code_is_taken_out_and_a_lone_brace_stays() -> None:
    own = "def solve(a):\n    while a > 1:\n        a = a // 2\n    return a\n"
    found = strip(STARTER + own, given_runs([STARTER], []))
    assert found.code.strip() == own.strip() and 0.4 < found.removed_share < 0.8
    java = "int f(int a) {\n  return a;\n}\n"
    assert strip(java, given_runs(["class A {\n}\n"], [])).code == java
    assert strip(STARTER, given_runs([STARTER], [])).removed_share == 1.0


def test_what_most_of_many_files_hold_is_given_and_a_copy_among_few_is_not() -> None:
    codes = [STARTER + program(0, f"name{i}") for i in range(MIN_FILES)]
    given = given_runs([], codes)
    assert "read_all" not in strip(codes[0], given).code and "name0" in strip(codes[0], given).code
    copied = [program(0, "copied")] * (MIN_FILES - 1)
    assert given_runs([], copied) == set()


def test_two_places_keep_apart_and_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text(program(1, folder))
    members, skipped, first = read_members([tmp_path / "a", tmp_path / "b"], None, "")
    names = [member.file.name for member in members]
    assert names == [f"{tmp_path}/a/x.py", f"{tmp_path}/b/x.py"] and first == 1 and not skipped
    with pytest.raises(DataError, match="not two programs"):
        read_members([tmp_path / "a"], None, "")
    with pytest.raises(DataError, match=r"x\.py: too short"):
        read_members([tmp_path], tmp_path / "a", "")
