"""Promise: the graphs of a corpus come in order, from the cache or from processes, always equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbhelpers.data import dataflow as dataflow_corpus
from nbhelpers.data.dataflow import (
    FlowCache,
    FlowTable,
    extract_corpus,
    extract_dataflow,
    make_table,
)
from nbhelpers.errors import ConfigError, DataError, DataFlowUnavailable

pytestmark = pytest.mark.slow

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


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.npz"))


def test_each_function_has_its_graph_in_its_place() -> None:
    table = extract_corpus(CODES, "java")
    assert len(table) == len(CODES)
    for i, code in enumerate(CODES):
        if i not in (2, 7):
            assert table[i] == extract_dataflow(code, "java")
    assert table[-2] == table[6] and table[0] == table[3]
    with pytest.raises(IndexError):
        table[len(CODES)]


def test_a_function_without_a_graph_has_its_reason() -> None:
    table = extract_corpus(CODES, "java")
    assert set(table.problems) == {2, 5, 7}
    assert "empty" in table.problems[2] and "lone surrogate" in table.problems[7]
    assert "'}' is missing" in table.problems[5] and table[5].tokens
    assert (table[2].tokens, table[2].edges, table[2].problem) == ([], [], table.problems[2])


def test_a_graph_too_large_leaves_the_tokens(monkeypatch) -> None:
    from nbhelpers.data import dataflow_program

    monkeypatch.setattr(dataflow_program, "MAX_EDGES", 3)
    table = extract_corpus([CODES[0], CODES[1]], "java")
    assert table[0].edges and not table[1].edges and len(table[1].tokens) == 28
    assert list(table.problems) == [1] and "more than" in table.problems[1]


def test_the_arrays_are_as_the_table_says() -> None:
    table = extract_corpus(CODES, "java")
    dtypes = {name: str(getattr(table, name).dtype) for name in FlowTable.__slots__[1:-1]}
    assert dtypes == {
        **{"tokens": "int32", "token_offsets": "int64", "edge_token": "int32"},
        **{"edge_kind": "uint8", "edge_offsets": "int64"},
        **{"parents": "int32", "parent_offsets": "int64"},
    }
    assert table.words[:4] == ["int", "f", "(", "a"] and len(set(table.words)) == len(table.words)
    assert repr(table).startswith("FlowTable(8 functions, ")


@pytest.mark.parametrize("codes", [[], [""], [CODES[0]] * 3])
def test_small_corpora(codes: list[str]) -> None:
    table = extract_corpus(codes, "java")
    assert len(table) == len(codes)
    assert len(extract_corpus(codes, "java")) == len(codes)


def test_the_cache_gives_what_was_made(private_cache: Path, monkeypatch) -> None:
    fresh = contents(extract_corpus(CODES + MANY, "java"))
    monkeypatch.setattr(dataflow_corpus, "read_function", None)  # nothing may be read again
    assert contents(extract_corpus(CODES + MANY, "java")) == fresh
    assert len(files(private_cache)) == 16
    some = extract_corpus([MANY[5], CODES[5], MANY[200]], "java")
    assert some[0] == fresh[2][len(CODES) + 5] and some.problems == {1: fresh[1][5]}


def test_new_functions_join_the_known_ones() -> None:
    extract_corpus(MANY[:100], "java")
    seen: list[tuple[int, int]] = []
    table = extract_corpus(MANY, "java", report=lambda done, total: seen.append((done, total)))
    assert seen[0] == (100, 300) and seen[-1] == (300, 300)
    assert contents(table) == contents(extract_corpus(MANY, "java"))
    assert table[250] == extract_dataflow(MANY[250], "java")


def test_each_distinct_text_is_read_once(monkeypatch) -> None:
    read: list[str] = []
    original = dataflow_corpus.read_function

    def spy(code: str, *rest: str):
        read.append(code)
        return original(code, *rest)

    monkeypatch.setattr(dataflow_corpus, "read_function", spy)
    extract_corpus(CODES * 3, "java")
    assert sorted(read) == sorted(set(CODES))


def test_what_decides_a_graph_is_part_of_its_key(private_cache: Path, monkeypatch) -> None:
    code = 'void f() { s = "a"; }'
    split = extract_corpus([code], "java")[0]
    whole = extract_corpus([code], "java", grammar_compat="checkpoint")[0]
    extract_corpus(["x = 1\n"], "python")
    assert split != whole and len(list((private_cache / "dataflow").iterdir())) == 3
    monkeypatch.setattr(dataflow_corpus, "FORMAT", dataflow_corpus.FORMAT + 1)
    extract_corpus([code], "java")
    monkeypatch.setattr(dataflow_corpus, "versions", lambda language: "another grammar")
    extract_corpus([code], "java")
    assert len(list((private_cache / "dataflow").iterdir())) == 5


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "folder":
        path.unlink()
        path.mkdir()
        (path / "x").touch()
    else:
        path.write_bytes(
            {
                "empty": b"",
                "text": b"not a table",
                "cut": data[: len(data) // 2],
                "flipped": data[:200] + bytes([data[200] ^ 255]) + data[201:],
                "zeros": bytes(len(data)),
            }[how]
        )


@pytest.mark.parametrize("how", ["empty", "text", "cut", "flipped", "zeros", "folder"])
def test_a_damaged_cache_is_only_slower(private_cache: Path, how: str) -> None:
    fresh = contents(extract_corpus(MANY, "java"))
    for path in files(private_cache):
        damage(path, how)
    assert contents(extract_corpus(MANY, "java")) == fresh
    if how != "folder":  # written anew
        assert all(FlowCache._read.__get__(_cache())(bucket)[0] for bucket in range(16))


def _cache() -> FlowCache:
    stamp = f"{dataflow_corpus.FORMAT} java maintained {dataflow_corpus.versions('java')}"
    return FlowCache(stamp)


def test_a_table_that_does_not_fit_together_is_not_used() -> None:
    table = make_table([(["a", "b"], [(1, 0, (0,))], "")])
    cache, key = _cache(), bytes(16)
    for name, wrong in {
        "tokens": table.tokens + 7,
        "token_offsets": table.token_offsets + 1,
        "edge_kind": table.edge_kind + 9,
        "parents": table.parents - 1,
        "edge_token": table.edge_token + 1,
        "words": ["a", 1],
        "edge_offsets": table.edge_offsets[:-1],
        "parent_offsets": table.parent_offsets.astype("int32"),
    }.items():
        arrays = {n: getattr(table, n) for n in FlowTable.__slots__} | {name: wrong}
        cache._write(0, [key], FlowTable(**arrays))
        assert cache.load([key])[0] == [-1], name
    cache._write(0, [key], table)
    assert cache.load([key])[0] == [0]


def test_what_another_process_has_added_meanwhile_is_not_added_twice() -> None:
    table = make_table([(["a"], [], ""), (["b"], [], "")])
    cache, keys = _cache(), [bytes(16), bytes(15) + b"1"]
    cache.add(keys[:1], table.take([0]))
    cache.add(keys, table)
    rows, found = cache.load(keys)
    assert [found[row].tokens for row in rows] == [["a"], ["b"]]


def test_a_cache_that_cannot_be_written_is_only_slower(private_cache: Path) -> None:
    private_cache.write_text("a file where the folder should be")
    assert extract_corpus(CODES, "java")[0] == extract_dataflow(CODES[0], "java")


def test_processes_give_the_same_in_the_same_order(monkeypatch) -> None:
    monkeypatch.setattr(dataflow_corpus, "CHUNK_CHARACTERS", 1000)
    seen: list[tuple[int, int]] = []
    codes = MANY + CODES
    two = extract_corpus(codes, "java", processes=2, report=lambda *counts: seen.append(counts))
    assert seen == sorted(seen) and len(seen) > 10 and seen[-1] == (307, 307)
    monkeypatch.setenv("NBHELPERS_CACHE", os.devnull)
    assert contents(two) == contents(extract_corpus(codes, "java", processes=1))


def test_a_small_corpus_starts_no_process(monkeypatch) -> None:
    monkeypatch.setattr(dataflow_corpus, "read_chunks", None)
    assert len(extract_corpus(MANY, "java")) == 300


SCRIPT = """
import json, sys
from nbhelpers.data import dataflow
from nbhelpers.data.dataflow import extract_corpus
dataflow.CHUNK_CHARACTERS = 1000
codes = json.loads(sys.stdin.read())
table = extract_corpus(codes, "java", processes=2)
print(len(table), "torch" in sys.modules)
"""


def test_no_child_imports_torch(tmp_path: Path, root: Path) -> None:
    for name in ("torch", "transformers", "pandas"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(MANY),
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["300", "False"], done.stderr


def test_the_main_module_of_the_parent_is_not_run_again(tmp_path: Path, root: Path) -> None:
    package = tmp_path / "app"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text("print('main runs')\n" + SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "app.main"],
        input=json.dumps(MANY),
        env=os.environ | {"PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["main", "runs", "300", "False"], done.stderr


def test_a_child_that_dies_is_an_error_with_its_last_words(monkeypatch) -> None:
    from nbhelpers.data import dataflow as dataflow_processes

    monkeypatch.setattr(dataflow_corpus, "CHUNK_CHARACTERS", 1000)
    monkeypatch.setattr(
        dataflow_processes, "_START", "import sys; sys.stderr.write('no memory'); sys.exit(3)"
    )
    with pytest.raises(DataError, match=r"(?s)ended with 3 before .*processes=1.*no memory"):
        extract_corpus(MANY, "java", processes=2)


def test_an_interrupt_leaves_no_child_behind(monkeypatch) -> None:
    from nbhelpers.data import dataflow as dataflow_processes

    started = []
    monkeypatch.setattr(dataflow_corpus, "CHUNK_CHARACTERS", 1000)
    original = dataflow_processes._Child

    def child(*args: str):
        started.append(original(*args))
        return started[-1]

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(dataflow_processes, "_Child", child)
    with pytest.raises(KeyboardInterrupt):
        extract_corpus(MANY, "java", processes=2, report=interrupt)
    assert len(started) == 2
    assert all(one.process.poll() is not None for one in started)


@pytest.mark.parametrize("starts", [0, 1])
def test_children_that_cannot_be_started_are_done_without(monkeypatch, starts: int) -> None:
    expected = contents(extract_corpus(MANY[:99], "java", processes=1))
    monkeypatch.setenv("NBHELPERS_CACHE", os.devnull)
    monkeypatch.setattr(dataflow_corpus, "CHUNK_CHARACTERS", 500)
    popen, started = subprocess.Popen, []

    def scarce(*words: object, **options: object) -> subprocess.Popen:
        if len(started) == starts:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(popen(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", scarce)
    assert contents(extract_corpus(MANY[:99], "java", processes=3)) == expected
    assert len(started) == starts and all(one.poll() is not None for one in started)


@pytest.mark.parametrize("processes", [0, -1, True, 1.5, "2"])
def test_processes_are_a_number_from_one(processes: int) -> None:
    with pytest.raises(ConfigError, match="processes is"):
        extract_corpus(CODES, "java", processes=processes)


@pytest.mark.parametrize(
    ("codes", "text"),
    [("int f();", "one str"), (None, "one NoneType"), (["int f();", b"x"], "Function 1 .* bytes")],
)
def test_functions_are_a_list_of_text(codes: object, text: str) -> None:
    with pytest.raises(DataFlowUnavailable, match=text) as caught:
        extract_corpus(codes, "java")
    assert caught.value.fix


def test_an_unknown_language_is_an_error_even_for_no_functions() -> None:
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
    began = time.perf_counter()
    again = extract_corpus(codes, "java")
    assert time.perf_counter() - began < 2
    assert again.problems == table.problems and (again.parents == table.parents).all()
    assert (len(table), len(table.tokens)) == (9134, 2_587_320)
    # All but nine parse: 215 constructors do so inside a class.
    assert sorted(table.problems) == [1508, 1579, 3709, 3779, 4088, 4206, 6002, 6448, 8330]
    assert all(len(table[i].edges) for i in range(0, 9134, 100))
