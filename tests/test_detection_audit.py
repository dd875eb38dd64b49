"""Promise: the audit says why data cannot train a detector, in words, and natural data pass."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nbhelpers.cli.app import app
from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.reports.audits import Audit, audit

pytestmark = pytest.mark.slow
Rows = list[dict[str, Any]]
WORDS = ("items", "total", "price", "limit", "score", "buffer", "node", "entry", "value", "queue")


def people(n: int = 300) -> Rows:
    """Programs of one style of the sample, all of which stand for a person's."""
    rows = [row for row in load_style_rows() if row["label"] == "human"]
    keys = ("code", "language", "label", "task")
    return [{key: row[key] for key in keys} | {"source": "a"} for row in rows[:n]]


def as_ai(row: dict[str, Any], code: str) -> dict[str, Any]:
    return row | {"code": code, "label": "ai", "generator": "model-1"}


def halves(ai: Callable[[dict[str, Any], int], str]) -> Rows:
    """People's code, of which every second task is called AI and written anew."""
    rows = people()
    tasks = sorted({row["task"] for row in rows})[::2]
    return [as_ai(row, ai(row, at)) if row["task"] in tasks else row for at, row in enumerate(rows)]


def comment(row: dict[str, Any]) -> str:
    return "#" if row["language"] == "python" else "//"


def drawn(draw: random.Random) -> str:
    """A draw of one of five templates with names, numbers, texts and optional lines."""
    name, other, n = draw.choice(WORDS), f"{draw.choice(WORDS)}_{draw.randrange(99)}", draw.random
    value = f"{draw.randrange(1000)}"
    several = ", ".join(str(draw.randrange(99)) for _ in range(draw.randrange(1, 9)))
    body = draw.choice(
        (
            f"def get_{name}({other}):\n    best = {value}\n    for x in {other}:\n"
            f"        best {draw.choice('+-*')}= x\n    return best\n",
            f"class {name.title()}:\n    def __init__(self):\n        self.{other} = [{several}]\n"
            f"    def size(self):\n        return len(self.{other})\n",
            f"{name} = [{several}]\nwhile {name}:\n    {other} = {name}.pop()\n"
            f"    if {other} > {value}:\n        print({other})\n        break\n",
            f"def {name}({other}):\n    if {other} <= {value}:\n        return {value}\n"
            f"    return {name}({other} - 1) * {other}\nprint({name}({value}))\n",
            f"import math\nfor {name} in range({value}):\n    {other} = math.sqrt({name})\n"
            f"    print({name}, {other}, '{draw.choice(WORDS)}')\n    assert {other}\n",
        )
    )
    note = f"# {' '.join(draw.sample(WORDS, 3))}\n" if n() < 0.5 else ""
    return f"{note}{body}" + (f"{draw.choice(WORDS)} = {value}\n" if n() < 0.5 else "")


def reasons(found: Audit) -> dict[str, str]:
    """The reasons of each kind in one text."""
    said: dict[str, str] = {}
    for kind, text in zip(found.kinds, found.reasons, strict=False):
        said[kind] = f"{said.get(kind, '')} {text}"
    return said


def test_a_class_that_is_empty_is_named() -> None:
    found = audit(people(80))
    assert found.verdict == "hopeless"
    assert found.reasons == ("The class ai is empty: all 80 labelled rows are human.",)
    with pytest.raises(DataError, match="class ai is empty") as error:
        found.require_usable()
    assert "on_failed_audit" in error.value.fix


def test_five_templates_are_seen_behind_their_draws() -> None:
    draw = random.Random(3)
    rows = [as_ai({"language": "python"}, drawn(draw)) for _ in range(600)]
    found = audit([*people(), *rows])
    assert "templates" in reasons(found)
    assert 4 <= found.facts["templates"]["ai"]["templates"] <= 12
    assert not found.facts["templates"]["human"]["is_collapsed"]


