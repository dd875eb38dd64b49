r"""The program in a model's answer: out of Markdown fences, without the prose around it.

Only what is clearly not Python is taken away. A broken program stays as it is, so that it counts as
broken: cutting it back to some part that parses would flatter the model.
"""

from __future__ import annotations

import ast
import keyword
import re
import textwrap
import warnings
from typing import NamedTuple

# A heading of our own template, where a model that does not stop asks itself the next question.
_NEXT_QUESTION = re.compile(r"^###[ \t]*(?:Instruction|Input|Response|Question|Answer)\b.*", re.M)
_FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)[^`\n]*$")
_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]", re.M)
_PYTHON = {"", "python", "py", "python3", "py3", "python2", "ipython", "pycon", "text"}
_CODE_START = re.compile(
    r"(?:async\s+def|def|class)\s+\w|@\w|from\s+[\w.]+\s+import\b|import\s+\w|#|\"\"\"|'''"
    r"|[A-Za-z_][\w.\[\], ]*\s*(?:[-+*/%&|^]|//|\*\*)?=[^=]|if\s.*:\s*$|for\s.*\sin\s.*:|while\s.*:"
    r"|with\s.*:|try\s*:|print\s*\(|return\b|[A-Za-z_][\w.]*\("
)
_BULLET = re.compile(r"(?:[-*+>]\s+|\d+[.)]\s+|#{1,6}\s+|\*\*|__|`)*")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
# Words that stand between two names in code, or before one.
_JOINING = {w for w in keyword.kwlist if w.islower()} | {"match", "case", "type", "print", "exec"}
_LONGEST_MARK = 200  # characters of a fence, or needed to know a line for code
_MOST_TRIES = 60  # ends that are tried where prose seems to follow


class _Block(NamedTuple):
    language: str
    text: str


def parses(source: str) -> bool:
    """Whether a text is a Python program; never raises.

    >>> parses("x = 1"), parses("x ="), parses("x = 1\\0")
    (True, False, False)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def extract_code(answer: str, name: str = "") -> str:
    """The Python program of an answer; the answer itself where none can be told apart.

    In this order: an answer that is a program stays; then a fenced block (the first Python one that
    defines something, else the longest); else the lines between leading and trailing prose. An
    answer ends where it repeats a heading of the alpaca template.

    Args:
        name: The function that is asked for: of several blocks the first one that defines it is
            taken, with those before it that it may call.

    >>> extract_code("Sure, here it is:\\n```python\\nx = 1\\n```\\nIt sets x.")
    'x = 1\\n'
    >>> extract_code("Here is the code:\\n\\nx = 1\\n\\nThis sets x to one.")
    'x = 1\\n'
    >>> extract_code("def f(:")
    'def f(:'
    """
    if not isinstance(answer, str):
        return ""
    text = answer.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    if cut := _NEXT_QUESTION.search(text):
        text = text[: cut.start()]
    if parses(text):
        return text
    if head := _before_closing_fence(text):
        return head
    blocks = [block for block in _blocks(text) if block.text.strip()]
    if blocks:
        return _choose(blocks, name)
    return _without_prose(text)


def _before_closing_fence(text: str) -> str:
    """Code that a fence closes and none opens: the prompt had opened it."""
    head, mark, _ = text.partition("\n```")
    first = head.lstrip("\n")
    is_code = bool(mark) and "```" not in head and _is_code(first)
    return f"{head}\n" if is_code and parses(f"{head}\n") else ""


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks; one that is not closed goes to the end of the text."""
    blocks: list[_Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line) if len(line) <= _LONGEST_MARK else None
        if opened is None:
            if fence:
                opened, lines = fence, []
        elif fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            blocks.append(_block(opened, lines))
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        blocks.append(_block(opened, lines))
    return blocks


def _block(opened: re.Match[str], lines: list[str]) -> _Block:
    """The lines of a block, without the indentation that its fence has."""
    indent = opened["indent"]
    body = [line.removeprefix(indent) for line in lines] if indent else lines
    return _Block(opened["language"].lower().strip("{}.:"), "\n".join(body).rstrip("\n") + "\n")


def _choose(blocks: list[_Block], name: str = "") -> str:
    of_python = [block for block in blocks if block.language in _PYTHON] or blocks
    if name and (code := _with_name(of_python, name)):
        return code
    for block in of_python:
        if _DEFINITION.search(block.text):
            return block.text
    return max(of_python, key=lambda block: len(block.text)).text


def _with_name(blocks: list[_Block], name: str) -> str:
    """The first block that defines a function, after earlier blocks with definitions that parse."""
    wanted = re.compile(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", re.M)
    helpers = []
    for block in blocks:
        if wanted.search(block.text):
            return "\n".join([*helpers, block.text])
        if _DEFINITION.search(block.text) and parses(block.text):
            helpers.append(block.text)
    return ""


def _is_code(line: str) -> bool:
    return bool(_CODE_START.match(line[:_LONGEST_MARK]))


def _is_prose(line: str) -> bool:
    """Whether a line at the left edge cannot be Python, but reads like a sentence.

    Two names side by side never stand in Python unless one is a keyword.
    """
    if line[:1].isspace():
        return False
    text = line[_BULLET.match(line).end() :]  # type: ignore[union-attr]
    first = _WORD.match(text)
    if not first or first.group() in _JOINING:
        return False
    rest = text[first.end() :]
    is_title = first.group()[0].isupper()
    if re.fullmatch(r"[:!.?*_`]*\s*", rest):
        return bool(rest.strip()) and is_title
    if rest[0] in ",:!":  # in `a, b = 1, 2` and `a: int = 1` no two names follow
        rest = rest[1:]
        first = _WORD.match(rest.lstrip())
        if not first or first.group() in _JOINING:
            return False
        rest = rest.lstrip()[first.end() :]
    second = _WORD.match(rest.lstrip())
    if rest[:1] != " " or not second:
        return text != line and rest[:1] == " " and "`" in rest
    return second.group() not in _JOINING or is_title


def _without_prose(text: str) -> str:
    """Leave out sentences before the first line of code, and what follows it from a sentence on."""
    lines = text.split("\n")
    start = 0
    while start < len(lines) and (not lines[start].strip() or _is_prose(lines[start])):
        start += 1
    if start == len(lines) or not any(_is_prose(line) for line in lines[:start]):
        start = 0
    elif not (_is_code(lines[start]) or lines[start][:1].isspace()):
        return text
    code = lines[start:]
    ends = [i for i, line in enumerate(code) if i and _is_prose(line)][:_MOST_TRIES]
    for end in [len(code), *ends]:
        part = "\n".join(code[:end]).rstrip() + "\n"
        for candidate in (part, textwrap.dedent(part)) if start else (part,):
            if parses(candidate):
                return candidate
    return "\n".join(code)
