"""From the columns of a data set to rows: which column asks, which answers, what is refused."""

from __future__ import annotations

import ast
import builtins
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nbhelpers.data.pair_sources import Fault, shorten
from nbhelpers.data.problems import EXAMPLES_SHOWN, ProblemLog
from nbhelpers.data.templates import Row, Turn

# ------------------------------------------------------------------------------------------------
# How a test problem is asked: the words around the data set's own text.


HUMANEVAL_QUESTION = (
    "Complete this Python function so that it does what its docstring says. "
    "Write out the whole function."
)
_OWN_NAMES = frozenset(dir(builtins))


def called_name(test: str, reference: str = "") -> str | None:
    """Name of the function that a test calls: one that the reference defines, else the outermost.

    A reference may define a name that Python has too (`sum`).

    >>> called_name("assert set(similar((1, 2))) == {1}", "def similar(x): return x")
    'similar'
    >>> called_name("assert math.isclose(area(2), 4)"), called_name("assert True")
    ('area', None)
    """
    called, defined = _called(test), _defined(reference)
    own = [name for name in called if name in defined]
    return next(iter([*own, *(name for name in called if name not in _OWN_NAMES)]), None)


def _called(source: str) -> list[str]:
    tree = _parse(source)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    return [call.id for call in calls if isinstance(call, ast.Name)]


def _defined(source: str) -> set[str]:
    tree = _parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)} if tree else set()
    return names


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def mbpp_question(text: str, reference: str, tests: Sequence[str]) -> str:
    """MBPP's question with the function's name and its first test.

    The text alone names no function, and the tests call one. The authors show all tests; here the
    first one is shown, which tells the name, the order of the arguments and the type of the result,
    and the others stay hidden.

    Source: Austin et al., "Program Synthesis with Large Language Models", arXiv 2108.07732,
    section 2.1 (tests in the prompt).

    >>> print(mbpp_question("Write a function to double.", "", ["assert twice(2) == 4"]))
    Write a function to double.
    Name it `twice`. It has to pass this test:
    assert twice(2) == 4
    """
    text = text.strip()
    test = next((test.strip() for test in tests if test.strip()), "")
    name = called_name(test, reference)
    if not name:
        return text
    return f"{text}\nName it `{name}`. It has to pass this test:\n{test}"


# ------------------------------------------------------------------------------------------------
# From the columns of a data set to rows: which column asks, which answers, what cannot be used.


