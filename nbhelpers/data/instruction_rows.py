"""From the columns of a data set to rows: which column asks, which answers, what is refused."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nbhelpers.data.files import (
    Fault,
    Record,
    RowReader,
    check_text,
    is_nothing,
    listed,
    named,
    shorten,
    tell_unread,
)
from nbhelpers.data.findings import Findings
from nbhelpers.data.languages import whole
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
SYSTEMS = ("system", "system_prompt")
HISTORY = "history"  # pairs of a question and its answer, as LLaMA-Factory writes them
CHATS = ("messages", "conversations")
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
}
_READ = {*QUESTIONS, *ANSWERS, *INPUTS, *SYSTEMS, *CHATS, HISTORY}
_READ |= {"prompt", "completion", "text", "code", "test_list"}
MAX_CHARACTERS = 1_000_000  # of one text: far beyond any context length here
MAX_ID_CHARACTERS = 1000
MIN_ANSWER_IN_PROMPT = 20  # characters; a shorter answer may stand in its question by chance
EMPTY_WORDS = ("nan", "none", "null")  # what a missing value became when it was written as text


class Form(NamedTuple):
    """Which columns are read, by the names that the file gives them."""

    kind: Literal["instruction", "completion", "chat", "mbpp"]
    question: str
    answer: str = ""
    input: str = ""
    system: str = ""
    history: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in use, the optional ones last."""
        names = (self.question, self.answer, self.input, self.system, self.history)
        return tuple(name for name in names if name)

    @property
    def is_plain(self) -> bool:
        """Whether the columns have the names that need no explanation."""
        names = {name.lower() for name in (self.question, self.answer, self.input) if name}
        return self.kind in ("chat", "mbpp") or names <= {
            *("instruction", "input", "output", "prompt", "completion")
        }


class PlacedRow(NamedTuple):
    """A row that can be used, its id, where it stands, and its prompt once it has a template.

    Rows of one `task` belong together; `task_id` is MBPP's own.
    """

    row: Row
    id: str
    file: str
    line: int
    task_id: int | None = None
    task: str = ""
    prompt: str = ""


def find_form(columns: Collection[str]) -> Form | str:
    """The form that these columns have, or why none or more than one fits.

    >>> find_form(["instruction", "input", "output", "prompt"])
    Form(kind='instruction', question='instruction', answer='output', input='input', system='', \
history='')
    >>> find_form(["question", "response", "answer"])
    'response and answer could each be the answer'
    """
    names: dict[str, str] = {}
    for column in columns:
        name = str(column).strip().lower()
        if names.setdefault(name, str(column)) != str(column) and name in _READ:
            return f"{names[name]!r} and {column!r} are two columns of one name"
    form = _form(names)
    if isinstance(form, str) or form.kind in ("completion", "mbpp"):
        return form
    systems = [names[n] for n in SYSTEMS if n in names][:1]
    history = names.get(HISTORY, "") if form.kind == "instruction" else ""
    return form._replace(system="".join(systems), history=history)


def _form(names: Mapping[str, str]) -> Form | str:
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


