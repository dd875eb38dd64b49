"""A script exactly as it lies on the disk, its syntax tree, and what its names say it does."""

from __future__ import annotations

import ast
import bisect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbhelpers.common.files import absence, kind_of
from nbhelpers.errors import ConfigError

# ------------------------------------------------------------------------------------------------
# What the parts of a script do, by the names in them.


EVAL = {"evaluate", "evaluation", "eval", "validate", "validation", "valid", "evaluating"}
SAVE = {"save", "saving", "dump"}
TEST = {"test", "predict", "prediction", "predictions", "inference"}
_NOT_AN_ACTION = {"args", "arg", "config", "input", "inputs", "path", "load", "literal", "mode"}
_NOT_EVALUATING = {"get", "build", "make", "dataset", "loader", "dataloader", "examples"}
LOGGING = {"print", "info", "warning", "debug", "log", "error", "exit", "format"}


def last_name(node: ast.AST) -> str:
    """Return the last identifier of a name, an attribute or a call; empty for anything else.

    >>> last_name(ast.parse("torch.distributed.get_rank()").body[0].value)
    'get_rank'
    """
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def base_name(call: ast.Call) -> str:
    """Return the identifier in front of a method: `dist` in `dist.barrier()`; empty without one."""
    return last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def words(name: str) -> set[str]:
    """Return the words of an identifier.

    >>> sorted(words("evaluate_during_training")), sorted(words("saveModel"))
    (['during', 'evaluate', 'training'], ['model', 'save'])
    """
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def calls(*nodes: ast.AST) -> Iterator[ast.Call]:
    """Yield every call in some nodes."""
    for node in nodes:
        yield from (each for each in ast.walk(node) if isinstance(each, ast.Call))


def is_evaluation(call: ast.Call) -> bool:
    """Whether a call evaluates: `evaluate(…)`, `trainer.validate(…)`, but not `model.eval()`."""
    name = last_name(call)
    is_mode = name == "eval" and not (call.args or call.keywords)
    is_other = words(name) & (_NOT_AN_ACTION | _NOT_EVALUATING)
    return bool(words(name) & EVAL) and not is_other and not is_mode


def is_save(call: ast.Call) -> bool:
    """Whether a call writes results or weights: `torch.save`, `save_pretrained`, `makedirs`."""
    name = last_name(call)
    is_named = bool(words(name) & SAVE) and not words(name) & _NOT_AN_ACTION
    return is_named or name in ("makedirs", "mkdir")


def is_training(*nodes: ast.AST) -> bool:
    """Whether some nodes hold the training itself."""
    return any(last_name(call) == "backward" for call in calls(*nodes))


def is_written_open(call: ast.Call) -> bool:
    """Whether a call opens a file to write: `open(path, "w")`, `path.open("w")`."""
    if last_name(call) != "open":
        return False
    modes = [*call.args[:2], *(each.value for each in call.keywords if each.arg == "mode")]
    texts = [str(getattr(mode, "value", "")) for mode in modes]
    if not isinstance(call.func, ast.Attribute):
        texts = texts[1:] if call.args else texts
    return any(re.fullmatch(r"[rwax][bt+]{0,2}", text) and text.strip("rbt") for text in texts)


# ------------------------------------------------------------------------------------------------
# A script exactly as it lies on the disk, its syntax tree, and places in both.
#
# The tree says what to change, the text is what changes: an edit replaces characters between two
# places, so whatever is not edited keeps its bytes (line ends, tabs, byte order mark, encoding).


