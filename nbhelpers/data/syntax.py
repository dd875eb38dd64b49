"""Source text without comments, and its syntax tree as flat lists."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nbhelpers.errors import ConfigError, DataFlowUnavailable

# ------------------------------------------------------------------------------------------------
# Source text without comments and docstrings, as GraphCodeBERT's preparation leaves it.
#
# Java: a comment becomes one blank, and strings and characters are known, so that `"//"` stays.
# Python: comments and docstrings go, and tokens are set out again at their columns. The rules for
# Python are those of the `tokenize` module of Python 3.11, kept here because later versions
# tokenise f-strings and faulty code otherwise; text that it cannot tokenise stays as it is.
#
# Source: `remove_comments_and_docstrings` in microsoft/CodeBERT,
# GraphCodeBERT/clonedetection/parser/utils.py at commit 15034c0.


TAB_STOP = 8

_JAVA_START = re.compile(r"//|/\*|['\"]")
_JAVA_LITERAL = {
    quote: re.compile(rf"[^\\{quote}]*(?:\\.[^\\{quote}]*)*{quote}", re.DOTALL) for quote in "'\""
}

_PREFIX = r"(?:[bB][rR]?|[rR][bBfF]?|[fF][rR]?|[uU])?"
_PYTHON_TOKEN = re.compile(
    r"[ \f\t]*(?:"
    r"(?P<join>\\\r?\n|\Z)"
    r"|(?P<comment>\#[^\r\n]*)"
    rf"|(?P<long>{_PREFIX}(?:'''|\"\"\"))"
    r"|(?P<newline>\r?\n)"
    rf"|(?P<string>{_PREFIX}(?:"
    r"'[^\n'\\]*(?:\\.[^\n'\\]*)*(?:'|\\\r?\n)"
    r"|\"[^\n\"\\]*(?:\\.[^\n\"\\]*)*(?:\"|\\\r?\n)))"
    r"|(?P<other>\w+|!=|[-%&()*+,./:;<=>@\[\]^{|}~])"
    r")"
)
_PYTHON_END = {
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*'"),
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"'),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'),
}


class _CannotTokenise(Exception):
    """The text ends inside a string or a bracket, or its indentation fits no outer level."""


class _Piece(NamedTuple):
    """A token: where it starts and ends, lines from 1 and columns in characters from 0."""

    kind: str  # comment, string, newline (ends a statement), indent, other
    text: str
    line: int
    column: int
    end_line: int
    end_column: int


def remove_comments(code: str, language: str) -> str:
    r"""Return the text without comments, docstrings (Python) and blank lines.

    >>> remove_comments("int f() { // one\n\n  return 1; /* two\n */ }", "java")
    'int f() {  \n  return 1;   }'
    >>> remove_comments('def f():\n    "Say one."\n    return 1  # one\n', "python")
    'def f():\n    return 1  '
    """
    return "\n".join(text for _, text in stripped_lines(code, language))


def stripped_lines(code: str, language: str) -> list[tuple[int, str]]:
    """Return the lines that `remove_comments` joins, each with its number in `code` (from 1).

    Raises:
        KeyError: The language is neither "java" nor "python".
    """
    try:
        lines = {"java": _java_lines, "python": _python_lines}[language](code)
    except _CannotTokenise:
        return list(enumerate(code.split("\n"), start=1))
    return [(number, text) for number, text in lines if text.strip()]


class _Lines:
    """Text under construction that remembers where each of its lines began."""

    def __init__(self) -> None:
        self._done: list[tuple[int, str]] = []
        self._parts: list[str] = []
        self._began = 1

    def add(self, text: str, line: int) -> None:
        """Append text that starts at a line of the source."""
        first, *rest = text.split("\n")
        self._parts.append(first)
        for offset, part in enumerate(rest, start=1):
            self._done.append((self._began, "".join(self._parts)))
            self._began, self._parts = line + offset, [part]

    def finish(self) -> list[tuple[int, str]]:
        """Every line with the number of the line of the source in which it begins."""
        return [*self._done, (self._began, "".join(self._parts))]


def _java_lines(code: str) -> list[tuple[int, str]]:
    lines = _Lines()
    stop, line = 0, 1
    for start, end in _java_comments(code):
        lines.add(code[stop:start] + " ", line)
        line += code.count("\n", stop, end)
        stop = end
    lines.add(code[stop:], line)
    return lines.finish()


def _java_comments(code: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each comment; what opens and never closes is ordinary text.

    One opener that found no end says that no later one of its kind finds one either (a quote that
    is passed over is an escaped one, and what follows it is read alike), so the time is linear.
    """
    endless: set[str] = set()
    match = _JAVA_START.search(code)
    while match:
        start, opener = match.span()[0], match.group()
        end = -1 if opener in endless else _java_end(code, opener, match.end())
        if end < 0:
            endless.add(opener)
        elif opener[0] == "/":
            yield start, end
        match = _JAVA_START.search(code, end if end >= 0 else start + 1)