class InstructionReader(RowReader[PlacedRow, Form]):
    """Turns the records of a data set into rows, split by split."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self.forms: dict[Form, Record] = {}  # form -> where it was first met
        self.has_tasks = False
        self._places: dict[str, str] = {}  # of each id of a split

    def choose(self, names: tuple[str, ...], record: Record) -> Form | str:
        """The form of these columns, or why none fits."""
        form = find_form(names)
        if isinstance(form, Form):
            self.forms.setdefault(form, record)
        return form

    def names(self, columns: Form) -> Collection[str]:
        """What the form reads, ids, and the tests of MBPP."""
        return {*columns.columns, "id", "task_id", *(["test_list"] * (columns.kind == "mbpp"))}

    def lack(self, record: Record, why: str, *, is_alone: bool) -> str:
        """The columns that are there, and those that are read."""
        there = f"the columns are {named(record.values)}"
        if not is_alone:
            return f"{why + '; ' if why else ''}{there}; read are {' | '.join(FORMS_READ)}"
        form = next(iter(self.forms))
        lack = [n for n in (form.question, form.answer) if n and n not in record.values]
        return f"{'no ' + ' and no '.join(lack) if lack else why}; {there}"

    def make(self, record: Record, columns: Form) -> PlacedRow:
        """The row of a record with its id and its place; what it loses is noted."""
        file, line, values = record
        row, n_after = make_row(values, columns)
        note = self.findings.add
        if n_after:
            note("turns_after_answer", file, line, f"{n_after} turns")
        if any("\r" in str(values.get(name, "")) for name in columns.columns):
            note("crlf_text", file, line)
        optional = (columns.input, columns.system)
        if words := [name for name in optional if name and is_empty_word(values.get(name))]:
            note("empty_words", file, line, f"{', '.join(words)}: {values[words[0]]}", n=len(words))
        for name, text in ((columns.question, row.instruction), (columns.answer, row.answer)):
            if is_empty_word(text):
                note("empty_word_read", file, line, f"{name or columns.question}: {text}")
        task = whole(values.get("task_id"))
        self.has_tasks = self.has_tasks or bool(task)
        return PlacedRow(
            row=row,
            id=self._id(values.get("id"), task, f"{file}:{line}"),
            file=file,
            line=line,
            task_id=int(task) if columns.kind == "mbpp" and task.isdecimal() else None,
            task=task,
        )

    def _id(self, value: Any, task: str, place: str) -> str:
        """The row's own id, which stands once; else the first row of a task has that one's."""
        own = str(value) if type(value) in (int, str) else ""
        id_ = own or (task if task not in self._places else "") or place
        check_id(id_)
        if id_ in self._places:
            raise Fault("repeated_id", f"id {shorten(id_)} stands at {self._places[id_]} too")
        self._places[id_] = place
        return id_

    def end_split(self) -> list[PlacedRow]:
        """The rows since the last split; prompts that hold the answer are judged.

        A prompt that ends with or holds its answer, blanks set aside, teaches nothing and leaks
        the test. Prompts made for training stop the run where most of them do; a question may hold
        its answer on purpose, and is counted.
        """
        rows, self.rows, self._places = self.rows, [], {}
        leaking = [placed for placed in rows if _holds_answer(placed.row)]
        if leaking:
            first, total = leaking[0], len(rows)
            if first.row.form == "completion" and len(leaking) > total / 2:
                detail = f"{len(leaking):,} of {total:,} prompts, the first at row {first.line}"
                self.findings.add("answer_in_prompt", first.file, first.line, detail)
            else:
                self.findings.add("answer_in_question", first.file, first.line, n=len(leaking))
        return rows

    def finish(self, source: str) -> None:
        """Judge the columns of all splits: mixed forms, what each is read as, what nobody read."""
        kinds = {form.kind: record for form, record in reversed(self.forms.items())}
        if len(kinds) > 1:
            places = [f"{kind} at {first.file}:{first.line}" for kind, first in kinds.items()]
            self.findings.add("mixed_columns", source, None, ", ".join(reversed(places)))
        for form, first in self.forms.items():
            if not form.is_plain:
                read = f"{form.question} as the question, {form.answer} as the answer"
                read += f", {form.input} as the input" if form.input else ""
                self.findings.add("columns_read", first.file, first.line, read)
            parts = [f"{form.system} as the system text"] * bool(form.system)
            parts += [f"{form.history} as earlier turns"] * bool(form.history)
            parts += ["task_id: rows of one stay in one split"] * self.has_tasks
            if parts:
                self.findings.add("more_columns", first.file, first.line, ", ".join(parts))
        tell_unread(self.unread, source, self.findings)


def _holds_answer(row: Row) -> bool:
    answer = " ".join(row.answer.split())
    return len(answer) >= MIN_ANSWER_IN_PROMPT and answer in " ".join(row.question.split())


def check_id(id_: str) -> None:
    """Refuse a text that cannot stand in files and reports as an id."""
    check_text(id_, f"the id {shorten(id_)}")
    if len(id_) > MAX_ID_CHARACTERS:
        raise Fault("bad_text", f"an id has {len(id_):,} characters, more than {MAX_ID_CHARACTERS}")
    if not id_.isprintable():
        raise Fault("bad_text", f"the id {shorten(id_)} holds control characters")


def make_row(values: Mapping[str, Any], form: Form) -> tuple[Row, int]:
    """The row of a record, line ends written plainly, and how many turns after it are left out.

    What a system column and a history say stands before the question, as turns.

    >>> make_row({"prompt": "1 + 1 = ", "completion": "2"}, Form("completion", "prompt",
    ...     "completion"))[0].answer
    '2'

    Raises:
        Fault: Something is missing, empty or no text.
    """
    system = optional_text(values, form.system)
    if form.kind == "chat":
        return _chat_row(_turns(values.get(form.question), form.question), form.question, system)
    texts = {name: _text(values, name) for name in (form.question, form.answer)}
    for name, kind in ((form.question, "empty_question"), (form.answer, "empty_answer")):
        if not texts[name].strip():
            raise Fault(kind, f"{name} is {'white space only' if texts[name] else 'empty'}")
    input_ = optional_text(values, form.input)
    question, answer = texts[form.question], texts[form.answer]
    if form.kind == "completion":
        return Row("completion", answer, question, input_), 0
    if form.kind == "mbpp":
        tests = values.get("test_list")
        tests = [] if is_nothing(tests) else listed(tests)
        if tests is None or not all(isinstance(test, str) for test in tests):
            raise Fault("not_text", "test_list is no list of texts")
        question = mbpp_question(question, answer, tests)
    row = Row("instruction", answer, question, input_)
    turns = _history(values.get(form.history), form.history)
    if not turns and not system.strip():
        return row, 0
    turns = [*turns, ("user", row.question)]
    return Row("chat", answer, turns=tuple(_after_system(turns, system))), 0


def optional_text(values: Mapping[str, Any], name: str) -> str:
    """The text in a column that may be empty or not there."""
    value = values.get(name) if name else None
    return "" if is_nothing(value) or is_empty_word(value) else plain_text(value, name)


def is_empty_word(value: object) -> bool:
    """Whether a cell says in a word that it is empty.

    >>> is_empty_word("NaN"), is_empty_word("none of these")
    (True, False)
    """
    return isinstance(value, str) and value.strip().lower() in EMPTY_WORDS


def _after_system(turns: Sequence[Turn], system: str) -> list[Turn]:
    """A conversation under a system text; one of its own follows in the same turn."""
    if not system.strip():
        return list(turns)
    own = turns[0][1] if turns and turns[0][0] == "system" else None
    rest = turns if own is None else turns[1:]
    return [("system", system if own in (None, system) else f"{system}\n\n{own}"), *rest]


def _history(value: Any, name: str) -> list[Turn]:
    """Earlier questions and answers: pairs of texts, or turns."""
    if is_nothing(value) or is_empty_word(value):
        return []
    rounds = listed(value)
    if rounds is None:
        raise Fault("bad_turns", f"{name} is {type(value).__name__}: {shorten(value)}")
    if any(isinstance(one, dict) for one in rounds):
        return _turns(rounds, name)
    turns: list[Turn] = []
    for number, one in enumerate(rounds, 1):
        where = f"round {number} of {name}"
        if not isinstance(one, list) or len(one) != 2:
            raise Fault("bad_turns", f"{where} is no question with its answer: {shorten(one)}")
        turns += zip(("user", "assistant"), (plain_text(text, where) for text in one), strict=True)
    return turns


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
    check_text(value, name)
    return value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value


def _chat_row(turns: list[Turn], name: str, system: str) -> tuple[Row, int]:
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=None)
    if last is None:
        raise Fault("empty_answer", f"{name} has no turn of the assistant")
    before, answer = turns[:last], turns[last][1]
    if not any(role == "user" and text.strip() for role, text in before):
        raise Fault("empty_question", f"{name} has no turn of the user before the answer")
    if not answer.strip():
        raise Fault("empty_answer", f"turn {last + 1} of {name} is empty")
    row = Row("chat", answer, turns=tuple(_after_system(before, system)))
    return row, len(turns) - 1 - last


def _turns(value: Any, name: str) -> list[Turn]:
    if value is None:
        raise Fault("null_value", f"{name} is null")
    if (turns := listed(value)) is None:
        raise Fault("bad_turns", f"{name} is {type(value).__name__}: {shorten(value)}")
    return [_turn(turn, f"turn {number} of {name}") for number, turn in enumerate(turns, 1)]


def _turn(turn: Any, where: str) -> Turn:
    if not isinstance(turn, dict):
        raise Fault("bad_turns", f"{where} is {type(turn).__name__}: {shorten(turn)}")
    raw = turn.get("from") if turn.get("role") is None else turn["role"]  # `datasets` fills both
    role = ROLES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if role is None:
        raise Fault("bad_turns", f"{where}: {shorten(raw)} is no role that is read")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise Fault("bad_turns", f"{where} calls a tool, which a text cannot show")
    content = turn.get("value") if turn.get("content") is None else turn["content"]
    if isinstance(content, list):  # parts of one text
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        if all(isinstance(part, str) for part in parts):
            content = "".join(parts)
    return role, plain_text(content, f"{where} (content)")
