"""Calls the commands as a user does, and reduces what they give to what is compared.

Everything that depends on the machine is masked here and nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
FOLDERS = HERE / "folders"
RUNS = "runs"
# No hub, no GPU, nothing that this user measured or simulated before, tables of one width.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "NBHELPERS_SPEEDS": os.devnull,
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "1000",
    "TERM": "dumb",
    "PYTHONPATH": str(CHECKOUT),
}
ABSENT = ("NBHELPERS_OWNER_PID", "NBHELPERS_FRESH", "NBHELPERS_LAUNCHED", "NBHELPERS_ROOT")
ABSENT += ("NBHELPERS_DATA", "FORCE_COLOR", "NO_COLOR", "TERMINAL_WIDTH")
# Lines that describe this machine or its libraries, not the run.
MACHINE_LINES = re.compile(r"^(?:Hardware\(|\s*(?:gpu|CPU|RAM|driver)\b.*(?:GiB|cores))")
DEFAULT_OF = re.compile(r"nbhelpers/[\w/]+\.py \(default\)")
NO_GPU = re.compile(r"no GPU here: [^;]*;")
ANSI = re.compile(r"\x1b\[[\d;]*m")
# Only budgets name the libraries that are here; a report names those of its run.
OTHERS_HERE = re.compile(r"simulated with [^;\n]*; your [\w.+, ]* may need more or less")
LIBRARIES = re.compile(r"\b(torch|transformers|accelerate|peft|trl|bitsandbytes) \d[\w.+]*")


@dataclass(frozen=True, slots=True)
class Place:
    """An empty working folder of its own with its run folders, cache and kept budgets."""

    root: Path
    masks: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.root / RUNS

    def mask(self, text: str) -> str:
        """Return a text without what depends on the machine."""
        marks = {
            str(self.root): "@ROOT@",
            sys.executable: "@PYTHON@",
            str(Path(sys.executable).parent): "@BIN@",
            str(CHECKOUT): "@CODE@",
            socket.gethostname(): "@HOST@",
        }
        for value, mark in marks.items():
            if len(value) > 3 or mark != "@HOST@":
                text = text.replace(value, mark)
        text = DEFAULT_OF.sub("@DEFAULT@", ANSI.sub("", text))
        return NO_GPU.sub("no GPU here: @REASON@;", text)


@contextlib.contextmanager
def place(*names: str, calibration: bool = False, keep: Path | None = None) -> Iterator[Place]:
    """Make a working folder with copies of these frozen folders, and work in it.

    It is removed at the end, unless it is the empty folder `keep`.
    """
    before, cwd = dict(os.environ), Path.cwd()
    root = (keep or Path(tempfile.mkdtemp(prefix="nbhelpers-golden-"))).resolve()
    made = Place(root)
    try:
        for name in names:
            _thaw(FOLDERS / name, made.runs / name, root)
        (root / "cache").mkdir()
        if calibration:
            shutil.copyfile(FOLDERS / "calibration.jsonl", root / "cache" / "calibration.jsonl")
        for name in ABSENT:
            os.environ.pop(name, None)
        places = {"NBHELPERS_CACHE": root / "cache", "NBHELPERS_BUDGETS": root / "budgets"}
        os.environ.update(ENVIRONMENT | {name: str(path) for name, path in places.items()})
        os.chdir(root)
        yield made
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def frozen_names() -> list[str]:
    """Return the names of all frozen run folders and studies."""
    return sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())


def _thaw(source: Path, target: Path, root: Path) -> None:
    """Copy a frozen folder, its marks filled in; older runs get older times."""
    created = ""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            text = path.read_text("utf-8").replace("@ROOT@", str(root))
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
            if path.name in ("run.json", "study.json"):
                found = re.search(r'"created_at": "([^"]+)"', text)
                created = found[1] if found else created
    from datetime import datetime

    if created:
        time = datetime.fromisoformat(created).timestamp()
        for path in [*target.rglob("*"), target]:
            os.utime(path, (time, time))


def call(where: Place, *words: str) -> dict[str, Any]:
    """Run a command in this process; return its exit code, stdout and the error's first line."""
    raw = call_raw(where, *words)
    out = where.mask(raw["out"])
    if words[0] in ("plan", "budget", "study"):
        out = LIBRARIES.sub(r"\1 @VERSION@", OTHERS_HERE.sub("", out))
    given: dict[str, Any] = {"code": raw["code"], "out": lines(out)}
    if raw["code"]:
        given["error"] = first_error(where.mask(raw["err"]))
    return given


