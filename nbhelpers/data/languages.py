"""The words of detection data: which names a column, a label and a language go by, and task ids.

One table each; every reader of detection rows asks here, so that `Human_written`, `0` and `human`
mean the same wherever they stand.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

# What a row holds, and the names that its column goes by, the first that is there is read.
COLUMNS: dict[str, tuple[str, ...]] = {
    "code": (
        *("code", "source_code", "program", "snippet", "solution", "func", "function"),
        *("content", "text"),
    ),
    "label": ("label", "target", "class", "is_ai", "is_generated", "ai", "written_by", "writer"),
    "language": ("language", "lang", "language_name", "programming_language", "prog_lang"),
    "task": (
        *("task", "task_id", "task_name", "problem_id", "problem", "problem_name"),
        *("question_id", "title"),
    ),
    "author": ("author", "author_id", "user", "user_id", "username", "student", "coder"),
    "generator": ("generator", "model", "model_name", "llm", "generated_by"),
    "source": ("source", "dataset", "origin", "corpus"),
    "licence": ("licence", "license"),
    "date": ("date", "created", "created_at", "year", "timestamp"),
    "split": ("split", "partition"),
    "id": ("id", "idx", "uid", "sample_id"),
}
HUMAN, AI = "human", "ai"
LABELS: dict[str, tuple[str, ...]] = {
    HUMAN: (
        *("human", "humans", "human_written", "human_code", "person", "people", "student"),
        *("real", "original", "0", "false", "no"),
    ),
    AI: (
        *("ai", "ai_generated", "ai_written", "ai_code", "machine", "machine_generated"),
        *("machine_written", "generated", "llm", "llm_generated", "llms", "gpt", "chatgpt"),
        *("synthetic", "bot", "model", "1", "true", "yes"),
    ),
}
SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
# language -> (other names, endings of its files)
LANGUAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "python": (("py", "python 3", "cpython", "pypy"), (".py", ".pyw", ".ipynb")),
    "java": (("openjdk",), (".java",)),
    "c": (("ansi c", "gcc"), (".c", ".h")),
    "cpp": (("c++", "cplusplus", "cxx", "g++", "gnu c++"), (".cpp", ".cc", ".cxx", ".hpp", ".hh")),
    "csharp": (("c#", "c sharp", "c-sharp", "cs"), (".cs",)),
    "javascript": (("js", "node", "node.js", "nodejs", "ecmascript"), (".js", ".mjs", ".jsx")),
    "typescript": (("ts",), (".ts", ".tsx")),
    "go": (("golang",), (".go",)),
    "rust": (("rs",), (".rs",)),
    "ruby": (("rb",), (".rb",)),
    "php": ((), (".php",)),
    "kotlin": (("kt",), (".kt", ".kts")),
    "swift": ((), (".swift",)),
    "scala": ((), (".scala",)),
    "perl": (("pl",), (".pl", ".pm")),
    "r": ((), (".r",)),
    "haskell": (("hs",), (".hs",)),
    "lua": ((), (".lua",)),
    "julia": (("jl",), (".jl",)),
    "dart": ((), (".dart",)),
    "matlab": (("octave",), (".m",)),
    "bash": (("sh", "shell", "unix shell"), (".sh", ".bash")),
    "sql": ((), (".sql",)),
    "pascal": (("delphi", "free pascal"), (".pas",)),
    "fortran": ((), (".f90", ".f95", ".f")),
    "ada": ((), (".adb", ".ads")),
    "elixir": ((), (".ex", ".exs")),
    "erlang": ((), (".erl",)),
    "clojure": ((), (".clj",)),
    "fsharp": (("f#", "f sharp"), (".fs", ".fsx")),
    "ocaml": ((), (".ml",)),
    "visualbasic": (("vb", "vb.net", "visual basic", "visual basic .net"), (".vb",)),
    "groovy": ((), (".groovy",)),
    "d": ((), (".d",)),
    "nim": ((), (".nim",)),
    "zig": ((), (".zig",)),
}
# What stands where nothing is known.
NOTHING = frozenset(("", "none", "null", "nan", "n/a", "na", "unknown", "-", "?", "anonymous"))
LONGEST_TASK = 120  # characters; a longer text is shortened, and told apart by its digest

_LANGUAGE = {name: key for key, (names, _) in LANGUAGES.items() for name in (key, *names)}
_ENDING = {ending: key for key, (_, endings) in LANGUAGES.items() for ending in endings}
_LABEL = {word: label for label, words in LABELS.items() for word in words}
_SPLIT = {word: split for split, words in SPLITS.items() for word in words}
_VERSION = re.compile(r"[\s_./-]*v?\d[\d.]*$")
_POINT_ZERO = re.compile(r"^(-?\d+)\.0+$")
_APOSTROPHES = re.compile("['’‘`´]")
_BETWEEN = re.compile(r"[^\w+#]+|_+")
_AROUND_SIGN = re.compile(r"-*([+#])-*")


def plain(value: Any) -> str:
    """A cell as text: whole numbers without a point, nothing for what stands for nothing.

    >>> plain(12.0), plain(" a "), plain(None), plain(float("nan")), plain(True)
    ('12', 'a', '', '', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float):
        return ""
    text = str(value).strip()
    return "" if text.lower() in NOTHING else text


