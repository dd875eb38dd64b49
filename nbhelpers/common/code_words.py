"""Code as words and signs, as everything here cuts it that counts or compares words of code."""

from __future__ import annotations

import re

CODE_WORD = re.compile(r"\w+|[^\w\s]")


def code_words(text: str) -> list[str]:
    """Return the words and signs of a text, in order, without white space.

    >>> code_words("x_1 += f(2.5)")
    ['x_1', '+', '=', 'f', '(', '2', '.', '5', ')']
    """
    return CODE_WORD.findall(text)
