"""Sets of words, written as the text that they are."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of a text.

    >>> sorted(words("if for while"))
    ['for', 'if', 'while']
    """
    return frozenset(text.split())
