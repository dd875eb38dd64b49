"""The syntax tree of a program in Java or Python as flat lists, which edits and data flow share."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

from nbhelpers.errors import DataFlowUnavailable

PACKAGES = {"java": "tree-sitter-java", "python": "tree-sitter-python"}
COMMENTS = frozenset({"comment", "line_comment", "block_comment"})

# What a piece of Java may need around it to parse: a constructor or a static block wants a class,
# a value with a default an annotation type, a constant with a body an enum.
_JAVA_WRAPPERS = ("class W {", "@interface W {", "enum W {")


class Tree:
    """A tree whose nodes are numbered in preorder (a node stands before its children).

    Nothing that follows needs recursion or the parser.

    Args:
        source: The text that was parsed.
        clean: Whether it parsed without an error.
    """

    def __init__(self, source: bytes, *, clean: bool) -> None:
        self.source, self.clean = source, clean
        self.kinds: list[str] = []  # (n_nodes,) the grammar's name
        self.parents: list[int] = []  # (n_nodes,) -1 at the root
        self.fields: list[str] = []  # (n_nodes,) name of the field in the parent, or ""
        self.starts: list[int] = []  # (n_nodes,) bytes of `source`
        self.stops: list[int] = []
        self.ends: list[int] = []  # (n_nodes,) the first node after the subtree
        self.leaves: list[int] = []  # tokens, and comments where they are nodes
        self.inner: list[int] = []  # nodes without children inside of a leaf

    def text(self, node: int) -> str:
        """The text of a node."""
        return self.source[self.starts[node] : self.stops[node]].decode("utf-8", "replace")

    def parent_kind(self, node: int) -> str:
        """The kind of the node above, "" at the root."""
        parent = self.parents[node]
        return self.kinds[parent] if parent >= 0 else ""

    def children(self, node: int) -> Iterator[int]:
        """Yield the children of a node in order."""
        child, end = node + 1, self.ends[node]
        while child < end:
            yield child
            child = self.ends[child]

    def field(self, node: int, name: str) -> int | None:
        """Return the first child in a field, or None."""
        return next((c for c in self.children(node) if self.fields[c] == name), None)

    def above(self, node: int) -> Iterator[int]:
        """Yield the nodes above, the nearest first."""
        node = self.parents[node]
        while node >= 0:
            yield node
            node = self.parents[node]

    def line_of(self, node: int) -> int:
        """The line, from 1, on which a node begins."""
        return self.source.count(b"\n", 0, max(self.starts[node], 0)) + 1


@functools.cache
def grammar(language: str) -> tuple[Any, dict[int, str]]:
    """Return the grammar, and a dict for the names of its kinds of node.

    Raises:
        DataFlowUnavailable: It is not installed.
    """
    package = PACKAGES[language]
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        module = importlib.import_module(package.replace("-", "_"))
        tree_language = tree_sitter.Language(module.language())
        tree_sitter.Parser(tree_language)
    except (ImportError, ValueError, TypeError) as error:
        raise DataFlowUnavailable(
            f"The grammar of {language} cannot be used: {error}",
            fix=f"pip install -U tree-sitter {package}",
        ) from error
    return tree_language, {}


def versions(language: str) -> str:
    """Return what decides a tree: the versions of the parser and of the grammar.

    Raises:
        DataFlowUnavailable: The grammar is not installed.
    """
    grammar(language)
    names = ("tree-sitter", PACKAGES[language])
    return " ".join(f"{name}=={importlib.metadata.version(name)}" for name in names)


def parse_root(source: bytes, language: str) -> tuple[Any, int, bool]:
    """Parse; return the node to read, where the source begins in it, and if it has no error."""
    import tree_sitter

    parser = tree_sitter.Parser(grammar(language)[0])
    bare = parser.parse(source).root_node
    if not bare.has_error:
        return bare, 0, True
    for opening in _JAVA_WRAPPERS if language == "java" else ():
        text = opening.encode() + source + b"\n}"
        root = parser.parse(text).root_node
        # More than one child: the piece closes the wrapper itself and goes on behind it.
        if not root.has_error and root.child_count == 1:
            body = root.children[0].child_by_field_name("body")
            return body, len(opening), True
    return bare, 0, False


def parse(
    source: bytes, language: str, *, whole: frozenset[str], skipped: frozenset[str] = frozenset()
) -> Tree:
    """Return the tree of a program.

    Args:
        source: The program in UTF-8.
        language: "java" or "python".
        whole: Kinds of node that are one leaf although they have children.
        skipped: Kinds of node without children that are left out.

    Raises:
        DataFlowUnavailable: The grammar is not installed.
    """
    root, offset, clean = parse_root(source, language)
    tree = Tree(source, clean=clean)
    names, high = grammar(language)[1], len(source)
    kinds, parents, fields = tree.kinds, tree.parents, tree.fields
    starts, stops, ends, leaves = tree.starts, tree.stops, tree.ends, tree.leaves
    cursor = root.walk()
    down, onward, up = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    above = [-1]
    string = -1  # the leaf that the cursor is in
    while True:
        node, number = cursor.node, len(kinds)
        kind = names.get(node.kind_id) or names.setdefault(node.kind_id, node.type)
        if kind not in skipped:
            start, stop = node.start_byte - offset, node.end_byte - offset
            kinds.append(kind)
            parents.append(above[-1])
            fields.append(cursor.field_name or "")
            starts.append(start)
            stops.append(stop)
            ends.append(number + 1)
            is_inside = start >= 0 and stop <= high  # else it belongs to a wrapper
            if string < 0 and kind in whole and is_inside:
                string = number
                leaves.append(number)
            if down():
                above.append(number)
                continue
            if string >= 0:
                tree.inner.append(number)
            elif is_inside:
                leaves.append(number)
            if number == string:
                string = -1
        while not onward():
            if len(above) == 1:
                return tree
            up()
            done = above.pop()
            ends[done] = len(kinds)
            if done == string:
                string = -1