def whole(value: Any) -> str:
    """A cell as text, and "3" for "3.0": a table with gaps writes whole numbers so.

    >>> whole("1.0"), whole(1.0), whole("1.05")
    ('1', '1', '1.05')
    """
    return _POINT_ZERO.sub(r"\1", plain(value))


def label_of(value: Any) -> str | None:
    """The label that a cell or a folder's name stands for, None for no known one.

    >>> label_of("Human_written"), label_of("1.0"), label_of("AI-generated"), label_of("cat")
    ('human', 'ai', 'ai', None)
    """
    return _LABEL.get(re.sub(r"[\s_-]+", "_", whole(value).lower()))


def split_word(value: Any) -> str | None:
    """The split that a word stands for.

    >>> split_word("val"), split_word("Training"), split_word("Rust_from_Java")
    ('valid', 'train', None)
    """
    return _SPLIT.get(plain(value).lower())


def language_of(value: Any) -> str:
    """Name of a language in one spelling; one that is not in the table keeps its own words.

    >>> [language_of(name) for name in ("Python 3", "C++17", "C#", "C", "COBOL", None)]
    ['python', 'cpp', 'csharp', 'c', 'cobol', '']
    """
    text = " ".join(plain(value).lower().split())
    known = _LANGUAGE.get(text) or _LANGUAGE.get(_VERSION.sub("", text))
    return known or _BETWEEN.sub("-", text).strip("-")


def is_known_language(name: str) -> bool:
    """Whether a language is in the table."""
    return name in LANGUAGES


def language_of_ending(ending: str) -> str | None:
    """Language of a file's ending, None for one that is no code.

    >>> language_of_ending(".PY"), language_of_ending(".txt") is None
    ('python', True)
    """
    return _ENDING.get(ending.lower())


def task_id(value: Any) -> str:
    """A task's id in one spelling: case, blanks and punctuation do not tell tasks apart.

    Apostrophes vanish; other punctuation, `_` and letters with an accent (which lists made from
    file names have lost) count as one hyphen; `+` and `#` stay, because A+B is not A-B.

    >>> task_id("rosetta:Bitmap/Bresenham's line algorithm")
    'rosetta-bitmap-bresenhams-line-algorithm'
    >>> task_id("MBPP/97") == task_id("mbpp:97"), task_id("Vigenère cipher")
    (True, 'vigen-re-cipher')
    >>> task_id("A + B") == task_id("a+b") != task_id("a b")
    True
    """
    text = whole(value)
    if not text:
        return ""
    shaped = "".join(map(_plain_letter, unicodedata.normalize("NFKC", text)))
    shaped = _BETWEEN.sub("-", _APOSTROPHES.sub("", shaped).casefold())
    shaped = _AROUND_SIGN.sub(r"\1", shaped).strip("-") or " ".join(text.casefold().split())
    if len(shaped) <= LONGEST_TASK:
        return shaped
    return f"{shaped[: LONGEST_TASK - 13]}-{hashlib.sha256(shaped.encode()).hexdigest()[:12]}"


def _plain_letter(letter: str) -> str:
    """A blank for a Latin letter with an accent; other scripts stay."""
    has_accent = not letter.isascii() and len(unicodedata.normalize("NFD", letter)) > 1
    return " " if has_accent and unicodedata.normalize("NFD", letter)[0].isascii() else letter