def call_raw(where: Place, *words: str) -> dict[str, Any]:
    """Run a command in this process; return exit code, stdout and stderr as they are."""
    from nbhelpers.cli.app import main

    out, err, argv, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["nbhelpers", *(word.replace("@ROOT@", str(where.root)) for word in words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = argv
    return {"code": code, "out": ANSI.sub("", out.getvalue()), "err": err.getvalue()}


def lines(text: str) -> list[str]:
    """Return the cells of a text in order: words one blank apart, wrapped lines joined.

    A block between blank lines is one entry where prose was wrapped, since a path's length moves
    the breaks; a line of a table, or one that begins anew, is an entry of its own.
    """
    entries: list[str] = []
    is_open = False
    for line in text.splitlines():
        if not line.strip() or MACHINE_LINES.match(line):
            is_open = False
            continue
        words = " ".join(line.split())
        is_table = bool(re.search(r"\S {2,}\S", line)) or line.startswith(" ")
        if is_open and not is_table:
            entries[-1] += f" {words}"
        else:
            entries.append(words)
        is_open = not is_table and not words.endswith((".", ":"))
    return entries


def first_error(text: str) -> str:
    """Return the line that names an error: its class and message."""
    every = [line.strip() for line in text.splitlines() if line.strip(" │╭╰╮╯─")]
    named = [line for line in every if re.match(r"[A-Z]\w+: ", line) and "Usage: " not in line]
    usage = [line.strip("│ ") for line in every if line.startswith("│")]
    return (usage or named or every or [""])[0]


class Page(HTMLParser):
    """Collects a page's headings, cells, captions and pictures in their order."""

    KEPT = ("h1", "h2", "h3", "h4", "figcaption", "summary", "td", "th", "title")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.row: list[str] | None = None
        self.text: list[str] = []
        self.prose: list[str] = []
        self.inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.row = []
        elif tag == "img":
            self.seen.append({"img": dict(attrs).get("alt") or ""})
        if tag in self.KEPT or tag in ("style", "script"):
            self._flush()
            self.inside, self.text = tag, []

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            words = " ".join("".join(self.text).split())
            if tag in ("td", "th") and self.row is not None:
                self.row.append(words)
            elif tag in self.KEPT:
                self.seen.append({tag: words})
            self.inside = None
        elif tag == "tr" and self.row is not None:
            self.seen.append(self.row)
            self.row = None
        elif tag in ("p", "li", "pre", "div"):
            self._flush()

    def handle_data(self, data: str) -> None:
        (self.prose if self.inside is None else self.text).append(data)

    def _flush(self) -> None:
        """Keep the numbers of a paragraph; its words may be written anew."""
        numbers = re.findall(r"\d[\d,.]*\d|\d", "".join(self.prose))
        self.prose = []
        if numbers:
            self.seen.append({"numbers": " ".join(numbers)})


def page(where: Place, html: str) -> list[Any]:
    """Return what a reader of a page sees, without its markup."""
    parser = Page()
    parser.feed(where.mask(html))
    parser.close()
    return parser.seen


def differences(expected: Any, found: Any, *, tolerance: float = 1e-9, at: str = "") -> list[str]:
    """Return each difference of two JSON values with its place; none for equal ones."""
    if isinstance(expected, dict) and isinstance(found, dict):
        given = [f"{at}: missing now: {key}" for key in expected if key not in found]
        given += [
            f"{at}: new: {key} = {_short(found[key])}" for key in found if key not in expected
        ]
        for key in expected:
            if key in found:
                given += differences(
                    expected[key], found[key], tolerance=tolerance, at=f"{at}/{key}"
                )
        return given
    if isinstance(expected, list) and isinstance(found, list):
        return _lists(expected, found, tolerance, at)
    numbers = (int, float)
    if isinstance(expected, bool) or isinstance(found, bool):
        is_equal = expected is found
    elif isinstance(expected, numbers) and isinstance(found, numbers):
        is_equal = expected == found or abs(expected - found) <= tolerance * abs(expected)
    else:
        is_equal = expected == found
    if is_equal:
        return []
    if isinstance(expected, str) and isinstance(found, str):
        expected, found = _around(expected, found)
    return [f"{at}:\n    expected {_short(expected)}\n    found    {_short(found)}"]


def _lists(expected: list[Any], found: list[Any], tolerance: float, at: str) -> list[str]:
    if len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [
            d for i, (a, b) in pairs for d in differences(a, b, tolerance=tolerance, at=f"{at}/{i}")
        ]
    import difflib

    left, right = [_short(x, 400) for x in expected], [_short(x, 400) for x in found]
    changed = [f"    {x}" for x in difflib.unified_diff(left, right, lineterm="", n=1)][2:]
    return [f"{at}: {len(expected)} entries, now {len(found)}:", *changed[:60]]


def _around(expected: str, found: str) -> tuple[str, str]:
    """Return both texts from shortly before they part."""
    first = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    start = max(0, first - 60)
    head = "…" if start else ""
    return head + expected[start : first + 140], head + found[start : first + 140]


def _short(value: Any, most: int = 240) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
