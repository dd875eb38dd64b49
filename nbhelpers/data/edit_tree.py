"""Programs that an edit may change: read without a guess, and compared with what they were."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nbhelpers.data.syntax import COMMENTS, Tree, parse
from nbhelpers.errors import DataFlowUnavailable

MAX_DEPTH = 400  # looking up from a node must stay cheap

# One leaf although the grammar gives them children.
_WHOLE = frozenset({"string", "string_literal", "template_expression"})
_SIMPLE_STRING = re.compile(r"""([bBrRuU]{0,2})(['"])([^'"\\\n{}]*)\2""")


class Unsure(Exception):
    """This program cannot be edited without a guess."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text.

    >>> sorted(words("if for while"))
    ['for', 'if', 'while']
    """
    return frozenset(text.split())


JAVA_TYPES = words(
    "class_declaration interface_declaration enum_declaration record_declaration "
    "annotation_type_declaration"
)
PYTHON_IMPORTS = words("import_statement import_from_statement future_import_statement")


def parse_clean(code: str, language: str) -> Tree:
    """Return the tree of a program in Python or Java, comments included.

    Raises:
        Unsure: It does not parse, is nested too deep, UTF-8 cannot hold it, or the grammar is not
            installed.
    """
    try:
        tree = parse(code.encode(), language, whole=_WHOLE)
    except (UnicodeEncodeError, DataFlowUnavailable) as error:
        raise Unsure from error
    tree.leaves = [n for n in tree.leaves if not _is_layout(tree, n)]
    if not tree.clean or max(depths(tree), default=0) > MAX_DEPTH:
        raise Unsure
    return tree


def _is_layout(tree: Tree, leaf: int) -> bool:
    return tree.starts[leaf] == tree.stops[leaf] or tree.kinds[leaf] == "line_continuation"


def depths(tree: Tree) -> list[int]:
    """How deep each node stands."""
    levels: list[int] = []
    for parent in tree.parents:
        levels.append(levels[parent] + 1 if parent >= 0 else 0)
    return levels


def tokens(tree: Tree, ignored: Iterable[str] = ()) -> list[str]:
    """The texts of the leaves that are no comments and of no ignored kind."""
    skipped = COMMENTS | set(ignored)
    return [tree.text(leaf) for leaf in tree.leaves if tree.kinds[leaf] not in skipped]


def comments(tree: Tree) -> list[str]:
    """The texts of the comments."""
    return [tree.text(leaf) for leaf in tree.leaves if tree.kinds[leaf] in COMMENTS]


def require_same(before: Tree, after: Tree, language: str) -> None:
    """The trees, tokens and comments are those of one program.

    Raises:
        Unsure: They are not.
    """
    # Blanks to the parser, or where statements on one line were parted.
    ignored = (";", "line_continuation") if language == "python" else ()
    if _shape(before, ignored) != _shape(after, ignored):
        raise Unsure
    same = same_string if language == "python" else str
    if [*map(same, tokens(before, ignored))] != [*map(same, tokens(after, ignored))]:
        raise Unsure
    if [c.split() for c in comments(before)] != [c.split() for c in comments(after)]:
        raise Unsure


def _shape(tree: Tree, ignored: Sequence[str]) -> list[tuple[str, int]]:
    """Each node's kind and depth, without comments and the kinds to ignore."""
    skipped = COMMENTS | set(ignored)
    nodes = zip(tree.kinds, depths(tree), strict=True)
    return [node for node in nodes if node[0] not in skipped]


def same_string(text: str, quote: str = '"') -> str:
    """A string in these quotes, where either quote can hold it."""
    simple = _SIMPLE_STRING.fullmatch(text)
    return f"{simple[1]}{quote}{simple[3]}{quote}" if simple else text


def require_renamed(before: Tree, after: Tree, new: dict[str, str]) -> None:
    """The trees are the same, and each name is its old or its one new name.

    Raises:
        Unsure: They are not.
    """
    if before.kinds != after.kinds or before.parents != after.parents:
        raise Unsure
    for node in (*before.leaves, *before.inner):
        old = before.text(node)
        if "string" in before.kinds[node] and before.ends[node] > node + 1:
            continue  # its parts are compared instead
        if after.text(node) not in (old, new.get(old)):
            raise Unsure
