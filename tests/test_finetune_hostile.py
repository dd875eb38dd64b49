"""Promise: hostile input of a fine-tuning is told with its place, and overwrites nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data.instructions import InstructionData, load_instructions
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.presets.adapters import parse_adapters, parse_seeds, parse_variants
from nbhelpers.presets.loading import load_preset
from nbhelpers.runs.study_plan import Study, plan_study

ANSWER = "def add_numbers(a, b):\n    return a + b\n"


def rows(count: int = 12, **more: Any) -> list[dict[str, Any]]:
    return [
        {"instruction": f"Task {at}: {'x' * at}", "output": f"value_{at} = {at}\n", **more}
        for at in range(count)
    ]


def read(
    path: Path, found: Iterable[dict[str, Any]] | str | bytes, **options: Any
) -> InstructionData:
    """Write rows, or a file as it is, and load them."""
    if isinstance(found, str | bytes):
        data = found if isinstance(found, bytes) else found.encode("utf-8", "surrogatepass")
    else:
        data = "".join(json.dumps(row) + "\n" for row in found).encode()
    path.write_bytes(data)
    return load_instructions(str(path), **{"valid_samples": 2, "eval_samples": 2} | options)


# Rows


def test_two_columns_of_one_name_are_not_chosen_between(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'output' and 'Output' are two columns of one name"):
        read(tmp_path / "rows.jsonl", rows(Output="another"))


@pytest.mark.parametrize(
    ("name", "what"), [("a\ud800", "surrogate"), ("a\x1b[2J", "control"), ("a" * 2000, "2,00")]
)
def test_an_id_that_no_file_can_show_is_told(tmp_path: Path, name: str, what: str) -> None:
    bad = [row | {"id": f"{name}{at}"} for at, row in enumerate(rows())]
    with pytest.raises(DataError, match=what) as error:
        read(tmp_path / "rows.jsonl", bad)
    assert str(error.value).encode()


def test_a_question_that_holds_its_answer_is_counted_in_every_form(tmp_path: Path) -> None:
    asked = f"Repeat this: {ANSWER.replace('    ', chr(9))}"  # blanks do not hide it
    forms = [
        {"instruction": asked, "output": ANSWER},
        {"instruction": "Repeat this.", "input": asked, "output": ANSWER},
        {"messages": [{"role": "user", "content": asked}, {"role": "gpt", "content": ANSWER}]},
    ]
    for form in forms:
        name = "messages" if "messages" in form else "instruction"
        made = []
        for at in range(12):
            text = json.dumps(form).replace("Repeat", f"{at} Repeat")
            made.append(json.loads(text))
        assert read(tmp_path / f"{name}.jsonl", made).problems["counts"]["answer_in_question"] == 12


def test_prompts_of_which_some_hold_their_answers_are_counted(tmp_path: Path) -> None:
    made = [
        {"prompt": f"{at} {ANSWER if at % 3 == 0 else ''}", "completion": ANSWER}
        for at in range(12)
    ]
    found = read(tmp_path / "rows.jsonl", made)
    assert found.problems["counts"]["answer_in_question"] == 4
    with pytest.raises(DataError, match="hold their own answers"):
        read(tmp_path / "rows.jsonl", [row | {"prompt": row["prompt"] + ANSWER} for row in made])


def test_a_turn_that_calls_a_tool_is_not_read_as_its_text(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "I look it up.", "tool_calls": [{"id": "1"}]}
    chats = [{"messages": [{"role": "user", "content": f"q{at}"}, call]} for at in range(9)]
    with pytest.raises(DataError, match="turn 2 of messages calls a tool"):
        read(tmp_path / "rows.jsonl", chats)


def test_rows_of_too_few_questions_are_told_as_such(tmp_path: Path) -> None:
    same = [{"instruction": "Same.", "output": f"x = {at}"} for at in range(30)]
    with pytest.raises(DataError, match="30 training rows ask 1 question") as error:
        read(tmp_path / "rows.jsonl", same)
    assert "eval_samples=2" not in error.value.fix
    three = [{"instruction": f"Q{at % 3}", "output": f"x = {at}"} for at in range(30)]
    with pytest.raises(DataError, match="ask 3 questions") as error:
        read(tmp_path / "rows.jsonl", three)
    assert "valid_samples=10 and eval_samples=10" in error.value.fix or (
        "eval_samples=10 and valid_samples=10" in error.value.fix
    )
    fits = read(tmp_path / "rows.jsonl", three, valid_samples=10, eval_samples=10)
    assert [len(part) for part in fits.splits.values()] == [10, 10, 10]


def test_blank_lines_above_a_header_do_not_hide_the_separator(tmp_path: Path) -> None:
    text = "\n \ninstruction;output\n" + "".join(f"ask {at}, please;x = {at}\n" for at in range(9))
    found = read(tmp_path / "rows.csv", text)
    assert found.problems["counts"]["blank_line"] == 2
    assert all("please" in sample.prompt for sample in found.splits["train"])


# Templates


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
    with pytest.raises(DataError, match=r"rows\.jsonl:\d+: The model's chat template refuses"):
        read(tmp_path / "rows.jsonl", rows(), template="chat", tokenizer=Tokenizer(fails(error)))


def test_a_chat_template_that_loses_the_question_is_refused(tmp_path: Path) -> None:
    lost = Tokenizer(lambda messages: "<user><model>")
    with pytest.raises(DataError, match="leaves out the last turn"):
        read(tmp_path / "rows.jsonl", rows(), template="chat", tokenizer=lost)
    trimmed = Tokenizer(lambda messages: "<user>" + " ".join(messages[-1]["content"].split()))
    assert read(tmp_path / "rows.jsonl", rows(), template="chat", tokenizer=trimmed)


# Settings, adapters, seeds


@pytest.mark.parametrize("seeds", ["²", "9" * 5000, 3.5, float("nan"), b"3", {3: 4}, object()])
def test_what_is_no_seed_is_told(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="is no seed") as error:
        parse_seeds(seeds)
    assert error.value.fix


@pytest.mark.parametrize(
    "adapters", [b"r8", 3.5, ["r8", None], [{"name": "x", "method": ["lora"]}]]
)
def test_what_is_no_adapter_is_told(adapters: Any) -> None:
    with pytest.raises(ConfigError) as error:
        parse_variants(adapters)
    assert error.value.fix


def test_a_rank_out_of_range_is_not_offered_again() -> None:
    with pytest.raises(ConfigError) as error:
        parse_adapters("r1025")
    assert "did you mean" not in error.value.fix


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        (["q_proj", "q_proj"], "q_proj twice"),
        ([".*_proj"], "no layer's name"),
        (["model.layers.0.mlp"], "no layer's name"),
        ([" q_proj"], "no layer's name"),
        ([""], "no layer's name"),
        ([["q_proj"]], "must be"),
        ([None], "must be"),
    ],
)
def test_target_modules_are_names_each_once(modules: list[Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_preset("finetune", "smoke", overrides={"lora_target_modules": modules})


def planned(adapters: Any, tmp_path: Path, **changes: Any) -> Study:
    hardware: Hardware = plan_hardware("l4")
    preset = load_preset("finetune", "smoke", hardware=hardware, overrides=changes)
    return plan_study(preset, hardware, adapters=adapters, run_dir=tmp_path)


@pytest.mark.parametrize("rank", ["8", True, 8.0, 10**30])
def test_a_rank_of_another_type_is_told_also_where_alpha_follows_it(
    tmp_path: Path, rank: Any
) -> None:
    with pytest.raises(ConfigError, match="lora_r"):
        planned([{"name": "x", "lora_r": rank}], tmp_path, lora_alpha=16.0)


@pytest.mark.parametrize(
    "adapters",
    [
        [
            {"name": "x", "lora_target_modules": ["q_proj", "v_proj"]},
            {"name": "y", "lora_target_modules": ["v_proj", "q_proj"]},
        ],
        [{"name": "x", "method": "base", "lora_r": 64}, "base"],
        [{"name": "x", "lora_r": 8, "lora_alpha": 16.0}, "r8"],
    ],
)
def test_one_run_written_in_two_ways_is_not_made_twice(tmp_path: Path, adapters: Any) -> None:
    with pytest.raises(ConfigError, match="are the same run"):
        planned(adapters, tmp_path)
