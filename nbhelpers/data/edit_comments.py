"""A program without its comments, and without its docstrings in Python; all else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nbhelpers.data.edit_tree import Unsure, comments, parse_clean, tokens
from nbhelpers.data.syntax import COMMENTS, Tree

# Read with Pygments: language -> its name there.
LEXERS = {
    **{name: name for name in ("c", "cpp", "csharp", "javascript", "typescript")},
    **{name: name for name in ("go", "rust", "kotlin")},
}
_BY_LINE = frozenset({"javascript", "typescript", "go", "kotlin"})  # a line end ends a statement
# A string within a hole of a string, which the lexer of Kotlin takes for its end.
_KOTLIN_HOLE = re.compile(r'"[^"\n]*\$\{[^}\n]*"')
_BLANKS = " \t\f\r\v"

# (first place, place behind the last, what stands there instead)
Cut = tuple[int, int, str]


def strip_tree(tree: Tree, language: str) -> str:
    """Return a program in Python or Java without its comments and docstrings.

    Raises:
        Unsure: Nothing else is left, or more would change.
    """
    text = _without_comments(tree, language)
    if not text.strip():
        raise Unsure
    after = parse_clean(text, language)
    ignored = ("string", "pass", ";") if language == "python" else ()
    is_done = not comments(after) and _without_comments(after, language) == text
    if not is_done or tokens(tree, ignored) != tokens(after, ignored):
        raise Unsure
    return text


def _without_comments(tree: Tree, language: str) -> str:
    cuts = [
        (tree.starts[leaf], tree.stops[leaf], "")
        for leaf in tree.leaves
        if tree.kinds[leaf] in COMMENTS
    ]
    if language == "python" and b"__doc__" not in tree.source:
        cuts += _docstrings(tree)
    # Latin-1 has a character for each byte, so that places stay what they are.
    return cut_out(tree.source.decode("latin-1"), cuts).encode("latin-1").decode()


def _docstrings(tree: Tree) -> list[Cut]:
    """Statements that are one string; the first is `pass` where its block would be empty."""
    cuts: list[Cut] = []
    for node, kind in enumerate(tree.kinds):
        if kind not in ("block", "module"):
            continue
        parts = [c for c in tree.children(node) if tree.kinds[c] not in ("comment", ";")]
        strings = [c for c in parts if _is_text(tree, c)]
        for string in strings:
            is_needed = kind == "block" and string == parts[0] and len(strings) == len(parts)
            stop = tree.stops[string]
            if not is_needed:
                behind = re.compile(rb"[ \t]*;").match(tree.source, stop)
                stop = behind.end() if behind else stop
            cuts.append((tree.starts[string], stop, "pass" if is_needed else ""))
    return cuts


def _is_text(tree: Tree, node: int) -> bool:
    """Is this statement one string in which nothing is computed?"""
    children = list(tree.children(node))
    if tree.kinds[node] != "expression_statement" or len(children) != 1:
        return False
    string = children[0]
    parts = tree.kinds[string : tree.ends[string]]
    return parts[0] == "string" and "interpolation" not in parts


def cut_out(source: str, cuts: Iterable[Cut]) -> str:
    """Replace pieces of a text; a line of which nothing is left goes too.

    Two words that only a comment kept apart stay apart; blanks before it go where it ended a line.
    """
    out, copied_to = "", 0
    for start, stop, instead in sorted(cuts):
        if start < copied_to:
            continue
        out += source[copied_to:start] + instead
        copied_to = stop
        if instead:
            continue
        while copied_to < len(source) and source[copied_to] in _BLANKS:
            copied_to += 1
        if copied_to == len(source) or source[copied_to] == "\n":
            out = out.rstrip(_BLANKS)
            copied_to += copied_to < len(source) and out[-1:] in ("", "\n")  # a whole line
        elif out and out[-1] not in " \t\n(":
            out += " "
    out += source[copied_to:]
    return out if source.startswith("\n") else out.lstrip("\n")


def strip_text(code: str, language: str) -> str:
    """Return a program in a language of `LEXERS` without its comments.

    Raises:
        Unsure: Its tokens are not certain, nothing else is left, or more would change.
    """
    if language == "kotlin" and _KOTLIN_HOLE.search(code):
        raise Unsure
    before = list(_pieces(code, language))
    cuts = [(at, at + len(text), "") for at, text, is_comment in before if is_comment]
    text = cut_out(code, cuts)
    after = list(_pieces(text, language))
    if not text.strip() or any(is_comment for *_, is_comment in after):
        raise Unsure
    if _content(before, language) != _content(after, language):
        raise Unsure
    return text


def _pieces(code: str, language: str) -> Iterator[tuple[int, str, bool]]:
    """Yield where each token begins, its text, and whether it is a comment.

    What follows a comment without anything between belongs to it where it is one too.
    """
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Error, String

    # Not what a lexer counts to comments too: directives.
    kinds = {Comment, Comment.Single, Comment.SingleLine, Comment.Multiline, Comment.Special}
    kinds.add(String.Doc)

    comment: tuple[int, str] | None = None
    for at, kind, text in get_lexer_by_name(LEXERS[language]).get_tokens_unprocessed(code):
        if kind is Error:
            raise Unsure
        is_comment = kind in kinds
        if comment and is_comment:
            comment = (comment[0], comment[1] + text)
        elif is_comment and text.startswith(("//", "/*")):
            comment = (at, text)
        else:
            if comment:
                yield from _comment(*comment)
                comment = None
            yield at, text, False
    if comment:
        yield from _comment(*comment)


def _comment(at: int, text: str) -> Iterator[tuple[int, str, bool]]:
    """The comment, and the white space behind it that the lexer counts to it."""
    bare = text.rstrip()
    yield at, bare, True
    yield at + len(bare), text[len(bare) :], False


def _content(pieces: list[tuple[int, str, bool]], language: str) -> list[str]:
    """The tokens, with the line ends between them where these mean something."""
    content: list[str] = []
    for _, text, is_comment in pieces:
        is_code = bool(text.strip()) and not is_comment
        if is_code:
            content.append(text.strip())
        elif "\n" in text and language in _BY_LINE and content[-1:] not in ([], ["\n"]):
            content.append("\n")
    return content[:-1] if content[-1:] == ["\n"] else content
