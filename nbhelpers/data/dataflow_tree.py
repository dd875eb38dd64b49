"""A syntax tree as flat lists, so that what follows needs neither recursion nor the parser.

Nodes are numbered in preorder (a node stands before its children), tokens in reading order. The
leaf rule is the one of GraphCodeBERT's clone detection: a node without children, or a string, is a
token; a comment is none.

Source: `tree_to_token_index` and `index_to_code_token` in microsoft/CodeBERT,
GraphCodeBERT/clonedetection/parser/utils.py at commit 15034c0. Unlike there, columns are bytes
throughout, so text beyond ASCII stays whole.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ConfigError, DataFlowUnavailable
from .comments import stripped_lines

PACKAGES = {"java": "tree-sitter-java", "python": "tree-sitter-python"}
COMPATS = ("maintained", "checkpoint")

# What a piece of Java may need around it to parse: a constructor or a static block wants a class,
# a value with a default an annotation type, a constant with a body an enum.
_JAVA_WRAPPERS = ("class W {", "@interface W {", "enum W {")
_FIELDS = ("name", "value", "left", "right", "body")
_SNIPPET = 40  # characters of the code that a message shows


class Tree:
    """The syntax tree of one function.

    Args:
        source: The text that was parsed, without comments.
        numbers: For each line of `source`, its number in the text as it was written.
        clean: Whether it parsed without an error.
    """

    def __init__(self, source: bytes, numbers: Sequence[int], *, clean: bool) -> None:
        self.source, self.numbers, self.clean = source, numbers, clean
        self.kinds: list[str] = []  # (n_nodes,) the grammar's name
        self.fields: list[str] = []  # (n_nodes,) name of the field in the parent, "" for others
        self.ends: list[int] = []  # (n_nodes,) the first node after the subtree
        self.firsts: list[int] = []  # (n_nodes + 1,) tokens before the node
        self.parts: dict[int, int] = {}  # string -> children that the grammar gives it
        self.tokens: list[str] = []  # (n_tokens,) text
        self.token_kinds: list[str] = []  # (n_tokens,)
        self.spans: list[tuple[int, int]] = []  # (n_tokens,) bytes of `source`
        self.places: Sequence[int] = ()  # (n_tokens,) the last token with the same extent
        self.problem = ""

    def children(self, node: int) -> Iterator[int]:
        """Yield the children of a node in order."""
        child, end = node + 1, self.ends[node]
        while child < end:
            yield child
            child = self.ends[child]

    def field(self, node: int, name: str) -> int | None:
        """Return the first child in a field, or None."""
        return next((c for c in self.children(node) if self.fields[c] == name), None)

    def token_of(self, node: int) -> int | None:
        """Return the token that a node without children is, or None for a comment."""
        first = self.firsts[node]
        return first if self.firsts[node + 1] > first else None

    def line_of(self, node: int) -> int:
        """Line of the text as written, from 1, where the first token of a node stands."""
        return self.line_at(self.spans[self.firsts[node]][0])

    def line_at(self, byte: int) -> int:
        """Line of the text as written, from 1, for a byte of `source`."""
        return self.numbers[self.source.count(b"\n", 0, byte)]


def parse(code: str, language: str, compat: str) -> Tree:
    """Return the tree of a function without its comments.

    Raises:
        ConfigError: `compat` is no known value.
        DataFlowUnavailable: The language is unknown, its grammar is not installed, or the text has
            no token.
    """
    _, kinds, fields = grammar(require_language(language))
    leaves = leaf_kinds(language, compat)
    require_text(code, "The code")
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise DataFlowUnavailable(
            f"The code has a lone surrogate at character {error.start}, which UTF-8 cannot hold.",
            fix="read the file again with the right encoding",
        ) from error
    lines = stripped_lines(code, language)
    source = "\n".join(text for _, text in lines).encode()
    root, offset, clean = parse_root(source, language)
    tree = Tree(source, [number for number, _ in lines] or [1], clean=clean)
    _flatten(tree, root, leaves, kinds, fields, (offset, offset + len(source)))
    if not any(end > start for start, end in tree.spans):
        raise DataFlowUnavailable(
            "The code has only comments." if code.strip() else "The code is empty.",
            fix="remove this function, or give its text",
        )
    _read_tokens(tree)
    if not clean:
        tree.problem = _describe_errors(root, tree)
    return tree


def require_text(code: object, name: str) -> None:
    """Stop where code is something else than text.

    Raises:
        DataFlowUnavailable: It is bytes, a list, nothing.
    """
    if isinstance(code, str):
        return
    is_bytes = isinstance(code, bytes | bytearray)
    raise DataFlowUnavailable(
        f"{name} is of type {type(code).__name__}, not str.",
        fix='decode it: code.decode("utf-8")' if is_bytes else "give the text of a function",
    )


def require_language(language: object) -> str:
    """Return the language.

    Raises:
        DataFlowUnavailable: It is unknown.
    """
    if isinstance(language, str) and language in PACKAGES:
        return language
    raise DataFlowUnavailable(
        f"There is no data flow for the language {language!r}.",
        fix=f"take one of: {', '.join(PACKAGES)}",
    )


@functools.cache
def grammar(language: str) -> tuple[Any, dict[int, str], dict[int, str]]:
    """Return the grammar, the names of node kinds seen so far, and the fields that matter.

    Raises:
        DataFlowUnavailable: Its grammar is not installed.
    """
    package = PACKAGES[language]
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        module = importlib.import_module(package.replace("-", "_"))
        found = tree_sitter.Language(module.language())
        tree_sitter.Parser(found)
    except (ImportError, ValueError, TypeError) as error:
        raise DataFlowUnavailable(
            f"The grammar of {language} cannot be used: {error}",
            fix=f"pip install -U tree-sitter {package}",
        ) from error
    ids = {found.field_id_for_name(name): name for name in _FIELDS}
    ids.pop(None, None)  # a field that the grammar does not have
    return found, {}, ids


def versions(language: str) -> str:
    """Return what decides the tree: the versions of the parser and of the grammar."""
    grammar(language)
    names = ("tree-sitter", PACKAGES[language])
    return " ".join(f"{name}=={importlib.metadata.version(name)}" for name in names)


def leaf_kinds(language: str, compat: str) -> frozenset[str]:
    """Return the kinds of node that are one token although they have children.

    Raises:
        ConfigError: `compat` is no known value.
    """
    if compat not in COMPATS:
        raise ConfigError(
            f"grammar_compat is {compat!r}.", fix=f"take one of: {', '.join(COMPATS)}"
        )
    whole = {"string"}
    if (language, compat) == ("java", "checkpoint"):
        whole |= {"string_literal", "character_literal"}
    return frozenset(whole)


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


def _flatten(
    tree: Tree,
    root: Any,
    leaves: frozenset[str],
    kinds: dict[int, str],
    fields: dict[int, str],
    extent: tuple[int, int],
) -> None:
    """Fill the lists of nodes and the spans of the tokens.

    What lies outside `extent` belongs to the wrapper and is no token.
    """
    cursor = root.walk()
    down, onward, up = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    low, high = extent
    spans = tree.spans
    above: list[int] = []
    while True:
        node, number = cursor.node, len(tree.kinds)
        kind = kinds.get(node.kind_id) or kinds.setdefault(node.kind_id, node.type)
        tree.kinds.append(kind)
        tree.fields.append(fields.get(cursor.field_id, ""))
        tree.firsts.append(len(spans))
        tree.ends.append(number + 1)
        if kind in leaves:
            tree.parts[number] = node.child_count
        elif down():
            above.append(number)
            continue
        start, end = node.start_byte, node.end_byte
        if kind != "comment" and low <= start and end <= high:
            spans.append((start - low, end - low))
            tree.token_kinds.append(kind)
        while not onward():
            if not above:
                tree.firsts.append(len(spans))
                return
            up()
            tree.ends[above.pop()] = len(tree.kinds)


def _read_tokens(tree: Tree) -> None:
    """Fill the lists of tokens. A token of several lines loses its line ends, as in the original.

    Two tokens of one extent are empty; what is said of one is said of the last of them.
    """
    spans = tree.spans
    if tree.source.isascii():
        text = tree.source.decode()
        tokens = [text[start:end] for start, end in spans]
    else:
        tokens = [tree.source[start:end].decode("utf-8", "replace") for start, end in spans]
    tree.tokens = [token.replace("\n", "") for token in tokens]
    tree.places = range(len(spans))
    if "" in tree.tokens:
        last = {span: i for i, span in enumerate(spans)}
        tree.places = [last[span] for span in spans]


def _describe_errors(root: Any, tree: Tree) -> str:
    """Say what the parser skipped or missed first, with its line, and how often it did."""
    cursor, found = root.walk(), []
    done = False
    while not done:
        node = cursor.node
        if node.is_error or node.is_missing:
            found.append((node.start_byte, len(found), node))
        if not node.has_error or node.is_error or not cursor.goto_first_child():
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    done = True
                    break
    if not found:  # what is missing belongs to a hidden node
        return "the parser recovered from an error; read as far as it did"
    byte, _, node = min(found)
    if node.is_missing:
        what = f"a {node.type!r} is missing"
    else:
        text = node.text.decode("utf-8", "replace")
        snippet = " ".join(text.split()) or text  # a lone line separator is white space to Python
        short = snippet[:_SNIPPET] + ("…" if len(snippet) > _SNIPPET else "")
        what = f"{short!r} does not fit"
    more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
    return f"line {tree.line_at(byte)}: {what}{more}; read as far as the parser recovered"
