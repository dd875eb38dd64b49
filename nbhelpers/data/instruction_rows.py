"""From the columns of a data set to rows: which column asks, which answers, what is refused."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nbhelpers.data.files import Fault, Record, shorten, usable
from nbhelpers.data.findings import EXAMPLES_SHOWN, Findings
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
    calls = [node.func for node in _nodes(test) if isinstance(node, ast.Call)]
    called = [call.id for call in calls if isinstance(call, ast.Name)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in _nodes(reference) if isinstance(node, kinds)}
    own = [name for name in called if name in defined]
    return next(iter([*own, *(name for name in called if name not in _OWN_NAMES)]), None)


def _nodes(source: str) -> list[ast.AST]:
    """All nodes of a program, none of a text that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


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
    exact = _exact_forms(names)
    if len(exact) > 1:
        return f"{' and '.join(', '.join(form.columns) for form in exact)} could each be the row"
    if exact:
        return exact[0]
    questions = [names[n] for n in QUESTIONS if n in names]
    answers = [names[n] for n in (*ANSWERS, "completion") if n in names]
    if not questions and "prompt" in names and len(answers) == 1:
        return Form("completion", names["prompt"], answers[0])
    for what, candidates in (("question", questions), ("answer", answers)):
        if len(candidates) > 1:
            return f"{' and '.join(candidates)} could each be the {what}"
    if not questions or not answers:
        return ""
    inputs = [names[n] for n in INPUTS if n in names]
    if len(inputs) > 1:
        return f"{' and '.join(inputs)} could each be the input"
    return Form("instruction", *questions, *answers, *inputs)


def _exact_forms(names: Mapping[str, str]) -> list[Form]:
    """Forms whose own column names are all there, the more special ones first."""
    forms = [Form("chat", names[n]) for n in CHATS if n in names]
    if "instruction" in names and "output" in names:
        inputs = [names[n] for n in INPUTS if n in names][:1]  # `input` before `context`
        forms.append(Form("instruction", names["instruction"], names["output"], *inputs))
    if "prompt" in names and "completion" in names:
        forms.append(Form("completion", names["prompt"], names["completion"]))
    if "code" in names and "test_list" in names and ("text" in names) != ("prompt" in names):
        question = names.get("text") or names["prompt"]
        forms.append(Form("mbpp", question, names["code"]))
    elif not forms and "text" in names and "code" in names:
        forms.append(Form("instruction", names["text"], names["code"]))
    return forms


