"""Promise: no task, author or code stands in two splits, whichever way the splits come about."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data.detection import DetectionData, hold_outs
from nbhelpers.data.near_duplicates import shingles
from nbhelpers.errors import ConfigError, DataError
from tests.detection_on_disk import both_classes, load, places, program, record


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))


def tangled(n: int = 160) -> list[dict[str, Any]]:
    """Rows tied in every way: tasks, people and near-copies, at random."""
    draw = random.Random(1)
    rows = []
    for i in range(n):
        label = draw.choice(["human", "ai", "ai"])
        near = draw.randrange(n) if draw.random() < 0.1 else i
        rows.append(
            record(
                i,
                label,
                code=program(near, variant=i if near != i else 0),
                task=f"{draw.choice(['Task ', 'task-'])}{draw.randrange(n // 3)}",
                author=f"p{draw.randrange(300)}" if label == "human" else "some-model",
                language=draw.choice(["python", "java"]),
                source=draw.choice(["one", "two", "three"]),
                generator="" if label == "human" else draw.choice(["g1", "g2"]),
            )
        )
    return rows


def assert_apart(data: DetectionData) -> None:
    """Compare all rows of each two splits, without the loader's own means."""
    names = [n for n in ("train", "valid", "test", "held_out") if n in data.splits]
    for one in names[:2]:
        for other in names[names.index(one) + 1 :]:
            left = [data.rows[at] for at in data.splits[one]]
            right = [data.rows[at] for at in data.splits[other]]
            assert not {row.task for row in left} & {row.task for row in right} - {""}
            people = [{r.author for r in part if r.label == "human"} for part in (left, right)]
            assert not people[0] & people[1] - {""}
            kinds = [[shingles(row.code) for row in part] for part in (left, right)]
            assert max(len(a & b) / len(a | b) for a in kinds[0] for b in kinds[1]) < 0.8
    assert all(not any(counts.values()) for counts in data.overlap.values())
    assert {"train/valid", "train/test", "valid/test"} <= set(data.overlap)


def test_drawn_splits_share_nothing_and_keep_their_proportions(tmp_path: Path) -> None:
    data = load(tmp_path / "rows.jsonl", tangled(), valid_share=0.15, test_share=0.15)
    assert_apart(data)
    total = sum(map(len, data.splits.values()))
    for name, share in (("train", 0.7), ("valid", 0.15), ("test", 0.15)):
        labels = Counter(data.rows[at].label for at in data.splits[name])
        assert len(data.splits[name]) / total == pytest.approx(share, abs=0.05)
        assert labels["ai"] / total == pytest.approx(share * 2 / 3, abs=0.06)
        assert len({data.rows[at].source for at in data.splits[name]}) == 3


def test_a_draw_follows_from_texts_and_seed(tmp_path: Path) -> None:
    rows = both_classes(80)
    one = load(tmp_path / "a.jsonl", rows)
    turned = load(tmp_path / "b.jsonl", rows[::-1])
    other = load(tmp_path / "a.jsonl", split_seed=1)
    texts = [{d.rows[at].code for at in d.splits["test"]} for d in (one, turned, other)]
    assert texts[0] == texts[1] != texts[2] and one.fingerprint == turned.fingerprint
    assert one.fingerprint == other.fingerprint


def test_given_splits_lose_the_rows_that_share_something(tmp_path: Path) -> None:
    rows = both_classes(40)
    for i, row in enumerate(rows):
        row["split"] = "test" if i >= 30 else "validation" if i >= 20 else "train"
    rows[0] |= {"task": "TASK_15"}  # of test
    rows[2] |= {"author": "Ann"}
    rows[22] |= {"author": "ann"}  # of valid
    rows[4]["code"] = program(32, variant=9)  # like test
    rows[24]["code"] = program(34, variant=9)  # valid like test
    rows[6]["code"] = rows[36]["code"].replace("\n", "\r\n")  # the very text, of the same class
    data = load(tmp_path / "rows.jsonl", rows)
    assert_apart(data)
    assert not {1, 3, 5, 7} & set(places(data, "train")) and 25 not in places(data, "valid")
    assert places(data, "test") == list(range(31, 41))
    told = data.problems["split"]["left_out"]
    train = {k: told["train"][k] for k in ("task", "author", "near_code")}
    assert train == {"task": 1, "author": 1, "near_code": 1} and told["valid"]["near_code"] == 1
    assert "rows.jsonl:1 shares its task with rows.jsonl:31" in told["train"]["examples"]
    assert data.problems["duplicates"]["same_code"] == 1
    drawn = load(tmp_path / "rows.jsonl", split="task")
    assert drawn.problems["split"]["how"] == "drawn"
    assert_apart(drawn)


