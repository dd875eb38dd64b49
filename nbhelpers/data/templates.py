"""How a row of an instruction data set becomes a prompt and a completion."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.catalog import TEMPLATES

# ------------------------------------------------------------------------------------------------
# What a template makes, shown: supervised text in colour, or marked.


OPEN, CLOSE = "⟦", "⟧"  # around supervised text where there is no colour


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredText:
    """Text in parts; the supervised ones (the loss counts them) stand out.

    `parts` holds (text, is_supervised). In a notebook these are coloured, elsewhere marked ⟦so⟧.
    """

    parts: tuple[tuple[str, bool], ...]
    caption: str = ""

    def __repr__(self) -> str:
        text = "".join(f"{OPEN}{part}{CLOSE}" if on else part for part, on in self.parts)
        return f"{self.caption}\n{text}" if self.caption else text

    def _repr_html_(self) -> str:
        style = "background:#cfe8cf;color:#123312;border-radius:2px"
        spans = [
            f'<span style="{style}">{html.escape(part)}</span>' if on else html.escape(part)
            for part, on in self.parts
        ]
        head = f"<div><b>{html.escape(self.caption)}</b></div>" if self.caption else ""
        return (
            f'<div>{head}<pre style="white-space:pre-wrap;text-align:left">{"".join(spans)}</pre>'
            f'<div><span style="{style}">coloured</span>: what the loss counts</div></div>'
        )


def coloured(parts: Sequence[tuple[str, bool]], *, caption: str = "") -> ColouredText:
    """Show text with its supervised parts marked; neighbours of one kind are joined.

    >>> coloured([("ask ", False), ("an", True), ("swer", True)])
    ask ⟦answer⟧
    """
    joined: list[tuple[str, bool]] = []
    for text, on in parts:
        if joined and joined[-1][1] == bool(on):
            joined[-1] = joined[-1][0] + str(text), bool(on)
        elif text:
            joined.append((str(text), bool(on)))
    return ColouredText(parts=tuple(joined), caption=caption)


# ------------------------------------------------------------------------------------------------
# How a row of an instruction data set becomes a prompt and a completion.
#
# A template is a function of a row to (prompt, completion). The prompt ends where the answer
# begins; the completion is the answer as the data gives it, without an end token. Rows that bring a
# prompt of their own are used as they are.


# What code in a template can raise, beside Jinja's own errors.
_REFUSALS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_REFUSALS += (MemoryError,)
AS_WRITTEN = "none"  # rows with prompts of their own
Turn = tuple[str, str]  # role ("system", "user", "assistant"), text


class Row(NamedTuple):
    """One example before the template.

    `instruction` is the prompt itself where `form` is "completion"; `turns` is everything before
    the answer where `form` is "chat".
    """

    form: Literal["instruction", "completion", "chat"]
    answer: str
    instruction: str = ""
    input: str = ""
    turns: tuple[Turn, ...] = ()

    @property
    def question(self) -> str:
        """All that stands before the answer, as plain text."""
        if self.form == "chat":
            return "\n\n".join(text for _, text in self.turns)
        return f"{self.instruction}\n\n{self.input}" if self.input.strip() else self.instruction


def resolve_template(template: str, form: str, tokenizer: Any = None) -> str:
    """Name of the template that is used: `auto` is `chat` where the tokenizer has one.

    Args:
        template: One of `presets.catalog.TEMPLATES`, or "none" for the bare question.
        form: Of the rows; with "completion" no template is used.
        tokenizer: Of the model; needed for `chat`.

    >>> resolve_template("auto", "instruction"), resolve_template("plain", "completion")
    ('alpaca', 'none')

    Raises:
        ConfigError: No such template, or `chat` without a chat template.
    """
    if template not in (*TEMPLATES, AS_WRITTEN):
        raise ConfigError(
            f"template={template!r} is not known.", fix=f"choose one of: {', '.join(TEMPLATES)}."
        )
    if form == "completion":
        return AS_WRITTEN
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if template == "auto":
        return "chat" if has_chat else "alpaca"
    if template == "chat" and not has_chat:
        owner = "the model's tokenizer has no chat template" if tokenizer else "no tokenizer is set"
        raise ConfigError(
            f"template=chat cannot be used: {owner}.",
            fix="use template=alpaca, or an instruction-tuned model (such as gemma-2-2b-it).",
        )
    return template


def render(row: Row, template: str, tokenizer: Any = None) -> tuple[str, str]:
    """Prompt and completion of a row, by a resolved template.

    >>> render(Row("instruction", "x = 1", "Set x to one."), "plain")
    ('# Set x to one.\\n', 'x = 1')

    Raises:
        DataError: The tokenizer's chat template refuses the row.
    """
    if row.form == "completion" or template == AS_WRITTEN:
        return row.question, row.answer
    if template == "chat":
        return _chat_prompt(_turns(row), tokenizer), row.answer
    return _TEXT_TEMPLATES[template](*_instruction_and_input(row)), row.answer


def render_question(instruction: str, input_: str, template: str, tokenizer: Any = None) -> str:
    """The prompt of a question without an answer, by a resolved template."""
    return render(Row("instruction", "", instruction, input_), template, tokenizer)[0]


def show_example(template: str) -> ColouredText:
    """Show a template on a small task of its own, before any data or model is read.

    With `chat`, and `auto` where the model's tokenizer has turns of its own, only a tokenizer can
    say how the prompt looks: the bare question is shown, and the caption says so.

    >>> show_example("plain")
    Template plain, on an example:
    # Return the sum of a list.
    #
    # [1, 2]
    ⟦sum([1, 2])⟧

    Raises:
        ConfigError: No such template.
    """
    row = Row("instruction", "sum([1, 2])", "Return the sum of a list.", "[1, 2]")
    if template == "chat":
        prompt, caption = f"{row.question}\n", "Template chat: the tokenizer adds its own turns:"
    else:
        prompt, _ = render(row, used := resolve_template(template, row.form))
        caption = f"Template {used}, on an example:"
        caption += " (auto: chat, where the tokenizer has turns)" if template == "auto" else ""
    return coloured([(prompt, False), (row.answer, True)], caption=caption)


def alpaca(instruction: str, input_: str) -> str:
    r"""The prompt under the headings of Stanford Alpaca, with an input section if there is one.

    The headings are what other tools and tuned models know; the line above them is our own.

    Source: headings of github.com/tatsu-lab/stanford_alpaca, train.py.

    >>> alpaca("Set x.", "").splitlines()[-4:]
    ['### Instruction:', 'Set x.', '', '### Response:']
    """
    has_input = bool(input_.strip())
    head = "Solve this task" + (" for the input that follows it" if has_input else "")
    middle = f"\n\n### Input:\n{input_}" if has_input else ""
    return f"{head}.\n\n### Instruction:\n{instruction}{middle}\n\n### Response:\n"


def plain(instruction: str, input_: str) -> str:
    r"""The prompt as a comment above the code, as it could stand in a Python file.

    >>> plain("Double x.\n", "x is 4")
    '# Double x.\n#\n# x is 4\n'
    """
    text = instruction.strip() + (f"\n\n{input_.rstrip()}" if input_.strip() else "")
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


_TEXT_TEMPLATES: dict[str, Callable[[str, str], str]] = {"alpaca": alpaca, "plain": plain}


def _instruction_and_input(row: Row) -> tuple[str, str]:
    """A conversation of one question is that question; a longer one is written out by speaker."""
    if row.form != "chat":
        return row.instruction, row.input
    system, others = _system_first(row.turns)
    if len(others) == 1:
        return "\n\n".join([*system, others[0][1]]), ""
    lines = [f"{role.capitalize()}: {text}" for role, text in others]
    return "\n\n".join([*system, *lines]), ""


def _turns(row: Row) -> tuple[Turn, ...]:
    return row.turns if row.form == "chat" else (("user", row.question),)


def _chat_prompt(turns: tuple[Turn, ...], tokenizer: Any) -> str:
    """The conversation up to where the model answers, as text to be tokenized like any other.

    Its leading begin token is left out where the tokenizer adds one by itself, or there were two.
    """
    text = _apply(turns, tokenizer)
    if (lost := _squeezed(turns[-1][1])) and lost not in _squeezed(text):
        raise DataError(
            "The model's chat template leaves out the last turn before the answer.",
            fix="use template=alpaca, or mend chat_template in the model's tokenizer files",
        )
    bos = getattr(tokenizer, "bos_token", None)
    if bos and text.startswith(bos) and _adds_bos(tokenizer):
        text = text[len(bos) :]
    return text


def _apply(turns: tuple[Turn, ...], tokenizer: Any) -> str:
    import jinja2

    try:
        return _apply_once(turns, tokenizer)
    except (jinja2.TemplateError, *_REFUSALS) as error:
        merged = _without_system(turns)
        if merged != turns:  # Gemma's template knows no system turn
            return _apply(merged, tokenizer)
        reason = str(error).split("\n")[0][:160] or type(error).__name__
        roles = ", ".join(role for role, _ in turns)
        raise DataError(
            f"The model's chat template refuses a conversation ({roles}): {reason}",
            fix="mend the turns (user and assistant take turns), or use template=alpaca.",
        ) from error


def _squeezed(text: str) -> str:
    """A text without white space: templates trim it and break lines anew."""
    return "".join(text.split())


def _apply_once(turns: tuple[Turn, ...], tokenizer: Any) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _without_system(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """A leading system text as the beginning of the first question; one further on stays there."""
    system, others = _system_first(turns)
    if not system or not others or others[0][0] != "user":
        return turns
    return (("user", "\n\n".join([*system, others[0][1]])), *others[1:])


def _system_first(turns: tuple[Turn, ...]) -> tuple[list[str], tuple[Turn, ...]]:
    """The system texts that a conversation begins with, and its other turns."""
    n = next((at for at, (role, _) in enumerate(turns) if role != "system"), len(turns))
    return [text for _, text in turns[:n]], turns[n:]


def _adds_bos(tokenizer: Any) -> bool:
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id