def _java_end(code: str, opener: str, start: int) -> int:
    """Return where what `opener` opens ends, or -1."""
    if opener == "//":
        end = code.find("\n", start)
        return len(code) if end < 0 else end
    if opener == "/*":
        end = code.find("*/", start)
        return end + 2 if end >= 0 else -1
    closed = _JAVA_LITERAL[opener].match(code, start)
    return closed.end() if closed else -1


def _python_lines(code: str) -> list[tuple[int, str]]:
    """Set the tokens out at their columns; a line is not broken where a backslash joins it."""
    lines = _Lines()
    before, last_line, last_column = "indent", 0, 0
    for piece in _PythonScanner(code).pieces():
        if piece.line > last_line:
            last_column = 0
        if piece.column > last_column:
            lines.add(" " * (piece.column - last_column), piece.line)
        docstring = piece.kind == "string" and (
            before in ("indent", "newline") or piece.column == 0
        )
        if piece.kind != "comment" and not docstring:
            lines.add(piece.text, piece.line)
        before, last_line, last_column = piece.kind, piece.end_line, piece.end_column
    return lines.finish()


class _PythonScanner:
    """The token stream of Python 3.11, as far as comments, strings and statements tell apart."""

    def __init__(self, code: str) -> None:
        self.lines = code.split("\n")
        self.lines = [line + "\n" for line in self.lines[:-1]] + self.lines[-1:]
        self.depth = 0  # of brackets
        self.joined = False  # the line before ended in a backslash
        self.blank_end = False  # the last line is white space, without a line end
        self.indents = [0]
        # An open string: where and how it began, what ends it. `short` (it may go on only after a
        # backslash) is not reset by a string that breaks off, as in the original.
        self.open: tuple[int, int, str, re.Pattern[str]] | None = None
        self.short = False

    def pieces(self) -> Iterator[_Piece]:
        """Yield the tokens in order.

        Raises:
            _CannotTokenise: `tokenize` of Python 3.11 would raise here.
        """
        for number, line in enumerate(self.lines, start=1):
            if not line:
                break
            column = 0
            if self.open:
                column, pieces = self._go_on(number, line)
                yield from pieces
            elif not self.depth and not self.joined:
                column, pieces = self._begin(number, line)
                yield from pieces
            self.joined = False
            yield from self._rest(number, line, column)
        if self.open or self.depth or self.joined:
            raise _CannotTokenise
        last = self.lines[-1]
        if last and not self.blank_end and last[-1] != "\r" and last.strip()[:1] != "#":
            end = (len(self.lines), len(last))
            yield _Piece("newline", "", *end, *end)

    def _go_on(self, number: int, line: str) -> tuple[int, list[_Piece]]:
        """Continue an open string; return the column after it and the token that it ends."""
        assert self.open is not None
        start_line, start_column, text, pattern = self.open
        closed = pattern.match(line)
        if closed:
            end = closed.end()
            self.open, self.short = None, False
            whole = text + line[:end]
            return end, [_Piece("string", whole, start_line, start_column, number, end)]
        end = len(line)
        if self.short and not line.endswith(("\\\n", "\\\r\n")):
            self.open = None
            return end, [_Piece("other", text + line, start_line, start_column, number, end)]
        self.open = (start_line, start_column, text + line, pattern)
        return end, []

    def _begin(self, number: int, line: str) -> tuple[int, list[_Piece]]:
        """Read the indentation of a statement, or a whole line that holds none."""
        start = len(line) - len(line.lstrip(" \t\f"))
        rest, end = line[start:], len(line)
        if not rest:
            self.blank_end = True
            return end, []
        if rest[0] in "#\r\n":
            comment = rest.rstrip("\r\n") if rest[0] == "#" else ""
            column = start + len(comment)
            blank = _Piece("other", line[column:], number, column, number, end)
            if not comment:
                return end, [blank]
            return end, [_Piece("comment", comment, number, start, number, column), blank]
        width, pieces = _width(line[:start]), []
        if width > self.indents[-1]:
            self.indents.append(width)
            pieces.append(_Piece("indent", line[:start], number, 0, number, start))
        while width < self.indents[-1]:
            if width not in self.indents:
                raise _CannotTokenise
            self.indents.pop()
            pieces.append(_Piece("other", "", number, start, number, start))
        return start, pieces

    def _rest(self, number: int, line: str, column: int) -> Iterator[_Piece]:
        """Tokens from a column to the end of the line, or to a string that goes on."""
        while column < len(line) and not self.open:
            match = _PYTHON_TOKEN.match(line, column)
            kind = match.lastgroup if match else None
            if match is None or kind is None:  # a character that begins no token
                yield _Piece("other", line[column], number, column, number, column + 1)
                column += 1
                continue
            start, column = match.span(kind)
            text = match[kind]
            if kind == "join":
                self.joined = bool(text)
                continue
            if kind in ("long", "string"):
                column = self._string(number, line, start, text)
                if self.open:
                    return
                kind, text = "string", line[start:column]
            elif kind == "newline" and self.depth > 0:
                kind = "other"
            elif text in ("(", "[", "{"):
                self.depth += 1
            elif text in (")", "]", "}"):
                self.depth -= 1
            yield _Piece(kind, text, number, start, number, column)

    def _string(self, number: int, line: str, start: int, text: str) -> int:
        """Return where a string ends, or open it."""
        long = text.endswith(("'''", '"""')) and len(text.lstrip("bBrRfFuU")) == 3
        quote = text.lstrip("bBrRfFuU")[: 3 if long else 1]
        if not long:
            if text[-1] != "\n":
                return start + len(text)
            self.short = True
        else:
            closed = _PYTHON_END[quote].match(line, start + len(text))
            if closed:
                return closed.end()
        self.open = (number, start, line[start:], _PYTHON_END[quote])
        return len(line)


