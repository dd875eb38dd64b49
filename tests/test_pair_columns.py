"""Promise: reading whole blocks of a pair file changes nothing of what is read or reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nbhelpers.data import pair_sources
from nbhelpers.data.pair_sources import PlainIds
from nbhelpers.data.pairs import FunctionTable
from nbhelpers.data.problems import ProblemLog
from tests.clone_folder import FUNCTIONS

ODD = [
    b"",
    b"\n",
    b"1\t2\t2\n",
    b"1\t2\n",
    b"01\t2\t0\n",
    b"1\t2\t0\r\n",
    b"99\t2\t1\n",
    b"1\t\t1\n",
]
ODD += [
    b"1\t2\t0\t\n",
    b"+1\t2\t0\n",
    b"1\t2\t10\n",
    b"\t2\t0\n",
    b"1 \t2\t0\n",
    b"1\t2\t0\t1\t2\t0\n",
]
ODD += [b"18446744073709551617\t2\t0\n", b"1\t2\n3\t4\t5\t1\n", "\u0661\t2\t0\n".encode()]


def plain_lines(n: int, seed: int) -> list[bytes]:
    """Pairs of the six functions, in no order."""
    rng = np.random.default_rng(seed)
    rows = zip(rng.integers(1, 7, n), rng.integers(1, 7, n), rng.integers(0, 2, n), strict=True)
    return [f"{a}\t{b}\t{c}\n".encode() for a, b, c in rows]


def parsed(folder: Path) -> tuple[list[list[int]], str]:
    """What is read of test.txt, and the report on it."""
    log = ProblemLog("drop", "here")
    table = FunctionTable(log, rows_are_functions=True)
    for id_, text in FUNCTIONS.items():
        table.add(id_, text, "data.jsonl", 1)
    split = pair_sources._read_pairs(folder / "test.txt", table, log)
    assert split is not None
    pairs = split.pairs
    lines = [split.place(row)[1] for row in range(len(pairs))]
    columns = (pairs.left, pairs.right, pairs.label, lines)
    return [list(map(int, column)) for column in columns], log.freeze().report()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("block", [1, 30, 200, 10**6])
def test_blocks_of_any_size_read_what_single_lines_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes, block: int
) -> None:
    lines = plain_lines(60, 3)
    (tmp_path / "test.txt").write_bytes(b"".join([*lines[:40], odd, *lines[40:]]))
    monkeypatch.setattr(pair_sources, "BLOCK_BYTES", block)
    found = parsed(tmp_path)
    monkeypatch.setattr(PlainIds, "parse", lambda *_: None)  # line by line
    assert parsed(tmp_path) == found


def test_plain_pairs_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_sources._PairLines, "parse", lambda *_: pytest.fail("line by line"))
    (tmp_path / "test.txt").write_bytes(b"".join(plain_lines(60, 4)).rstrip(b"\n"))
    assert len(parsed(tmp_path)[0][0]) == 60
