"""Guards: slices hold the rows they name, the worst has enough of them, edits compare like rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from nbhelpers.errors import DataError
from nbhelpers.metrics.detection import choose_operating_point, score_detection
from nbhelpers.metrics.slices import Edited, edit_scores, lines_of, slice_scores

DRAW = {"resamples": 100, "seed": 1}


class Row(NamedTuple):
    code: str
    language: str
    task: str
    generator: str
    source: str


@pytest.fixture(scope="module")
def split():
    draw = np.random.default_rng(1)
    y = np.tile([0, 1], 200)
    z = draw.normal(size=400) + 2 * y
    rows = []
    for at in range(400):
        language = "python" if at < 300 else "java"
        generator = "" if y[at] == 0 else ("g1" if at < 300 else "g2")
        code = "x\n" * int(draw.integers(1, 70))
        rows.append(Row(code, language, f"t{at % 60}", generator, "rare" if at < 8 else "common"))
    z[300:] -= 1.5 * y[300:]  # Java is hard
    point = choose_operating_point(y, z, target_fpr=0.05, target_miss_rate=0.1)
    return rows, y, z, point


def test_slices_are_scored_as_if_alone(split) -> None:
    rows, y, z, point = split
    found = slice_scores(rows, y, z, point, **DRAW)
    named = {(each["by"], each["value"]): each for each in found["slices"]}
    assert len(named) == len(found["slices"])
    java = np.array([row.language == "java" for row in rows])
    for key, inside in {
        ("language", "java"): java,
        ("language", "python"): ~java,
        ("generator", "g2"): java,  # its AI rows and all humans of its language
        ("lines", "10-24"): np.array([lines_of(row.code) == "10-24" for row in rows]),
    }.items():
        each = named[key]
        tasks = [row.task for row, is_in in zip(rows, inside, strict=True) if is_in]
        alone = score_detection(y[inside], z[inside], point, tasks=tasks, prevalences=[], **DRAW)
        assert (each["n_human"], each["n_ai"]) == (alone["n_human"], alone["n_ai"])
        for name in ("roc_auc", "tpr", "fpr"):
            assert each[name] == pytest.approx(alone["metrics"][name])
        assert each["fpr_interval"] == alone["intervals"]["fpr"]
        assert each["tpr_interval"][0] <= each["tpr"] <= each["tpr_interval"][1]
    kinds = {each["by"] for each in found["slices"]}
    assert kinds == {"language", "lines", "generator", "source", "language x lines"}
    sizes = {kind: 0 for kind in kinds}
    for each in found["slices"]:
        sizes[each["by"]] += each["n_ai"]
    assert set(sizes.values()) == {200}


def test_the_worst_slice_has_enough_rows(split) -> None:
    rows, y, z, point = split
    found = slice_scores(rows, y, np.where(np.arange(400) < 8, -9.0 * y, z), point, **DRAW)
    named = {(each["by"], each["value"]): each for each in found["slices"]}
    assert named["source", "rare"]["tpr"] == 0.0  # four AI rows are no evidence
    worst = found["worst"]["tpr"]
    assert worst["n_ai"] >= 30 and worst["value"] in ("java", "g2")
    counted = [each for each in found["slices"] if each["n_human"] >= 30]
    assert found["worst"]["fpr"]["fpr"] == max(each["fpr"] for each in counted)
    languages = [each["tpr"] for each in found["slices"] if each["by"] == "language"]
    assert found["macro"]["language"]["tpr"] == pytest.approx(np.mean(languages))
    few = slice_scores(rows[:20], y[:20], z[:20], point, **DRAW)
    assert few["worst"] == {"tpr": None, "fpr": None, "roc_auc": None}


def test_rows_without_a_value_are_in_no_slice(split) -> None:
    _, y, z, point = split
    bare = [Row("", "", "", "", "")] * 400
    found = slice_scores(bare, y, z, point, **DRAW)
    assert [(each["by"], each["value"]) for each in found["slices"]] == [("lines", "<10")]
    humans = slice_scores(bare, [0] * 400, z, point, **DRAW)["slices"][0]
    assert (humans["tpr"], humans["roc_auc"], humans["n_ai"]) == (None, None, 0)
    with pytest.raises(DataError, match="399 rows for 400 labels"):
        slice_scores(bare[1:], y, z, point, **DRAW)


def test_edits_compare_the_rows_that_could_be_edited(split) -> None:
    rows, y, z, point = split
    tasks = [row.task for row in rows]
    some = np.arange(50, 350)
    after = z[some] - 1.0
    floor = np.random.default_rng(2).normal(size=400) + y
    edited = {
        "rename": Edited(some, after, {"tfidf": floor[some] + 3.0}),
        "reformat": Edited(some, z[some]),
    }
    floors = {"tfidf": (floor, 1.5), "layout": "no features"}
    found = edit_scores(y, z, edited, point, tasks=tasks, floors=floors, **DRAW)
    rename, is_ai = found["rename"], y[some] == 1
    assert (rename["n_ai"], rename["n_human"], rename["skipped"]) == (150, 150, 100)
    before_ai, after_ai = point.is_ai(z[some])[is_ai], point.is_ai(after)[is_ai]
    assert rename["tpr_unedited"] == before_ai.mean() and rename["tpr"] == after_ai.mean()
    assert rename["tpr_loss"] == pytest.approx(before_ai.mean() - after_ai.mean())
    low, high = rename["tpr_loss_interval"]
    assert 0 < low < rename["tpr_loss"] < high
    assert rename["fpr"] == point.is_ai(after)[~is_ai].mean()
    assert rename["fpr_unedited"] == point.is_ai(z[some])[~is_ai].mean() > rename["fpr"]
    assert rename["roc_auc"] == pytest.approx(roc_auc_score(y[some], after))
    evaded = roc_auc_score(y[some], np.where(is_ai, after, z[some]))
    assert rename["roc_auc_ai_edited"] == pytest.approx(evaded)
    assert rename["roc_auc_human_edited"] > rename["roc_auc"] > rename["roc_auc_ai_edited"]
    assert rename["floors"]["layout"] == {"skipped": "no features"}
    floor_rename = rename["floors"]["tfidf"]
    assert floor_rename["fpr"] == (floor[some][~is_ai] > -1.5).mean() > floor_rename["fpr_unedited"]
    same = found["reformat"]
    assert same["tpr_loss"] == 0 and same["tpr_loss_interval"] == [0.0, 0.0]
    assert same["floors"]["tfidf"] == {"skipped": "not scored under edits"}


def test_an_edit_that_fits_no_row_has_no_score(split) -> None:
    rows, y, z, point = split
    tasks = [row.task for row in rows]
    found = edit_scores(y, z, {"rename": Edited([], [])}, point, tasks=tasks, **DRAW)["rename"]
    assert (found["n_ai"], found["skipped"], found["floors"]) == (0, 400, {})
    assert {found[name] for name in ("tpr", "tpr_loss", "fpr", "roc_auc")} == {None}
    with pytest.raises(DataError, match="rename: a row number"):
        edit_scores(y, z, {"rename": Edited([400], [0.0])}, point, tasks=tasks, **DRAW)
