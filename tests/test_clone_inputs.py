"""Guards: what a clone model is asked is code of its languages, once each; parts not read are told.

Without a model: a stand-in answers for its process.
"""

from __future__ import annotations

import csv
import io
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use import model_process
from nbhelpers.use.clones import CloneFacts, CloneModel
from nbhelpers.use.trained import TrainedClones

SUM = "int sum(int[] a) { int s = 0; for (int x : a) { s += x; } return s; }"
TOTAL = "int total(int[] v) { int t = 0; for (int i = 0; i < v.length; i++) t += v[i]; return t; }"


class Scorer:
    """In the place of the child process: every pair is as likely as not."""

    is_alive = True

    def __init__(self, device: str = "cpu") -> None:
        self.answers = {"load": self.load, "encode": self.encode, "best_pairs": self.best_pairs}

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        return self.answers[op](**arguments)

    def load(self, **_: Any) -> dict[str, Any]:
        return {"device": "cpu"}

    def encode(self, codes: list[str], **_: Any) -> dict[str, Any]:
        return {"notes": [""] * len(codes)}

    def best_pairs(self, rows: list[int], **_: Any) -> dict[str, Any]:
        pairs = [(*pair, 0.5, 0.5) for pair in combinations(range(len(rows)), 2)]
        return {"pairs": pairs, "is_finite": True, "n_pairs": len(pairs), "n_clones": 0}

    def close(self) -> None:
        self.is_alive = False


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CloneModel:
    monkeypatch.setattr(model_process, "start_process", Scorer)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "A.java").write_text(f"class A {{\n{SUM}\n}}\n")
    (tmp_path / "code" / "sub" / "B.java").write_text(f"class B {{\n{TOTAL}\n{SUM}\n}}\n")
    place = TrainedClones(
        kind="run",
        name="c",
        run=None,
        folder=tmp_path,
        seq_len=48,
        data_flow_length=None,
        grammar_compat="",
    )
    facts = {"run_id": "c", "model": "smoke", "threshold": 0.5, "chosen_on": "valid", "test": None}
    return CloneModel(CloneFacts(place=place, is_sample=True, **facts), device="cpu")


@pytest.mark.parametrize(
    ("code", "language", "error"),
    [
        ("code", "", "it is a folder"),
        ("hello world", "", "a holds no function"),
        ("int f( {", "java", "a holds no function .* as Java"),
        ("def f(x):\n    return x", "java", "a holds no function"),
        ("package main", "cobol", "language='cobol' is not read"),
        (SUM, 5, "language=5 is not read"),
    ],
)
def test_what_is_no_function_is_refused(
    model: CloneModel, code: str, language: Any, error: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=error):
        model.are_clones(code, SUM, language=language)


@pytest.mark.parametrize(
    ("code", "note"),
    [
        (SUM, None),
        ("code/A.java", "a: it is more than a function alone"),
        (f"{SUM}\n{TOTAL}", "a: it is more than a function alone"),
        (f"class A {{ {SUM}", "a: it does not parse as a whole"),
    ],
)
def test_what_is_more_or_less_than_a_function_is_noted(
    model: CloneModel, code: str, note: str | None
) -> None:
    notes = [each for each in model.are_clones(code, SUM).notes if each.startswith("a: ")]
    assert [each.startswith(note) for each in notes] == ([True] if note else [])


@pytest.mark.parametrize("other", ["./code/", "code/sub", "code/A.java", "code/sub/../../code"])
def test_places_that_share_files_are_refused(model: CloneModel, other: str) -> None:
    with pytest.raises(ConfigError, match="one place, or one lies in the other"):
        model.clones_of("code", other, progress=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "Cut.java",
            f"class C {{\n{SUM}\nint cut(int[] a) {{ for (int x : a) {{ }}\n{TOTAL}\n}}\n",
        ),
        ("bad.py", "def good(a):\n    return [x * x + 1 for x in a if x > 2]\n\ndef bad(:\n"),
    ],
)
def test_a_file_that_does_not_parse_as_a_whole_is_told(
    model: CloneModel, name: str, text: str
) -> None:
    Path("code", name).write_text(text)
    skipped = {each.name: each for each in model.clones_of("code", progress=False).skipped}
    assert (skipped[name].reason, name in skipped) == ("not parsed", True)


def test_a_table_of_a_sample_has_each_column_once_and_no_floor_above_one(model: CloneModel) -> None:
    clones = model.clones_of("code", progress=False)
    heads, *rows = csv.reader(io.StringIO(clones.csv()))
    assert len(set(heads)) == len(heads) and heads[-1] == "note"
    notes = sorted(row[-1] for row in rows)
    assert all("bundled sample" in note for note in notes)
    assert [note.startswith("the same text; ") for note in notes].count(True) == 1
    assert max(clones.floors) == 1.0
