"""New names for what a program declares, drawn from pools that know nothing of the program."""

from __future__ import annotations

import builtins
import keyword
import random
from collections.abc import Iterator, Mapping

from .edit_words import words

_NOUNS = sorted(
    words(
        "item value data node entry result total index count key text line word number step state "
        "list table group record field part pair point range size limit start end level order "
        "rank score weight cost sum buffer queue stack tree graph path edge row column cell block "
        "chunk token symbol letter digit char code flag mode type name label tag source target "
        "input output left right first last next prev current best answer temp other base offset "
        "width height"
    )
)
_VERBS = sorted(
    words(
        "get make find compute build check process handle update apply run load read parse "
        "collect count merge split reduce convert solve print show add take select search"
    )
)
_ADJECTIVES = sorted(words("new old my all cur max min sub main raw tmp final inner small big the"))
_SHORT = "abcdefghijkmnpqrstuvwxyz"
_CLIPPED = sorted(
    words("val tmp res idx cnt num arr buf ptr cur lst str1 obj acc ans aux dat elem out ret")
)

JAVA_WORDS = words(
    "abstract assert boolean break byte case catch char class const continue default do "
    "double else enum extends final finally float for goto if implements import instanceof "
    "int interface long native new package private protected public return short static "
    "strictfp super switch synchronized this throw throws transient try void volatile while "
    "var yield record sealed permits true false null when module"
)
PYTHON_WORDS = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins)]) | words(
    "print exec self cls raw_input xrange unicode long reduce basestring unichr cmp file "
    "execfile reload buffer apply intern coerce raw"
)


def new_names(
    kinds: Mapping[str, str], taken: frozenset[str] | set[str], draw: random.Random
) -> dict[str, str]:
    """Return a new name for each old one, no two alike and none of those taken.

    Args:
        kinds: Old names with what they stand for: variable, function, class or constant.
        taken: Names that occur in the program, and words that are none.
        draw: Decides the pool, the case and the names.
    """
    pool = draw.choice(["letters", "words", "pairs", "clipped", "numbered", "mixed"])
    snake = draw.random() < 0.5
    used = set(taken)
    names: dict[str, str] = {}
    for old, kind in kinds.items():
        for name in _candidates(kind, pool, snake, draw):
            if name not in used:
                break
        used.add(name)
        names[old] = name
    return names


def _candidates(kind: str, pool: str, snake: bool, draw: random.Random) -> Iterator[str]:
    """Names without end; a name that is taken is followed by longer ones."""
    attempt = 0
    while True:
        words = _words(kind, pool, draw)
        if attempt > 3:
            words = [*words, str(draw.randrange(2, 10 + attempt))]
        yield _cased(words, kind, snake)
        attempt += 1


def _words(kind: str, pool: str, draw: random.Random) -> list[str]:
    if kind == "class":
        return draw.choices(_NOUNS, k=draw.choice([1, 2]))
    if pool == "mixed":
        pool = draw.choice(["letters", "words", "pairs", "clipped"])
    if kind == "function":
        if pool in ("letters", "numbered") and draw.random() < 0.5:
            return [draw.choice(["f", "g", "h", "fn", "func", "calc", "go", "helper"])]
        if pool == "clipped":
            return [draw.choice(_VERBS)]
        return [draw.choice(_VERBS), draw.choice(_NOUNS)]
    if pool == "letters":
        return [draw.choice(_SHORT)]
    if pool == "numbered":
        return [draw.choice(["x", "v", "t", "var", "a"]), str(draw.randrange(1, 40))]
    if pool == "clipped":
        return [draw.choice(_CLIPPED)]
    if pool == "words":
        return [draw.choice(_NOUNS)]
    return [draw.choice(_ADJECTIVES + _NOUNS), draw.choice(_NOUNS)]


def _cased(words: list[str], kind: str, snake: bool) -> str:
    *names, last = words
    number = last if last.isdigit() else ""
    names = names if number else words
    if kind == "class":
        return "".join(name.capitalize() for name in names) + number
    if kind == "constant":
        return "_".join(names).upper() + number
    if snake:
        return "_".join(names) + number
    return names[0] + "".join(name.capitalize() for name in names[1:]) + number


def kind_of_variable(name: str) -> str:
    """A name in capitals stays one."""
    return "constant" if len(name) > 1 and name.isupper() else "variable"
