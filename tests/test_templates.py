"""Promise: a row becomes one prompt and one completion, and a program is found in any answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nbhelpers.data.templates import (
    Row,
    coloured,
    render,
    render_question,
    resolve_template,
)
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.answers import extract_code, parses

FUNCTION = "def f(x):\n    return x\n"
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}<bos>" + CHAT
)


class Tokenizer:
    """As much of a tokenizer as a chat template needs."""

    bos_token, bos_token_id = "<bos>", 1

    def __init__(self, chat_template: str | None = CHAT, *, adds_bos: bool = True) -> None:
        self.chat_template, self.adds_bos = chat_template, adds_bos

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [self.bos_token_id] * self.adds_bos + [7] * len(text)}

    def apply_chat_template(
        self, messages: list[Any], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        import jinja2

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        assert not tokenize
        template = jinja2.Template(self.chat_template or "")
        return template.render(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            raise_exception=refuse,
        )


def test_alpaca_has_an_input_section_only_where_there_is_an_input() -> None:
    without, completion = render(Row("instruction", "x = 1", "Set x."), "alpaca")
    with_input, _ = render(Row("instruction", "x = 1", "Set x.", "to 1"), "alpaca")
    assert without.endswith("### Instruction:\nSet x.\n\n### Response:\n") and completion == "x = 1"
    assert with_input.endswith("Set x.\n\n### Input:\nto 1\n\n### Response:\n")
    assert "Input" not in without
    assert render(Row("instruction", "x", "Set x.", " \n"), "alpaca")[0] == without


def test_the_plain_prompt_is_a_python_comment() -> None:
    prompt, completion = render(Row("instruction", "y = 2\n", "Set y\n\nto two.", "2"), "plain")
    assert prompt == "# Set y\n#\n# to two.\n#\n# 2\n" and parses(prompt + completion)


def test_completions_are_as_the_data_gives_them() -> None:
    answer = "```python\nx = 1\n```\n"
    for template in ("alpaca", "plain", "none"):
        assert render(Row("instruction", answer, "Set x."), template)[1] == answer


def test_prompts_of_their_own_are_used_as_they_are() -> None:
    row = Row("completion", " 2", "1 + 1 =")
    assert resolve_template("alpaca", "completion") == "none"
    assert render(row, "none") == render(row, "alpaca") == ("1 + 1 =", " 2")


@pytest.mark.parametrize(
    ("template", "form", "tokenizer", "used"),
    [
        ("auto", "instruction", None, "alpaca"),
        ("auto", "chat", Tokenizer(None), "alpaca"),
        ("auto", "instruction", Tokenizer(), "chat"),
        ("plain", "instruction", Tokenizer(), "plain"),
        ("none", "instruction", None, "none"),
        ("chat", "completion", None, "none"),
    ],
)
def test_auto_takes_the_chat_template_where_there_is_one(
    template: str, form: str, tokenizer: Any, used: str
) -> None:
    assert resolve_template(template, form, tokenizer) == used


@pytest.mark.parametrize(
    ("template", "tokenizer", "told"),
    [
        ("chat", None, "no tokenizer is set"),
        ("chat", Tokenizer(None), "the model's tokenizer has no chat template"),
        ("alpacca", None, "template='alpacca' is not known"),
    ],
)
def test_a_template_that_cannot_be_used_is_told(template: str, tokenizer: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        resolve_template(template, "instruction", tokenizer)
    assert "alpaca" in caught.value.fix


def test_a_chat_prompt_ends_where_the_assistant_begins() -> None:
    row = Row("instruction", "x = 1", "Set x.", "to 1")
    assert render(row, "chat", Tokenizer()) == ("<user>Set x.\n\nto 1</><assistant>", "x = 1")
    assert (
        render_question("Set x.", "to 1", "chat", Tokenizer())
        == render(row, "chat", Tokenizer())[0]
    )
    turns = (("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"))
    prompt, _ = render(Row("chat", "d", turns=turns), "chat", Tokenizer())
    assert prompt == "<system>Be brief.</><user>a</><assistant>b</><user>c</><assistant>"


def test_a_begin_token_is_left_to_the_tokenizer_that_adds_it() -> None:
    row = Row("instruction", "x", "q")
    assert render(row, "chat", Tokenizer(NO_SYSTEM))[0] == "<user>q</><assistant>"
    kept = render(row, "chat", Tokenizer(NO_SYSTEM, adds_bos=False))[0]
    assert kept == "<bos><user>q</><assistant>"


def test_a_template_without_a_system_role_gets_it_in_the_first_question() -> None:
    row = Row("chat", "x", turns=(("system", "Be brief."), ("user", "a")))
    assert "<user>Be brief.\n\na</>" in render(row, "chat", Tokenizer(NO_SYSTEM))[0]


def test_a_conversation_that_the_template_refuses_is_told() -> None:
    refusing = Tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="roles must alternate") as caught:
        render(Row("chat", "x", turns=(("user", "a"), ("user", "b"))), "chat", refusing)
    assert "template=alpaca" in caught.value.fix


def test_a_conversation_can_be_put_under_the_headings() -> None:
    one = Row("chat", "x", turns=(("system", "Be brief."), ("user", "a")))
    assert "### Instruction:\nBe brief.\n\na\n" in render(one, "alpaca")[0]
    more = Row("chat", "x", turns=(("user", "a"), ("assistant", "b"), ("user", "c")))
    assert "User: a\n\nAssistant: b\n\nUser: c" in render(more, "alpaca")[0]


@pytest.mark.slow
def test_a_real_tokenizer_gives_the_same_prompts() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"<bos>": 0, "<unk>": 1}, unk_token="<unk>")
    core = tokenizers.Tokenizer(words)
    pieces = [("<bos>", 0)]
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=pieces
    )
    real = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", unk_token="<unk>"
    )
    assert resolve_template("auto", "instruction", real) == "alpaca"
    row = Row("chat", "x", turns=(("system", "Be brief."), ("user", "a")))
    for template in (CHAT, NO_SYSTEM):
        real.chat_template = template
        assert resolve_template("auto", "instruction", real) == "chat"
        assert render(row, "chat", real) == render(row, "chat", Tokenizer(template))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (FUNCTION, FUNCTION),
        ("    return x\n", "    return x\n"),
        (f"Here:\n```python\n{FUNCTION}```\nDone.", FUNCTION),
        (f"Here:\r\n```py\r\n{FUNCTION}```\r\n", FUNCTION),
        (f"```\n{FUNCTION}```", FUNCTION),
        (f"~~~python\n{FUNCTION}~~~", FUNCTION),
        (f"```python\n{FUNCTION}", FUNCTION),
        (f"```bash\npip install x\n```\n```python\n{FUNCTION}```\n```\nprint(f(1))\n```", FUNCTION),
        ("```text\nhello\n```\n```python\nx = 1\ny = 2\n```", "x = 1\ny = 2\n"),
        ("1. Do:\n   ```python\n   x = [\n       1]\n   ```", "x = [\n    1]\n"),
        (f"{FUNCTION}```\nIt returns x.", FUNCTION),
        (f"Sure! Here's the function.\n\n{FUNCTION}\nThis function returns x.", FUNCTION),
        (f"**Solution:**\n\n{FUNCTION}", FUNCTION),
        (f"{FUNCTION}\nExplanation:\n\n- The `f` function\n1. It returns x", FUNCTION),
        ("The answer is:\n\n    x = 1\n    y = 2\n", "x = 1\ny = 2\n"),
        ("x = [1,\n     2]\nNote: this is a list", "x = [1,\n     2]\n"),
        (f"{FUNCTION}\n### Instruction:\nWrite more", f"{FUNCTION}\n"),
        ("\ufeffx = 1", "x = 1"),
        ("x = '''\n```\n'''", "x = '''\n```\n'''"),
        ("", ""),
    ],
)
def test_the_program_is_found_in_the_answer(answer: str, code: str) -> None:
    assert extract_code(answer) == code


@pytest.mark.parametrize(
    "answer",
    [
        "def f(:\n    return 1",
        f"{FUNCTION}\ndef g(y):\n    retu(",
        f"{FUNCTION}\nx = (1,",
        "print 'hello'",
        "a, b = 1, 2\n    return a",
        "I cannot do that.",
        "for i in range(3)\n    print(i)",
    ],
)
def test_a_broken_answer_is_not_mended(answer: str) -> None:
    assert extract_code(answer) == answer and not parses(extract_code(answer))


def test_no_answer_makes_it_raise_or_wait() -> None:
    draw = random.Random(1)
    signs = "`#\n \t~abc def return :=()[]{}'\"\\\0\ud800é*-1."
    for _ in range(2000):
        answer = "".join(draw.choice(signs) for _ in range(draw.randrange(80)))
        assert isinstance(extract_code(answer), str)
    odd = ("(" * 9999, "-" * 9999 + "x", "```\n" * 9999, "Some words\n" * 9999, "```" + "a" * 99999)
    for answer in odd:
        assert isinstance(extract_code(answer), str)
    assert extract_code(None) == ""  # type: ignore[arg-type]


def test_supervised_text_stands_out_and_is_escaped() -> None:
    shown = coloured([("ask <b>", False), ("a", True), ("<i>", True), ("", False)], caption="A & B")
    assert repr(shown) == "A & B\nask <b>⟦a<i>⟧"
    page = shown._repr_html_()
    assert "ask &lt;b&gt;<span" in page and ">a&lt;i&gt;</span>" in page and "A &amp; B" in page
    assert "<b>A &amp; B</b>" in page and "<i>" not in page
