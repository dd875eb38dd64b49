"""Edits of many programs: in order, from the cache, by processes, and whatever they are given."""

import json
import os
from pathlib import Path

import pytest

from nbhelpers.data import edits
from nbhelpers.data.edit_layout import LANGUAGES
from nbhelpers.data.edits import EDITS, MAX_CHARACTERS, edit_rows, edited
from nbhelpers.errors import ConfigError

SHOP = """price = 2
def dearest(pairs, *, count=1):
    best = sorted(pairs, key=lambda pair: -pair[1])[:count]
    return best
print(dearest([("tea", price), ("milk", 3)], count=1))
"""
SORTER = (
    "class A { int f(int n) { for (int i = 0; i < n; i++) g(i); return n; } void g(int k) { } }"
)


HOSTILE = {
    "bytes": bytes(range(256)).decode("latin-1") * 20,
    "surrogate": "x = '\ud800'\n",
    "nul": "\0" * 100,
    "empty": "",
    "blank": " \n\t",
    "deep": "(" * 900 + ")" * 900,
    "open": "f(" * 900,
    "blocks": "{" * 900 + "}" * 900,
    "holes": "`${" * 500,
    "old ends": "x = 1\ry = 2\r\n",
    "long": "x = [" + ",".join(["abc"] * 500) + "]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_raises(name):
    for language in ("python", "java", *LANGUAGES, "cobol"):
        for edit in EDITS:
            text = edited(HOSTILE[name], language, edit)
            assert text is None or text.split()
            assert text is None or language != "cobol"


def test_what_is_too_long_is_left_alone_at_once():
    code = "x = 1\n" * (MAX_CHARACTERS // 6 + 1)
    assert all(edited(code, "python", edit) is None for edit in EDITS)


def test_an_unknown_edit_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match="reformat, strip_comments, rename, rename_reformat"):
        edited("x = 1", "python", "shuffle")
    with pytest.raises(ConfigError, match="2 programs and 1 languages"):
        edit_rows(["a", "b"], ["c"], "reformat")


def test_rows_come_in_order_and_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    codes, languages = [SHOP, SORTER, "x =", SHOP], ["python", "java", "python", "python"]
    expected = [edited(c, n, "rename") for c, n in zip(codes, languages, strict=True)]
    seen = []
    assert edit_rows(codes, languages, "rename", report=lambda *done: seen.append(done)) == expected
    assert seen == [(0, 3), (3, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(edits, "_edit", None)  # whatever is edited again fails
        assert edit_rows(codes, languages, "rename") == expected
        with pytest.raises(TypeError):
            edit_rows(codes, languages, "rename", seed=1)
    for file in tmp_path.rglob("*.json"):
        file.write_text("[1]" if file.stem < "8" else "{", encoding="utf-8")
    assert edit_rows(codes, languages, "rename") == expected


def test_several_processes_give_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    monkeypatch.setattr(edits, "CHUNK_CHARACTERS", 100)
    codes = [f"def f{i}(a):\n    return a\nf{i}({i})\n" for i in range(20)] + ["\ud800"]
    expected = [edited(code, "python", "rename_reformat", seed=5) for code in codes]
    found = edit_rows(codes, ["python"] * 21, "rename_reformat", seed=5, processes=2)
    assert found == expected


def test_most_programs_of_the_real_data_can_be_edited():
    folder = os.environ.get("NBHELPERS_DATA")
    if not folder or not (Path(folder) / "detector/paired.jsonl").exists():
        pytest.skip("NBHELPERS_DATA has no detector/paired.jsonl")
    with (Path(folder) / "detector/paired.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for number, line in enumerate(file) if number % 150 == 0]
    for edit in EDITS:
        done = [edited(row["code"], row["language"], edit) for row in rows]
        assert sum(text is not None for text in done) >= 0.9 * len(rows)
