"""Promise: rows load from every file format and form of columns; what is bad is told by place.

So is what a model's chat template cannot do with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import instruction_rows
from nbhelpers.data.findings import KINDS
from nbhelpers.errors import DataError
from tests.instruction_rows import FORMS, ROWS, WRITERS, lines, load, told, write


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    expected = load(write(tmp_path / "x" / "rows.jsonl", lines(ROWS)))
    found = load(WRITERS[name](tmp_path / name, ROWS))
    assert found.fingerprint == expected.fingerprint
    texts = {k: [(s.prompt, s.completion) for s in v] for k, v in found.splits.items()}
    assert texts == {k: [(s.prompt, s.completion) for s in v] for k, v in expected.splits.items()}
    assert {k: len(v) for k, v in texts.items()} == {"train": 30, "valid": 4, "test": 6}


def test_marks_and_line_ends_are_noted(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + lines(ROWS).replace("\n", "\r\n").encode()
    counts = load(write(tmp_path / "a.jsonl", data)).problems["counts"]
    assert counts["byte_order_mark"] == 1 and counts["crlf"] == 40
    rows = [{**row, "output": row["output"].replace("\n", "\r\n")} for row in ROWS]
    found = load(write(tmp_path / "b.jsonl", lines(rows)))
    assert found.problems["counts"]["crlf_text"] == 40
    assert not any("\r" in sample.completion for sample in found.splits["train"])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_columns_is_understood(tmp_path: Path, form: str) -> None:
    plain = [{"instruction": row["instruction"], "output": row["output"]} for row in ROWS]
    expected = load(write(tmp_path / "x" / "a.jsonl", lines(plain)))
    found = load(write(tmp_path / "a.jsonl", lines([FORMS[form](row) for row in ROWS])))
    assert found.template == "alpaca"
    assert {s.prompt: s.completion for part in found.splits.values() for s in part} == {
        s.prompt: s.completion for part in expected.splits.values() for s in part
    }
    has_other_names = form in ("question and answer", "capitals", "text and code", "dolly")
    assert ("columns_read" in found.problems["counts"]) == has_other_names
    if form == "question and answer":
        assert "question as the question, answer as the answer" in found.problems["notes"][0]


def test_prompts_of_their_own_are_used_as_they_are(tmp_path: Path) -> None:
    rows = [{"prompt": r["instruction"], "completion": r["output"]} for r in ROWS]
    found = load(write(tmp_path / "a.jsonl", lines(rows)), template="alpaca")
    sample = found.splits["train"][0]
    assert found.template == "none" and sample.prompt in {r["instruction"] for r in ROWS}
    assert found.problems["counts"]["own_prompts"] == 1


def test_the_prompt_column_that_holds_the_answer_is_never_the_prompt(tmp_path: Path) -> None:
    rows = [{**r, "prompt": f"### Instruction: {r['instruction']} {r['output']}"} for r in ROWS]
    found = load(write(tmp_path / "a.jsonl", lines(rows)))
    for part in found.splits.values():
        assert not any(sample.completion in sample.prompt for sample in part)
    own = [{"prompt": r["prompt"], "completion": r["output"]} for r in rows]
    message = told(write(tmp_path / "b.jsonl", lines(own)), on_bad_rows="drop")
    assert "the prompts hold their own answers" in message and "40 of 40 prompts" in message


BAD_LINES = [
    ('{"instruction": "x", ', "broken_json", "Expecting"),
    ("[1, 2]", "not_a_row", "it is list"),
    ('"text"', "not_a_row", "it is str"),
    ('{"instruction": "a", "output": ""}', "empty_answer", "output is empty"),
    ('{"instruction": "a", "output": " \\n"}', "empty_answer", "white space only"),
    ('{"instruction": "", "output": "b"}', "empty_question", "instruction is empty"),
    ('{"instruction": "a", "output": null}', "null_value", "output is null"),
    ('{"instruction": "a", "input": "b"}', "null_value", "no output; the columns are"),
    ('{"instruction": "a", "output": 3}', "not_text", "output is int: 3"),
    ('{"instruction": "a", "output": NaN}', "not_text", "output is float"),
    ('{"instruction": "a", "input": ["b"], "output": "c"}', "not_text", "input is list"),
    ('{"instruction": "a", "output": "\\ud800"}', "bad_text", "lone surrogate at character 1"),
    ('{"instruction": "a", "output": "b\\u0000"}', "bad_text", "NUL"),
]


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    BAD_LINES,
    ids=[f"{n}-{kind}" for n, (_, kind, _) in enumerate(BAD_LINES)],
)
def test_a_bad_row_stops_with_its_place_or_is_dropped(
    tmp_path: Path, line: str | bytes, kind: str, detail: str
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    path = write(
        tmp_path / "a.jsonl", lines(ROWS[:20]).encode() + raw + b"\n" + lines(ROWS[20:]).encode()
    )
    message = told(path)
    assert KINDS[kind][1] in message and "a.jsonl:21" in message and detail in message
    assert 'on_bad_rows="drop"' in message
    found = load(path, on_bad_rows="drop")
    assert found.problems["rows_dropped"] == {"a.jsonl": 1}
    assert found.problems["counts"][kind] == 1
    assert sum(map(len, found.splits.values())) == 40


BAD_TURNS = [
    (None, "null_value", "messages is null"),
    ([], "empty_answer", "no turn of the assistant"),
    ("hello", "bad_turns", "messages is str"),
    ([{"role": "user", "content": "a"}], "empty_answer", "no turn of the assistant"),
    ([{"role": "assistant", "content": "a"}], "empty_question", "no turn of the user"),
    ([{"role": "narrator", "content": "a"}], "bad_turns", "turn 1 of messages: 'narrator'"),
    (["a"], "bad_turns", "turn 1 of messages is str"),
    ([{"role": "user", "content": 3}], "not_text", "turn 1 of messages"),
    (
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "I look it up.", "tool_calls": [{"id": "1"}]},
        ],
        "bad_turns",
        "turn 2 of messages calls a tool",
    ),
    (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}],
        "empty_answer",
        "turn 2 of messages is empty",
    ),
]


@pytest.mark.parametrize(("turns", "kind", "detail"), BAD_TURNS)
def test_a_conversation_that_cannot_be_used_is_told(
    tmp_path: Path, turns: Any, kind: str, detail: str
) -> None:
    rows = [FORMS["messages"](row) for row in ROWS] + [{"messages": turns}]
    message = told(write(tmp_path / "a.jsonl", lines(rows)))
    assert KINDS[kind][1] in message and "a.jsonl:41" in message and detail in message


def test_turns_after_the_last_answer_are_left_out_and_parts_are_joined(tmp_path: Path) -> None:
    rows = [FORMS["messages"](row) for row in ROWS]
    rows[0]["messages"].append({"role": "user", "content": "Thank you"})
    rows[1]["messages"][0]["content"] = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    found = load(write(tmp_path / "a.jsonl", lines(rows)), template="plain")
    assert found.problems["counts"]["turns_after_answer"] == 1
    prompts = [s.prompt for part in found.splits.values() for s in part]
    assert "# ab\n" in prompts and not any("Thank you" in prompt for prompt in prompts)


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "unknown.jsonl": (lines([{"foo": 1, "bar": 2}] * 30), "the columns are foo, bar; read are "),
    "unclear.jsonl": (
        lines([{"question": "a", "answer": "b", "response": "c"}] * 9),
        "response and answer could each be the answer",
    ),
    "both.jsonl": (
        lines([{"instruction": "a", "output": "b", "messages": []}] * 9),
        "could each be the row",
    ),
    "mixed.jsonl": (lines([*ROWS, FORMS["messages"](ROWS[0])]), "chat at mixed.jsonl:41"),
    "names.jsonl": (
        lines([{**row, "Output": "another"} for row in ROWS]),
        "'output' and 'Output' are two columns of one name",
    ),
    **{
        f"{what}.jsonl": (lines([{**r, "id": f"{name}{n}"} for n, r in enumerate(ROWS)]), what)
        for name, what in (("a\ud800", "surrogate"), ("a\x1b[2J", "control"), ("a" * 2000, "2,00"))
    },
    "first.csv": ("a,b\nc,d\n", "the columns are a, b"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_read_is_told_even_when_rows_may_be_dropped(
    tmp_path: Path, name: str
) -> None:
    data, detail = BAD_FILES[name]
    message = told(write(tmp_path / name, data), on_bad_rows="drop")
    assert detail in message and name in message and "Fix: " in message and message.encode()


def test_ids_are_the_data_sets_own_or_places_and_stand_once(tmp_path: Path) -> None:
    placed = load(write(tmp_path / "a.jsonl", lines(ROWS)))
    assert {"a.jsonl:1", "a.jsonl:40"} <= {s.id for part in placed.splits.values() for s in part}
    rows = [{**row, "id": n} for n, row in enumerate(ROWS)]
    own = load(write(tmp_path / "b.jsonl", lines(rows)))
    assert {s.id for part in own.splits.values() for s in part} == {str(n) for n in range(40)}
    rows[7]["id"] = 3
    message = told(write(tmp_path / "c.jsonl", lines(rows)))
    assert "c.jsonl:8: id '3' stands at c.jsonl:4 too" in message


def test_a_text_far_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_rows, "MAX_CHARACTERS", 1000)
    long = [*ROWS, {"instruction": "a", "output": "b" * 1001}]
    assert "output has 1,001 characters" in told(write(tmp_path / "b.jsonl", lines(long)))


def test_rows_that_are_left_out_are_told_also_where_too_few_remain(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS[:20]) + "{oops\n" + lines([{"instruction": "x"}]))
    left_out = load(path, on_bad_rows="drop").problems["left_out"]
    assert left_out.startswith("2 rows are left out of the data: 1 x line is not JSON (a.jsonl:21)")
    message = told(path, on_bad_rows="drop", eval_samples=30)
    assert "20 training rows, too few" in message and left_out in message
    assert load(write(tmp_path / "b.jsonl", lines(ROWS))).problems["left_out"] == ""


def test_columns_that_nobody_knows_are_told_once_in_words(tmp_path: Path) -> None:
    message = told(write(tmp_path / "a.jsonl", lines([{"foo": "a", "bar": "b"}] * 12)))
    assert message.count("the columns are foo, bar") == message.count("test_list") == 1
    assert "unknown_columns" not in message and "a.jsonl: 12 rows read" in message


ANSWER = "def add_numbers(a, b):\n    return a + b\n"
ASKED = f"Repeat this: {ANSWER.replace('    ', chr(9))}"  # blanks do not hide it
HOLDING = [
    {"instruction": ASKED, "output": ANSWER},
    {"instruction": "Repeat this.", "input": ASKED, "output": ANSWER},
    {"messages": [{"role": "user", "content": ASKED}, {"role": "gpt", "content": ANSWER}]},
]


@pytest.mark.parametrize("form", HOLDING, ids=["instruction", "input", "messages"])
def test_a_question_that_holds_its_answer_is_counted(tmp_path: Path, form: dict[str, Any]) -> None:
    rows = [json.loads(json.dumps(form).replace("Repeat", f"{n} Repeat")) for n in range(40)]
    found = load(write(tmp_path / "a.jsonl", lines(rows)))
    assert found.problems["counts"]["answer_in_question"] == 40


def test_rows_of_too_few_questions_are_told_as_such(tmp_path: Path) -> None:
    def asking(count: int) -> Path:
        rows = [{"instruction": f"Q{n % count}", "output": f"x = {n}"} for n in range(30)]
        return write(tmp_path / f"{count}.jsonl", lines(rows))

    assert "30 training rows ask 1 question" in told(asking(1))
    message = told(asking(3))
    assert "ask 3 questions" in message
    assert "eval_samples=10" in message and "valid_samples=10" in message
    fits = load(asking(3), valid_samples=10, eval_samples=10)
    assert [len(part) for part in fits.splits.values()] == [10, 10, 10]


def test_blank_lines_above_a_header_do_not_hide_the_separator(tmp_path: Path) -> None:
    text = "".join(f"ask {n}, please;x = {n}\n" for n in range(30))
    found = load(write(tmp_path / "a.csv", f"\n \ninstruction;output\n{text}"))
    assert found.problems["counts"]["blank_line"] == 2
    assert all("please" in sample.prompt for sample in found.splits["train"])


class Tokenizer:
    """Only what the template `chat` asks."""

    chat_template, bos_token = "there is one", None

    def __init__(self, answer: Callable[[list[dict[str, str]]], str]) -> None:
        self.answer = answer

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return self.answer(messages)


def fails(error: Exception) -> Callable[[Any], str]:
    def answer(_: Any) -> str:
        raise error

    return answer


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("by zero"), OverflowError("too big"), AttributeError("x"), MemoryError()],
)
def test_whatever_a_chat_template_raises_is_told_by_its_row(
    tmp_path: Path, error: Exception
) -> None:
    path = write(tmp_path / "rows.jsonl", lines(ROWS))
    with pytest.raises(DataError, match=r"rows\.jsonl:\d+: The model's chat template refuses"):
        load(path, template="chat", tokenizer=Tokenizer(fails(error)))


def test_a_chat_template_that_loses_the_question_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", lines(ROWS))
    lost = Tokenizer(lambda messages: "<user><model>")
    with pytest.raises(DataError, match="leaves out the last turn"):
        load(path, template="chat", tokenizer=lost)
    trimmed = Tokenizer(lambda messages: "<user>" + " ".join(messages[-1]["content"].split()))
    assert load(path, template="chat", tokenizer=trimmed)