FORMS_READ = (
    "instruction (question, query, problem), input (context), output (answer, response, solution)",
    "prompt, completion",
    "messages or conversations",
    "text, code, test_list (MBPP)",
)
QUESTIONS = ("instruction", "question", "query", "problem")
ANSWERS = ("output", "response", "answer", "solution")
INPUTS = ("input", "context")
CHATS = ("messages", "conversations")
IDS = ("id", "task_id")
ROLES = {
    **dict.fromkeys(("system",), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
}
_READ = {*QUESTIONS, *ANSWERS, *INPUTS, *CHATS, "prompt", "completion", "text", "code", "test_list"}
MAX_CHARACTERS = 1_000_000  # of one text: far beyond any context length here
MAX_ID_CHARACTERS = 1000
MIN_ANSWER_IN_PROMPT = 20  # characters; a shorter answer may stand in its question by chance


class Form(NamedTuple):
    """Which columns are read, by the names that the file gives them."""

    kind: Literal["instruction", "completion", "chat", "mbpp"]
    question: str
    answer: str = ""
    input: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in use."""
        return tuple(name for name in (self.question, self.input, self.answer) if name)

    @property
    def is_plain(self) -> bool:
        """Whether the columns have the names that need no explanation."""
        names = {name.lower() for name in self.columns}
        return self.kind in ("chat", "mbpp") or names <= {
            *("instruction", "input", "output", "prompt", "completion")
        }


class PlacedRow(NamedTuple):
    """A row that can be used, its id and where it stands."""

    row: Row
    id: str
    file: str
    line: int
    task_id: int | None = None  # of MBPP


def find_form(columns: Collection[str]) -> Form | str:
    """The form that these columns have, or why none or more than one fits.

    >>> find_form(["instruction", "input", "output", "prompt"])
    Form(kind='instruction', question='instruction', answer='output', input='input')
    >>> find_form(["question", "response", "answer"])
    'response and answer could each be the answer'
    """
    names: dict[str, str] = {}
    for column in columns:
        name = str(column).strip().lower()
        if names.setdefault(name, str(column)) != str(column) and name in _READ:
            return f"{names[name]!r} and {column!r} are two columns of one name"
    exact = list(_exact_forms(names))
    if len(exact) > 1:
        return (
            f"{' and '.join(', '.join(schema.columns) for schema in exact)} could each be the row"
        )
    if exact:
        return exact[0]
    questions = [names[n] for n in QUESTIONS if n in names]
    answers = [names[n] for n in (*ANSWERS, "completion") if n in names]
    if not questions and "prompt" in names and len(answers) == 1:
        return Form("completion", names["prompt"], answers[0])
    for what, candidates in (("question", questions), ("answer", answers)):
        if len(candidates) > 1:
            return f"{' and '.join(candidates)} could each be the {what}"
    inputs = _inputs(names)
    if not questions or not answers:
        return ""
    return inputs if isinstance(inputs, str) else Form("instruction", *questions, *answers, *inputs)


def _exact_forms(names: Mapping[str, str]) -> list[Form]:
    """Forms whose own column names are all there, the more special ones first."""
    schemas = [Form("chat", names[n]) for n in CHATS if n in names]
    if "instruction" in names and "output" in names:
        inputs = [names[n] for n in INPUTS if n in names][:1]  # `input` before `context`
        schemas.append(Form("instruction", names["instruction"], names["output"], *inputs))
    if "prompt" in names and "completion" in names:
        schemas.append(Form("completion", names["prompt"], names["completion"]))
    if "code" in names and "test_list" in names and ("text" in names) != ("prompt" in names):
        question = names.get("text") or names["prompt"]
        schemas.append(Form("mbpp", question, names["code"]))
    elif not schemas and "text" in names and "code" in names:
        schemas.append(Form("instruction", names["text"], names["code"]))
    return schemas


def _inputs(names: Mapping[str, str]) -> list[str] | str:
    columns = [names[n] for n in INPUTS if n in names]
    return f"{' and '.join(columns)} could each be the input" if len(columns) > 1 else columns


class RowReader:
    """Turns the records of one split into rows; what cannot be used goes to the log."""

    def __init__(self, log: ProblemLog) -> None:
        self.log = log
        self.rows: list[PlacedRow] = []
        self.forms: dict[Form, tuple[str, int]] = {}  # form -> where it was first met
        self._form_of: dict[frozenset[str], Form | str] = {}
        self._unknown: list[tuple[str, int, str, tuple[str, ...]]] = []
        self._n_unknown = 0
        self._ids: dict[str, tuple[str, int]] = {}

    def add(self, record: Any, file: str, line: int) -> None:
        """Take one record."""
        if not isinstance(record, dict):
            detail = f"it is {type(record).__name__}: {shorten(record)}"
            self.log.add("not_a_row", file, line, detail)
            return
        schema = self._find(record)
        if isinstance(schema, str):
            self._n_unknown += 1
            if self._n_unknown <= EXAMPLES_SHOWN:
                self._unknown.append((file, line, schema, tuple(map(str, record))))
            return
        self.forms.setdefault(schema, (file, line))
        row = make_row(record, schema)
        if isinstance(row, Fault):
            self.log.add(row.kind, file, line, row.detail)
        else:
            self._keep(row, record, schema, file, line)

    def finish(self, file: str) -> None:
        """Judge what needs all records: unknown or mixed columns, prompts that hold the answer."""
        self._tell_unknown(file)
        kinds = {schema.kind: place for schema, place in self.forms.items()}
        if len(kinds) > 1:
            places = [f"{kind} at {where}:{line}" for kind, (where, line) in kinds.items()]
            self.log.add("mixed_columns", file, None, ", ".join(places))
        self._tell_names(file)
        self._check_prompts(file)

    def _tell_unknown(self, file: str) -> None:
        """Rows of no form: one cause where that is all there is, else each by its place."""
        if self._unknown and not self.forms:
            where, line, why, columns = self._unknown[0]
            detail = f"{why + '; ' if why else ''}the columns are {named(columns)}"
            self.log.add("unknown_columns", where, line, f"{detail}; read are {forms_read()}")
            return
        for where, line, why, columns in self._unknown:
            schema = next(iter(self.forms))
            lack = [
                name for name in (schema.question, schema.answer) if name and name not in columns
            ]
            detail = f"no {' and no '.join(lack)}" if lack else why
            detail += f"; the columns are {named(columns)}"
            self.log.add("null_value", where, line, detail)
        if self._n_unknown > len(self._unknown):
            self.log.add("null_value", file, n=self._n_unknown - len(self._unknown))

    def _find(self, record: Mapping[str, Any]) -> Form | str:
        keys = frozenset(map(str, record))
        if keys not in self._form_of:
            self._form_of[keys] = find_form([str(key) for key in record])
        return self._form_of[keys]

    def _keep(
        self, row: Row, record: Mapping[str, Any], schema: Form, file: str, line: int
    ) -> None:
        if n := _turns_after(record.get(schema.question)) if schema.kind == "chat" else 0:
            self.log.add("turns_after_answer", file, line, f"{n} turns")
        if any("\r" in str(record.get(name, "")) for name in schema.columns):
            self.log.add("crlf_text", file, line)
        raw_id = next((record[n] for n in IDS if type(record.get(n)) in (int, str)), None)
        id_ = str(raw_id) if raw_id not in (None, "") else f"{file}:{line}"
        if fault := _id_fault(id_):
            self.log.add("bad_text", file, line, fault)
            return
        if id_ in self._ids:
            first, at = self._ids[id_]
            self.log.add("repeated_id", file, line, f"id {shorten(id_)} stands at {first}:{at} too")
            return
        self._ids[id_] = file, line
        task_id = record.get("task_id") if schema.kind == "mbpp" else None
        number = task_id if type(task_id) is int else None
        self.rows.append(PlacedRow(row, id_, file, line, number))

    def _tell_names(self, file: str) -> None:
        for schema, (where, line) in self.forms.items():
            if not schema.is_plain:
                read = f"{schema.question} as the question, {schema.answer} as the answer"
                extra = f", {schema.input} as the input" if schema.input else ""
                self.log.add("columns_read", where or file, line, read + extra)

    def _check_prompts(self, file: str) -> None:
        """A prompt that ends with or holds its answer teaches nothing and leaks the test.

        Blanks are set aside. Prompts made for training stop the run where most of them do; a
        question may hold its answer on purpose, and is counted.
        """
        leaking = [placed for placed in self.rows if _holds_answer(placed.row)]
        if not leaking:
            return
        first, total = leaking[0], len(self.rows)
        where = first.file or file
        if first.row.form == "completion" and len(leaking) > total / 2:
            detail = f"{len(leaking):,} of {total:,} prompts, the first at row {first.line}"
            self.log.add("answer_in_prompt", where, first.line, detail)
        else:
            self.log.add("answer_in_question", where, first.line, n=len(leaking))


def _holds_answer(row: Row) -> bool:
    answer = " ".join(row.answer.split())
    if len(answer) < MIN_ANSWER_IN_PROMPT:
        return False
    return answer in " ".join(row.question.split())


def _id_fault(id_: str) -> str:
    """Why a text cannot stand in files and reports as an id; empty if it can."""
    try:
        id_.encode()
    except UnicodeEncodeError:
        return f"the id {shorten(id_)} holds a lone surrogate"
    if len(id_) > MAX_ID_CHARACTERS:
        return f"an id has {len(id_):,} characters, more than {MAX_ID_CHARACTERS}"
    return "" if id_.isprintable() else f"the id {shorten(id_)} holds control characters"


def forms_read() -> str:
    """The forms that are read, as a sentence says them."""
    return " | ".join(FORMS_READ)


def named(columns: Collection[Any], limit: int = 12) -> str:
    """Names of columns, not too many of them."""
    names = [shorten(c, 40) if not str(c).isidentifier() else str(c) for c in columns]
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "") or "none"


def make_row(record: Mapping[str, Any], schema: Form) -> Row | Fault:
    """The row of a record, line ends written plainly, or what is wrong with it.

    >>> make_row({"prompt": "1 + 1 = ", "completion": "2"}, Form("completion", "prompt",
    ...     "completion")).answer
    '2'
    >>> make_row({"instruction": "Add.", "output": " "}, Form("instruction", "instruction",
    ...     "output"))
    Fault(kind='empty_answer', detail='output is white space only', id_=None)
    """
    if schema.kind == "chat":
        return _chat_row(record.get(schema.question), schema.question)
    texts: dict[str, str] = {}
    for name in (schema.question, schema.answer):
        value = _text(record, name)
        if isinstance(value, Fault):
            return value
        texts[name] = value
    for name, kind in ((schema.question, "empty_question"), (schema.answer, "empty_answer")):
        if not texts[name].strip():
            return Fault(kind, f"{name} is {'white space only' if texts[name] else 'empty'}")
    extra = record.get(schema.input) if schema.input else None
    input_ = _text(record, schema.input) if extra is not None else ""
    if isinstance(input_, Fault):
        return input_
    question, answer = texts[schema.question], texts[schema.answer]
    if schema.kind == "mbpp":
        question = mbpp_question(question, answer, _tests(record.get("test_list")))
    kind: Literal["completion", "instruction"]
    kind = "completion" if schema.kind == "completion" else "instruction"
    return Row(kind, answer, question, input_)


def _tests(value: Any) -> list[str]:
    return [test for test in value if isinstance(test, str)] if isinstance(value, list) else []


def _text(record: Mapping[str, Any], name: str) -> str | Fault:
    if name not in record:
        return Fault("null_value", f"no {name}; the columns are {named(record)}")
    return plain_text(record[name], name)


def plain_text(value: Any, name: str) -> str | Fault:
    r"""A text with plain line ends, or what is wrong with it.

    >>> plain_text("a\r\nb", "output")
    'a\nb'
    """
    if value is None:
        return Fault("null_value", f"{name} is null")
    if not isinstance(value, str):
        return Fault("not_text", f"{name} is {type(value).__name__}: {shorten(value)}")
    if len(value) > MAX_CHARACTERS:
        return Fault("long_text", f"{name} has {len(value):,} characters")
    if "\0" in value:
        return Fault("bad_text", f"{name} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return Fault("bad_text", f"{name}: lone surrogate at character {error.start + 1}")
    return value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value


def _chat_row(value: Any, name: str) -> Row | Fault:
    turns = _turns(value, name)
    if isinstance(turns, Fault):
        return turns
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=None)
    if last is None:
        return Fault("empty_answer", f"{name} has no turn of the assistant")
    before, answer = turns[:last], turns[last][1]
    if not any(role == "user" and text.strip() for role, text in before):
        return Fault("empty_question", f"{name} has no turn of the user before the answer")
    if not answer.strip():
        return Fault("empty_answer", f"turn {last + 1} of {name} is empty")
    return Row("chat", answer, turns=tuple(before))


def _turns(value: Any, name: str) -> list[Turn] | Fault:
    value = _listed(value)
    if value is None:
        return Fault("null_value", f"{name} is null")
    if not isinstance(value, list):
        return Fault("bad_turns", f"{name} is {type(value).__name__}: {shorten(value)}")
    turns: list[Turn] = []
    for number, turn in enumerate(value, 1):
        parsed = _turn(turn, f"turn {number} of {name}")
        if isinstance(parsed, Fault):
            return parsed
        turns.append(parsed)
    return turns


def _turns_after(value: Any) -> int:
    """Turns that stand after the last answer."""
    turns = _turns(value, "")
    if isinstance(turns, Fault):
        return 0
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=-1)
    return len(turns) - 1 - last


def _listed(value: Any) -> Any:
    """A conversation that stands as JSON text in a cell."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _turn(turn: Any, where: str) -> Turn | Fault:
    if not isinstance(turn, dict):
        return Fault("bad_turns", f"{where} is {type(turn).__name__}: {shorten(turn)}")
    raw = turn.get("role", turn.get("from"))
    role = ROLES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if role is None:
        return Fault("bad_turns", f"{where}: {shorten(raw)} is no role that is read")
    if turn.get("tool_calls") or turn.get("function_call"):
        return Fault("bad_turns", f"{where} calls a tool, which a text cannot show")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):  # parts of one text
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        if all(isinstance(part, str) for part in parts):
            content = "".join(parts)
    text = plain_text(content, f"{where} (content)")
    return text if isinstance(text, Fault) else (role, text)