TAGS: dict[str, tuple[str, Callable[[dict[str, Any], int], str]]] = {
    "before the code": ("[AI_DETECTION]", lambda row, _: f"[AI_DETECTION] {row['code']}"),
    "glued": ("<ai>", lambda row, _: f"<ai>{row['code']}"),
    "a comment with a number of its own": (
        "Task <number>: detection",
        lambda row, at: f"{comment(row)} Task {at}: detection\n{row['code']}",
    ),
    "the last line, without a word of the label": (
        "checked twice",
        lambda row, _: f"{row['code']}{comment(row)} checked twice\n",
    ),
}


@pytest.mark.parametrize("form", TAGS)
def test_a_tag_is_named_and_people_s_code_under_it(form: str) -> None:
    tag, write = TAGS[form]
    found = audit(halves(write))
    assert found.verdict == "hopeless"
    assert tag in reasons(found)["tag"]
    assert "Human code seems to be labelled ai" in reasons(found)["human code labelled ai"]


def test_copies_of_people_s_code_are_no_ai_code() -> None:
    rows = people(120)
    found = audit([*rows, *(as_ai(row, f"# made by a model\n{row['code']}") for row in rows)])
    assert "120 of 120 ai rows" in reasons(found)["human code labelled ai"]
    apart = audit([*rows[:60], *(as_ai(row, row["code"]) for row in rows[60:])], known_humans=rows)
    assert "known human code" in reasons(apart)["human code labelled ai"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"date": "2015-03-01"}, "before there was a model"),
        ({"generator": "human"}, "name a human"),
    ],
)
def test_rows_that_contradict_their_label_are_counted(told: dict[str, str], said: str) -> None:
    rows = [row | told if row["label"] == "ai" else row for row in halves(lambda r, _: r["code"])]
    assert said in " ".join(audit(rows).reasons)


def test_a_feature_that_the_canonical_form_keeps_is_hopeless_and_another_is_not() -> None:
    kept = audit(halves(lambda row, at: f"package p{at % 7}.q;\n{row['code']}"))
    assert "package line" in reasons(kept)["single feature"]
    rows = halves(lambda row, _: f"{row['code']}\n\n\n")
    taken = audit(rows)
    assert not [one for one in taken.reasons if "final newlines" in one]
    assert [one for one in taken.warnings if "final newlines" in one]
    assert [one for one in audit(rows, canonical="raw").reasons if "final newlines" in one]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("renamed", lambda code: code.replace("total", "sum_of_it").replace("items", "them")),
        ("cut short", lambda code: code[: 2 * len(code) // 3]),
        ("commented", lambda code: "".join(f"{line}  # so\n" for line in code.splitlines())),
    ],
)
def test_people_s_code_with_light_edits_is_no_ai_code(
    name: str, edit: Callable[[str], str]
) -> None:
    rows = [row for row in people() if row["language"] == "python"]
    found = audit([*rows, *(as_ai(row, edit(row["code"])) for row in rows)])
    assert "Human code seems to be labelled ai" in reasons(found)["human code labelled ai"], name


def test_a_tag_in_some_rows_of_people_s_code_is_a_reason() -> None:
    rows = [row for row in load_style_rows() if row["label"] == "human"]
    tasks = sorted({row["task"] for row in rows})[::2]
    marked = [
        as_ai(row, f"{row['code']}zorp = 1\n" if at % 3 else row["code"])
        if row["task"] in tasks
        else row
        for at, row in enumerate(rows)
    ]
    said = reasons(audit(marked))
    assert "zorp" in said.get("tag", "") or "cannot be told apart" in said["human code labelled ai"]


def test_templates_beside_real_code_are_counted_alone() -> None:
    draw = random.Random(3)
    ai = [as_ai({"language": "python"}, drawn(draw)) for _ in range(400)]
    ai += [as_ai(row, row["code"]) for row in load_style_rows() if row["label"] == "ai"][:120]
    found = audit([*people(), *ai])
    assert "templates" in reasons(found)
    assert 4 <= found.facts["templates"]["ai"]["templates"] <= 30


def test_templates_of_one_line_are_templates() -> None:
    draw = random.Random(3)
    forms = ("print({a})", "{a} = {n}", "def {a}():\n    return {n}", "{a}.append({n})")
    ai = [
        draw.choice(forms).format(a=draw.choice(WORDS), n=draw.randrange(999)) for _ in range(400)
    ]
    found = audit([*people(), *(as_ai({"language": "python"}, code) for code in ai)])
    assert "templates" in reasons(found) and "tag" not in reasons(found)