MAX_SOURCE_BYTES = 2**20  # ten times the largest script that was seen
BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(r"\r\n|\r|\n")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from `start` to `end` of a script's text; equal ends insert."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A parsed script; `text` is without its byte order mark and keeps its line ends."""

    bom: bytes
    text: str
    tree: ast.Module
    starts: tuple[int, ...]
    nodes: tuple[ast.AST, ...] = field(repr=False)  # walked once: a walk costs as much as parsing
    calls: tuple[ast.Call, ...] = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)

    def to_bytes(self, text: str) -> bytes:
        """Return a text as the bytes of a file."""
        return self.bom + text.encode()

    def place(self, line: int, column_bytes: int) -> int:
        """Return the character at a node's line (from 1) and column (UTF-8 bytes, from 0)."""
        start = self.starts[line - 1]
        head = self.text[start : start + column_bytes].encode()[:column_bytes]
        return start + len(head.decode(errors="ignore"))  # Python 3.11 misplaces f-string parts

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node's text starts and ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.place(node.lineno, node.col_offset)
        return start, self.place(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Return a node's text as it was written."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_start(self, place: int) -> int:
        """Return where the line of a place starts."""
        return self.starts[bisect.bisect_right(self.starts, place) - 1]

    def line_end(self, place: int) -> str:
        """Return the line end that the line of a place has, else the first of the file."""
        match = LINE_END.search(self.text, place) or LINE_END.search(self.text)
        return match.group() if match else "\n"

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, from the inside to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, lambda or class a node stands in, else the module."""
        return next((each for each in self.ancestors(node) if isinstance(each, SCOPES)), self.tree)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node belongs to."""
        if isinstance(node, ast.stmt):
            return node
        return next(each for each in self.ancestors(node) if isinstance(each, ast.stmt))


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits made; those at one place keep their order.

    >>> apply_edits("a b", [Edit(0, 1, "x"), Edit(3, 3, "!")])
    'x b!'
    """
    parts, done = [], 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):
        assert edit.start >= done, "edits overlap"
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def read_script(path: Path, raw: bytes | None = None) -> Script:
    """Read and parse a Python file.

    Args:
        path: Where it lies, and what messages call it.
        raw: Its bytes, where they are at hand already.

    Raises:
        ConfigError: It cannot be used, with the reason and the line.
    """
    raw = _read(path) if raw is None else raw
    bom = BOM if raw.startswith(BOM) else b""
    text = _decode(path, raw[len(bom) :])
    plain = LINE_END.sub("\n", text)
    tree = _parse(path, plain)
    nodes = tuple(ast.walk(tree))
    return Script(
        bom=bom,
        text=text,
        tree=tree,
        starts=(0, *(match.end() for match in LINE_END.finditer(text))),
        nodes=nodes,
        calls=tuple(node for node in nodes if isinstance(node, ast.Call)),
        parents={child: node for node in nodes for child in ast.iter_child_nodes(node)},
    )


def _refused(path: Path, what: str, fix: str) -> ConfigError:
    return ConfigError(f"{path}: {what}. Nothing was changed.", fix=fix)


def _read(path: Path) -> bytes:
    if kind_of(path) != "file":
        raise _refused(path, absence(path), "name a Python file, for instance run.py")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        text = f"cannot be read ({error.strerror})"
        raise _refused(path, text, "check its permissions") from error
    if len(raw) > MAX_SOURCE_BYTES:
        size = f"is larger than {MAX_SOURCE_BYTES // 2**20} MiB, so it is no training script"
        raise _refused(path, size, "name the script itself")
    if not raw.removeprefix(BOM).strip():
        raise _refused(path, "is empty", "name the script that trains")
    if b"\0" in raw:
        text = "holds zero bytes: it is binary, or saved as UTF-16"
        raise _refused(path, text, "save it as UTF-8, or name the Python file")
    return raw


def _decode(path: Path, body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise _refused(path, f"is not valid UTF-8 in line {line}", "save it as UTF-8") from error


def _parse(path: Path, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are not ours to mend
            tree = ast.parse(text)
            compile(text, str(path), "exec", dont_inherit=True)
            return tree
    except SyntaxError as error:
        raise _unparsable(path, text, error) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _refused(path, f"cannot be parsed ({type(error).__name__})", "check it") from error


def _unparsable(path: Path, text: str, error: SyntaxError) -> ConfigError:
    """Say why a script does not parse: broken by the seeds' `sed`, or as Python says it."""
    lines, number = text.split("\n"), error.lineno or 1
    what = f"does not parse: line {number}: {error.msg}"
    fix = f"mend line {number}; if it is right for a later Python than this one, "
    fix += f"{sys.version_info.major}.{sys.version_info.minor}, install nbhelpers there"
    is_indentation = isinstance(error, IndentationError)
    if is_indentation and "LOCAL_RANK" in "".join(lines[max(number - 3, 0) : number]):
        what = f"line {number} does not fit the indentation around it: it looks like the two lines "
        what += "that `sed` inserts, which assume four spaces"
        fix = "delete those two lines, then run patch-legacy again"
    return _refused(path, what, fix)