def _width(blanks: str) -> int:
    """Columns that leading white space stands for."""
    width = 0
    for blank in blanks:
        if blank == "\t":
            width = (width // TAB_STOP + 1) * TAB_STOP
        else:
            width = 0 if blank == "\f" else width + 1
    return width


# ------------------------------------------------------------------------------------------------
# A syntax tree as flat lists, so that what follows needs neither recursion nor the parser.
#
# Nodes are numbered in preorder (a node stands before its children), tokens in reading order. The
# leaf rule is the one of GraphCodeBERT's clone detection: a node without children, or a string, is
# a token; a comment is none.
#
# Source: `tree_to_token_index` and `index_to_code_token` in microsoft/CodeBERT,
# GraphCodeBERT/clonedetection/parser/utils.py at commit 15034c0. Unlike there, columns are bytes
# throughout, so text beyond ASCII stays whole.


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
        tree_language = tree_sitter.Language(module.language())
        tree_sitter.Parser(tree_language)
    except (ImportError, ValueError, TypeError) as error:
        raise DataFlowUnavailable(
            f"The grammar of {language} cannot be used: {error}",
            fix=f"pip install -U tree-sitter {package}",
        ) from error
    ids = {tree_language.field_id_for_name(name): name for name in _FIELDS}
    ids.pop(None, None)  # a field that the grammar does not have
    return tree_language, {}, ids


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
    span: tuple[int, int],
) -> None:
    """Fill the lists of nodes and the spans of the tokens.

    What lies outside `extent` belongs to the wrapper and is no token.
    """
    cursor = root.walk()
    down, onward, up = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    low, high = span
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
    cursor, errors = root.walk(), []
    done = False
    while not done:
        node = cursor.node
        if node.is_error or node.is_missing:
            errors.append((node.start_byte, len(errors), node))
        if not node.has_error or node.is_error or not cursor.goto_first_child():
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    done = True
                    break
    if not errors:  # what is missing belongs to a hidden node
        return "the parser recovered from an error; read as far as it did"
    byte, _, node = min(errors)
    if node.is_missing:
        what = f"a {node.type!r} is missing"
    else:
        text = node.text.decode("utf-8", "replace")
        snippet = " ".join(text.split()) or text  # a lone line separator is white space to Python
        short = snippet[:_SNIPPET] + ("…" if len(snippet) > _SNIPPET else "")
        what = f"{short!r} does not fit"
    more = f" (and {len(errors) - 1} more like it)" if len(errors) > 1 else ""
    return f"line {tree.line_at(byte)}: {what}{more}; read as far as the parser recovered"