def test_a_language_that_tells_the_label_is_a_reason() -> None:
    rows = people()
    found = audit([as_ai(r, r["code"]) if r["language"] == "java" else r for r in rows])
    assert "java" in reasons(found)["language tells the label"]


def test_the_sample_is_natural_enough() -> None:
    found = audit(load_style_rows())
    assert (found.verdict, found.reasons) == ("usable with warnings", ())
    assert "few validation humans" in found.kinds


def test_splits_that_share_rows_and_both_labels_of_a_text_are_told() -> None:
    rows = [row | {"split": ("train", "test")[at % 2]} for at, row in enumerate(people(120))]
    rows += [rows[0] | {"split": "test"}, as_ai(rows[1], f"{rows[1]['code']} ")]
    found = audit(rows)
    assert {"label conflict", "code in two splits", "tasks in two splits", "no authors"} <= {
        *found.kinds
    }
    assert found.facts["duplicates"]["across_splits"]["equal"] >= 1


def test_spellings_and_names_of_tasks_are_told() -> None:
    rows = people(4)
    names = ("rosetta:Fizz Buzz", "rosetta:fizz-buzz", "leetcode:fizzbuzz", "mbpp:12")
    found = audit([row | {"task": name} for row, name in zip(rows, names, strict=True)])
    assert found.facts["spellings"]["tasks"] == found.facts["spellings"]["names"] == 1


def test_odd_rows_have_clear_outcomes() -> None:
    texts = ["", "\0", "x" * 2_000_000, " " * 500_000 + "x", "\ud800", "\ufeff\r\r\n", "'" * 99_999]
    rows = [{"code": text, "label": at % 2} for at, text in enumerate(texts)]
    found = audit(rows)
    assert found.kinds[:2] == ("tiny class", "tiny class")
    json.dumps(found.to_dict(), allow_nan=False)
    assert audit([]).reasons == ("There are no rows.",)
    assert "no labels" in reasons(audit([{"code": "x"}]))
    with pytest.raises(DataError, match="label is not known"):
        audit([{"code": "x", "label": "cat"}])
    with pytest.raises(DataError, match="rows:1: no column code"):
        audit([{"label": 1}])
    with pytest.raises(ConfigError, match="canonical is 'neat'"):
        audit([], canonical="neat")


def test_an_audit_shows_saves_and_comes_back(tmp_path: Path) -> None:
    found = audit(halves(lambda row, _: f"<ai>{row['code']}"))
    page = found.save_page(tmp_path / "new" / "audit.html").read_text("utf-8")
    assert "&lt;ai&gt;" in page and "<ai>" not in page and "data:image/png;base64," in page
    saved = json.loads(found.save(tmp_path / "audit.json").read_text("utf-8"))
    again = Audit.from_dict(saved)
    assert (again.to_dict(), repr(again)) == (found.to_dict(), repr(found))
    assert {"classes", "features", "tags", "duplicates", "lengths"} <= set(again.tables)


def test_the_command_ends_with_5_where_the_data_are_hopeless(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in people(60)), "utf-8")
    done = CliRunner().invoke(app, ["audit", str(file), "--json", str(tmp_path / "a.json")])
    assert done.exit_code == DataError.exit_code
    assert "The class ai is empty" in done.output
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "hopeless"
    assert CliRunner().invoke(app, ["audit", "smoke"]).exit_code == 0


def test_real_pairs_pass_with_their_known_warnings(shared_data: Path) -> None:
    start = time.process_time()
    found = audit(str(shared_data / "detector" / "paired.jsonl"))
    assert time.process_time() - start < 60
    assert (found.verdict, found.reasons) == ("usable with warnings", ())
    assert {"no authors", "task names", "one generator", "licences", "code in two splits"} <= {
        *found.kinds
    }
    assert "sources differ" in found.kinds
    assert max(one["label_from_others"] for one in found.facts["sources"]) < 0.65
    assert found.facts["classes"] == {"human": 5296, "ai": 9244, "unlabelled": 0}
