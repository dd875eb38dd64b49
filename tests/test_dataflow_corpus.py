"""Promise: the graphs of a corpus come in order, from the cache or from processes, always equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbhelpers.common import pool
from nbhelpers.data import dataflow
from nbhelpers.data.dataflow import FlowTable, extract_corpus, extract_dataflow
from nbhelpers.errors import ConfigError, DataError, DataFlowUnavailable

CODES = [
    "int f(int a) { return a; }",
    "void g() { for (int i = 0; i < n; i++) { s = s + i; } }",
    "",
    "int f(int a) { return a; }",
    'String h() { return "\u00e4" + "x"; }',
    "int k() { return 1;",
    "class A { }",
    "int bad() { return '\ud800'; }",
]
MANY = [f"int f{k}(int a) {{ int b{k % 7} = a + {k}; return b{k % 7}; }}" for k in range(300)]


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def contents(table: FlowTable) -> tuple:
    return table.words, table.problems, [table[i] for i in range(len(table))]


def test_each_function_has_its_graph_in_its_place_or_its_reason() -> None:
    table = extract_corpus(CODES, "java")
    assert len(table) == len(CODES)
    for i in (0, 1, 3, 4, 5, 6):
        assert table[i] == extract_dataflow(CODES[i], "java")
    assert table[-2] == table[6] and table[0] == table[3]
    with pytest.raises(IndexError):
        table[len(CODES)]
    assert set(table.problems) == {2, 5, 7}
    assert "empty" in table.problems[2] and "lone surrogate" in table.problems[7]
    assert "'}' is missing" in table.problems[5] and table[5].tokens
    assert (table[2].tokens, table[2].edges, table[2].problem) == ([], [], table.problems[2])
    assert table.words[:4] == ["int", "f", "(", "a"] and len(set(table.words)) == len(table.words)
    assert len(extract_corpus([], "java")) == 0 and len(extract_corpus([""], "java")) == 1


def test_a_graph_too_large_leaves_the_tokens(monkeypatch) -> None:
    monkeypatch.setattr("nbhelpers.data.dataflow_program.MAX_SIZE", 5)
    table = extract_corpus([CODES[0], CODES[1]], "java")
    assert table[0].edges and not table[1].edges and len(table[1].tokens) == 28
    assert list(table.problems) == [1] and "more than" in table.problems[1]


def test_each_distinct_text_is_read_once_and_then_comes_from_the_cache(
    private_cache: Path, monkeypatch
) -> None:
    read: list[str] = []
    original = dataflow.read_function

    def spy(code: str, *rest: str):
        read.append(code)
        return original(code, *rest)

    monkeypatch.setattr(dataflow, "read_function", spy)
    fresh = contents(extract_corpus(CODES * 3, "java"))
    assert sorted(read) == sorted(set(CODES))
    assert contents(extract_corpus(CODES * 3, "java")) == fresh
    assert sorted(read) == sorted(set(CODES))
    for path in private_cache.rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:-50])  # damaged: read again
    assert contents(extract_corpus(CODES * 3, "java")) == fresh


def test_what_decides_a_graph_is_part_of_its_key(private_cache: Path, monkeypatch) -> None:
    code = 'void f() { s = "a"; }'
    split = extract_corpus([code], "java")[0]
    assert split != extract_corpus([code], "java", grammar_compat="checkpoint")[0]
    extract_corpus(["x = 1\n"], "python")
    monkeypatch.setattr(dataflow, "versions", lambda language: "another grammar")
    extract_corpus([code], "java")
    assert len(list((private_cache / "dataflow").iterdir())) == 4


def test_a_cache_that_cannot_be_written_is_only_slower(private_cache: Path) -> None:
    private_cache.write_text("a file where the folder should be")
    assert extract_corpus(CODES, "java")[0] == extract_dataflow(CODES[0], "java")


SCRIPT = """
import json, sys
from nbhelpers.common import pool
from nbhelpers.data.dataflow import extract_corpus
pool.CHUNK_CHARACTERS = 1000
seen = []
codes = json.loads(sys.stdin.read())
table = extract_corpus(codes, "java", processes=2, report=lambda *counts: seen.append(counts))
same = extract_corpus(codes[::-1], "java", processes=1)
print(len(table), "torch" in sys.modules, seen == sorted(seen), len(seen) > 10, seen[-1])
print(all(table[i] == same[-1 - i] for i in range(300)))
"""


@pytest.mark.slow
def test_processes_give_the_same_and_run_neither_torch_nor_the_main_module(
    tmp_path: Path, root: Path
) -> None:
    for name in ("torch", "transformers", "pandas"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    (tmp_path / "program.py").write_text("print('main runs')\n" + SCRIPT)
    done = subprocess.run(
        [sys.executable, "program.py"],
        input=json.dumps(MANY),
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "main runs\n300 False True True (300, 300)\nTrue\n", done.stderr


def _die(texts: list[str]) -> None:
    os._exit(3)


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_with_its_fix(monkeypatch) -> None:
    monkeypatch.setattr(pool, "CHUNK_CHARACTERS", 10)
    with pytest.raises(DataError, match="ended before") as caught:
        pool.map_chunks(_die, MANY[:9], len, processes=2)
    assert "processes=1" in caught.value.fix


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="processes is 0"):
        extract_corpus(CODES, "java", processes=0)
    with pytest.raises(DataFlowUnavailable, match="cobol"):
        extract_corpus([], "cobol")
    with pytest.raises(ConfigError, match="grammar_compat"):
        extract_corpus([], "java", grammar_compat="new")


def test_importing_it_loads_neither_numpy_nor_the_parser(root: Path) -> None:
    code = "import sys, nbhelpers.data.dataflow; print({'numpy', 'tree_sitter'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_the_real_functions_take_a_minute_at_most_and_two_seconds_from_the_cache(
    shared_data: Path,
) -> None:
    lines = (shared_data / "bigclonebench_10pct" / "data.jsonl").read_text("utf-8").splitlines()
    codes = [json.loads(line)["func"] for line in lines]
    began = time.perf_counter()
    table = extract_corpus(codes, "java", processes=2)
    assert time.perf_counter() - began < 60
    began = time.process_time()
    again = extract_corpus(codes, "java")
    assert time.process_time() - began < 2
    assert again.problems == table.problems and (again.parents == table.parents).all()
    assert (len(table), len(table.tokens)) == (9134, 2_587_320)
    # All but nine parse: 215 constructors do so inside a class.
    assert sorted(table.problems) == [1508, 1579, 3709, 3779, 4088, 4206, 6002, 6448, 8330]
    assert all(len(table[i].edges) for i in range(0, 9134, 100))