def test_a_missing_split_is_drawn_from_train_and_none_at_all_is_refused(tmp_path: Path) -> None:
    rows = both_classes(60)
    for i, row in enumerate(rows):
        row["split"] = "test" if i >= 50 else "train"
    data = load(tmp_path / "rows.jsonl", rows)
    assert places(data, "test") == list(range(51, 61)) and len(data.splits["valid"]) >= 4
    assert_apart(data)
    with pytest.raises(DataError, match="split=given needs rows named train") as caught:
        load(tmp_path / "none.jsonl", both_classes(), split="given")
    assert "split=task" in caught.value.fix


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_of_one_class_is_an_error(tmp_path: Path, split: str) -> None:
    rows = both_classes(60)
    names = ["train", "valid", "test"]
    for i, row in enumerate(rows):
        row["split"] = names[i // 20]
        if row["split"] == split:
            row["label"] = "human"
    with pytest.raises(DataError, match=f"The split {split} has one class only") as caught:
        load(tmp_path / "rows.jsonl", rows)
    assert "all 20 rows are human" in caught.value.message and "AI rows" in caught.value.fix


def test_a_text_with_both_labels_is_left_out(tmp_path: Path) -> None:
    rows = both_classes(40)
    rows[1]["code"] = rows[0]["code"] + "\n\n"
    rows += [dict(rows[2]), dict(rows[2])]
    data = load(tmp_path / "rows.jsonl", rows)
    assert data.problems["duplicates"] == {"same_code": 2, "both_classes": 2, "near_code": 0}
    assert {1, 2, 41, 42} & {p for n in data.splits for p in places(data, n)} == set()
    assert len(data.rows) == 38


def test_a_group_of_nearly_all_rows_is_an_error_that_says_which(tmp_path: Path) -> None:
    rows = both_classes(120)
    for i, row in enumerate(rows):
        row["author"] = f"p{i // 2 % 3}" if row["label"] == "human" else ""
    with pytest.raises(DataError, match="No split of the 120 rows is possible") as people:
        load(tmp_path / "people.jsonl", rows)
    assert "by task, author, code: the largest group holds 40" in people.value.details
    assert "20 rows are by p0: give code of more people" in people.value.fix
    with pytest.raises(DataError) as one_task:
        load(tmp_path / "task.jsonl", [{**row, "task": "sum"} for row in both_classes()])
    assert "40 rows have the task 'sum'" in one_task.value.fix
    templates = both_classes(120)
    for i, row in enumerate(templates):
        row["code"] = program(i % 2, variant=i) if row["label"] == "ai" else row["code"]
    with pytest.raises(DataError) as one_template:
        load(tmp_path / "template.jsonl", templates)
    assert "60 rows nearly repeat template.jsonl:" in one_template.value.fix
    with pytest.raises(DataError, match="No split of the 3 rows") as too_few:
        load(tmp_path / "few.jsonl", [record(i, ("human", "ai")[i % 2]) for i in range(3)])
    assert "give more rows (the rarer class has 1)" in too_few.value.fix


def test_weak_ties_are_given_up_where_they_hold_most_rows(tmp_path: Path) -> None:
    rows = both_classes(200)
    for k in range(99):  # a chain: each task has a near-copy of the next one's code
        rows[2 * k + 1]["code"] = program(2 * k + 2, variant=1)
    data = load(tmp_path / "rows.jsonl", rows)
    assert_apart(data)
    assert data.problems["split"]["by"] == ["task", "author"] and data.problems["split"]["tried"]
    assert data.problems["counts"]["split_weaker"] == 1


@pytest.mark.parametrize("what", ["source=Two", "generator=g1", "language=Java"])
def test_what_is_held_out_is_never_trained_on(tmp_path: Path, what: str) -> None:
    field, _, value = what.lower().partition("=")
    rows = tangled()
    for i, row in enumerate(rows):  # tasks of their own for each value, but for a few
        key = row[field] if field != "generator" else f"g{1 + i % 2}"
        row["task"] += key if i % 10 else ""
        row["generator"] = key if field == "generator" and row["label"] == "ai" else "g2"
    rows = [
        row | {"generator": "" if row["label"] == "human" else row["generator"]} for row in rows
    ]
    plain = load(tmp_path / "rows.jsonl", rows, valid_share=0.2, test_share=0.2)
    data = load(tmp_path / "rows.jsonl", hold_out=what, valid_share=0.2, test_share=0.2)
    assert_apart(data)
    held = [data.rows[at] for at in data.splits["held_out"]]
    assert {row.label for row in held} == {"human", "ai"}
    assert all(getattr(r, field) == value for r in held if field != "generator" or r.label == "ai")
    for name in ("train", "valid", "test"):
        assert set(data.splits[name]) <= set(plain.splits[name])
        found = [data.rows[at] for at in data.splits[name]]
        assert not any(getattr(row, field) == value for row in found)
    assert what.split("=")[0] + "=" + value in hold_outs(data)


def test_tasks_shared_by_all_languages_hold_out_those_of_test(tmp_path: Path) -> None:
    labels = ("human", "ai")
    rows = [
        record(i, labels[i % 2], task=f"T{i // 4}", language=("go", "java")[i // 2 % 2])
        for i in range(160)
    ]
    data = load(tmp_path / "rows.jsonl", rows, hold_out="language=go")
    told = data.problems["split"]["hold_out"]
    held = len(data.splits["held_out"])
    assert told["rows_of"] == "test" and told["dropped"] + held == 80 and 6 <= held <= 10
    assert len(data.splits["train"]) > 55
    assert_apart(data)
    assert hold_outs(data) == ["language=go", "language=java"]
    with pytest.raises(ConfigError, match="no row has this language") as caught:
        load(tmp_path / "rows.jsonl", hold_out="language=rust")
    assert "language=go, language=java" in caught.value.fix


def test_fewer_train_rows_are_whole_tasks_and_leave_the_rest_alone(tmp_path: Path) -> None:
    rows = both_classes(200, source="a") + [
        row | {"code": program(1000 + i), "task": f"other {i // 2}", "source": "b"}
        for i, row in enumerate(both_classes(200))
    ]
    whole = load(tmp_path / "rows.jsonl", rows)
    some = load(tmp_path / "rows.jsonl", train_fraction=0.25)
    other = load(tmp_path / "rows.jsonl", train_fraction=0.25, seed=1)
    least = load(tmp_path / "rows.jsonl", max_train_samples=10)
    n = len(whole.splits["train"])
    assert len(some.splits["train"]) == pytest.approx(n / 4, abs=2)
    assert 8 <= len(least.splits["train"]) <= 10
    sources = Counter(some.rows[at].source for at in some.splits["train"])
    assert abs(sources["a"] - sources["b"]) <= 4
    tasks = Counter(some.rows[at].task for at in some.splits["train"])
    assert set(tasks.values()) == {2}
    assert set(some.splits["train"]) != set(other.splits["train"])
    for name in ("valid", "test"):
        assert (some.splits[name] == whole.splits[name]).all()
    with pytest.raises(DataError, match="The split train has no rows left"):
        load(tmp_path / "rows.jsonl", max_train_samples=1)


def test_a_damaged_cache_is_read_anew(tmp_path: Path) -> None:
    rows = tangled(60)
    one = load(tmp_path / "rows.jsonl", rows, valid_share=0.2, test_share=0.2)
    cached = sorted((tmp_path / "cache" / "near_rows").glob("*.npy"))
    assert cached
    for path in cached:
        path.write_bytes(b"broken")
    again = load(tmp_path / "rows.jsonl", valid_share=0.2, test_share=0.2)
    assert all((one.splits[n] == again.splits[n]).all() for n in one.splits)