class RowReader:
    """Turns the records of one split into rows; what cannot be used is a finding."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.rows: list[PlacedRow] = []
        self.forms: dict[Form, Record] = {}  # form -> where it was first met
        self._form_of: dict[frozenset[str], Form | str] = {}
        self._unknown: list[tuple[Record, str]] = []  # and why no form fits
        self._n_unknown = 0
        self._places: dict[str, str] = {}  # of each id

    def read(self, records: Iterable[Record]) -> None:
        """Take the records of a file."""
        self.rows += filter(None, usable(records, self._row, self.findings))

    def _row(self, record: Record) -> PlacedRow | None:
        keys = frozenset(map(str, record.values))
        if keys not in self._form_of:
            self._form_of[keys] = find_form([str(key) for key in record.values])
        form = self._form_of[keys]
        if isinstance(form, str):
            self._n_unknown += 1
            if self._n_unknown <= EXAMPLES_SHOWN:
                self._unknown.append((record, form))
            return None
        self.forms.setdefault(form, record)
        return self._placed(make_row(record.values, form), record, form)

    def _placed(self, row: Row, record: Record, form: Form) -> PlacedRow:
        file, line, values = record
        if n := _turns_after_answer(values[form.question]) if form.kind == "chat" else 0:
            self.findings.add("turns_after_answer", file, line, f"{n} turns")
        if any("\r" in str(values.get(name, "")) for name in form.columns):
            self.findings.add("crlf_text", file, line)
        raw_id = next((values[n] for n in IDS if type(values.get(n)) in (int, str)), None)
        id_ = str(raw_id) if raw_id not in (None, "") else f"{file}:{line}"
        _check_id(id_)
        if id_ in self._places:
            raise Fault("repeated_id", f"id {shorten(id_)} stands at {self._places[id_]} too")
        self._places[id_] = f"{file}:{line}"
        task_id = values.get("task_id") if form.kind == "mbpp" else None
        return PlacedRow(row, id_, file, line, task_id if type(task_id) is int else None)

    def finish(self, file: str) -> None:
        """Judge what needs all records: unknown or mixed columns, prompts that hold the answer."""
        self._tell_unknown(file)
        kinds = {form.kind: record for form, record in self.forms.items()}
        if len(kinds) > 1:
            places = [f"{kind} at {first.file}:{first.line}" for kind, first in kinds.items()]
            self.findings.add("mixed_columns", file, None, ", ".join(places))
        for form, first in self.forms.items():
            if not form.is_plain:
                read = f"{form.question} as the question, {form.answer} as the answer"
                read += f", {form.input} as the input" if form.input else ""
                self.findings.add("columns_read", first.file, first.line, read)
        self._check_prompts()

    def _tell_unknown(self, file: str) -> None:
        """Rows of no form: one cause where that is all there is, else each by its place."""
        if self._unknown and not self.forms:
            record, why = self._unknown[0]
            detail = f"{why + '; ' if why else ''}the columns are {named(record.values)}"
            read = " | ".join(FORMS_READ)
            self.findings.add(
                "unknown_columns", record.file, record.line, f"{detail}; read are {read}"
            )
            return
        for record, why in self._unknown:
            form = next(iter(self.forms))
            lack = [n for n in (form.question, form.answer) if n and n not in record.values]
            detail = f"no {' and no '.join(lack)}" if lack else why
            detail += f"; the columns are {named(record.values)}"
            self.findings.add("null_value", record.file, record.line, detail)
        if self._n_unknown > len(self._unknown):
            self.findings.add("null_value", file, n=self._n_unknown - len(self._unknown))

    def _check_prompts(self) -> None:
        """A prompt that ends with or holds its answer teaches nothing and leaks the test.

        Blanks are set aside. Prompts made for training stop the run where most of them do; a
        question may hold its answer on purpose, and is counted.
        """
        leaking = [placed for placed in self.rows if _holds_answer(placed.row)]
        if not leaking:
            return
        first, total = leaking[0], len(self.rows)
        if first.row.form == "completion" and len(leaking) > total / 2:
            detail = f"{len(leaking):,} of {total:,} prompts, the first at row {first.line}"
            self.findings.add("answer_in_prompt", first.file, first.line, detail)
        else:
            self.findings.add("answer_in_question", first.file, first.line, n=len(leaking))


def _holds_answer(row: Row) -> bool:
    answer = " ".join(row.answer.split())
    return len(answer) >= MIN_ANSWER_IN_PROMPT and answer in " ".join(row.question.split())


def _check_id(id_: str) -> None:
    """Refuse a text that cannot stand in files and reports as an id."""
    if any("\ud800" <= sign <= "\udfff" for sign in id_):
        raise Fault("bad_text", f"the id {shorten(id_)} holds a lone surrogate")
    if len(id_) > MAX_ID_CHARACTERS:
        raise Fault("bad_text", f"an id has {len(id_):,} characters, more than {MAX_ID_CHARACTERS}")
    if not id_.isprintable():
        raise Fault("bad_text", f"the id {shorten(id_)} holds control characters")


def named(columns: Collection[Any], limit: int = 12) -> str:
    """Names of columns, not too many of them."""
    names = [shorten(c, 40) if not str(c).isidentifier() else str(c) for c in columns]
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "") or "none"


def make_row(values: Mapping[str, Any], form: Form) -> Row:
    """The row of a record, line ends written plainly.

    >>> make_row({"prompt": "1 + 1 = ", "completion": "2"}, Form("completion", "prompt",
    ...     "completion")).answer
    '2'

    Raises:
        Fault: Something is missing, empty or no text.
    """
    if form.kind == "chat":
        return _chat_row(values.get(form.question), form.question)
    texts = {name: _text(values, name) for name in (form.question, form.answer)}
    for name, kind in ((form.question, "empty_question"), (form.answer, "empty_answer")):
        if not texts[name].strip():
            raise Fault(kind, f"{name} is {'white space only' if texts[name] else 'empty'}")
    has_input = form.input and values.get(form.input) is not None
    input_ = _text(values, form.input) if has_input else ""
    question, answer = texts[form.question], texts[form.answer]
    if form.kind == "completion":
        return Row("completion", answer, question, input_)
    if form.kind == "mbpp":
        tests = values.get("test_list")
        tests = [test for test in tests if isinstance(test, str)] if type(tests) is list else []
        question = mbpp_question(question, answer, tests)
    return Row("instruction", answer, question, input_)


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        raise Fault("null_value", f"no {name}; the columns are {named(values)}")
    return plain_text(values[name], name)


def plain_text(value: Any, name: str) -> str:
    r"""A text with plain line ends.

    >>> plain_text("a\r\nb", "output")
    'a\nb'

    Raises:
        Fault: It is no text, far too long, or cannot be stored.
    """
    if value is None:
        raise Fault("null_value", f"{name} is null")
    if not isinstance(value, str):
        raise Fault("not_text", f"{name} is {type(value).__name__}: {shorten(value)}")
    if len(value) > MAX_CHARACTERS:
        raise Fault("long_text", f"{name} has {len(value):,} characters")
    if "\0" in value:
        raise Fault("bad_text", f"{name} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        detail = f"{name}: lone surrogate at character {error.start + 1}"
        raise Fault("bad_text", detail) from None
    return value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value


def _chat_row(value: Any, name: str) -> Row:
    turns = _turns(value, name)
    last = _last_answer(turns)
    if last is None:
        raise Fault("empty_answer", f"{name} has no turn of the assistant")
    before, answer = turns[:last], turns[last][1]
    if not any(role == "user" and text.strip() for role, text in before):
        raise Fault("empty_question", f"{name} has no turn of the user before the answer")
    if not answer.strip():
        raise Fault("empty_answer", f"turn {last + 1} of {name} is empty")
    return Row("chat", answer, turns=tuple(before))


def _last_answer(turns: Sequence[Turn]) -> int | None:
    return max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=None)


def _turns_after_answer(value: Any) -> int:
    turns = _turns(value, "")
    return len(turns) - 1 - (_last_answer(turns) or 0)


def _turns(value: Any, name: str) -> list[Turn]:
    if isinstance(value, str) and value.lstrip().startswith("["):  # JSON text in a cell
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if value is None:
        raise Fault("null_value", f"{name} is null")
    if not isinstance(value, list):
        raise Fault("bad_turns", f"{name} is {type(value).__name__}: {shorten(value)}")
    return [_turn(turn, f"turn {number} of {name}") for number, turn in enumerate(value, 1)]


def _turn(turn: Any, where: str) -> Turn:
    if not isinstance(turn, dict):
        raise Fault("bad_turns", f"{where} is {type(turn).__name__}: {shorten(turn)}")
    raw = turn.get("role", turn.get("from"))
    role = ROLES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if role is None:
        raise Fault("bad_turns", f"{where}: {shorten(raw)} is no role that is read")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise Fault("bad_turns", f"{where} calls a tool, which a text cannot show")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):  # parts of one text
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        if all(isinstance(part, str) for part in parts):
            content = "".join(parts)
    return role, plain_text(content, f"{where} (content)")
