"""Promise: held-out rows stay where they are, train rows like them are told or removed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import instructions, load_instructions
from nbhelpers.errors import ConfigError
from tests.instruction_rows import ROWS, ids, lines, load, told, write, write_csv, write_parquet


def test_files_of_a_folder_are_sorted_into_splits(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.jsonl", lines(ROWS[:15]))
    write(tmp_path / "train-00001-of-00002.jsonl", lines(ROWS[15:30]))
    write_csv(tmp_path / "dev.csv", ROWS[30:34])
    write_parquet(tmp_path / "test.parquet", ROWS[34:])
    write(tmp_path / "notes.json", "{}")
    write(tmp_path / ".hidden" / "train.jsonl", "x")
    found = load(tmp_path)
    assert {k: len(v) for k, v in found.splits.items()} == {"train": 30, "valid": 4, "test": 6}
    assert "notes.json: no split in its name" in " ".join(found.problems["notes"])
    (tmp_path / "train-00001-of-00002.jsonl").unlink()
    assert "train lacks part 00001 of 00002" in told(tmp_path)


@pytest.mark.parametrize(
    ("names", "detail"),
    [
        (["a.jsonl", "b.jsonl"], "no name says train, valid or test: a.jsonl, b.jsonl"),
        (["readme.md"], "it holds: readme.md"),
        ([], "it holds: nothing"),
    ],
)
def test_a_folder_that_is_not_clear_is_told(tmp_path: Path, names: list[str], detail: str) -> None:
    for name in names:
        write(tmp_path / name, lines(ROWS))
    message = told(tmp_path)
    assert detail in message and "Fix: " in message


def test_forms_that_differ_between_splits_are_told(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", lines(ROWS))
    write(tmp_path / "test.jsonl", lines([{"prompt": "a", "completion": "b"}]))
    assert "instruction at train.jsonl:1, completion at test.jsonl:1" in told(tmp_path)


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("./nowhere.jsonl", "There is no file or folder ./nowhere.jsonl"),
        ("nowhere/x.csv", "There is no file or folder"),
        ("smok", "neither `smoke`, nor a file or folder here"),
        ("a b/c", "neither `smoke`"),
        ("", "neither `smoke`"),
        ("x" * 5000, "neither `smoke`"),
    ],
)
def test_a_source_that_is_nothing_is_told(source: str, detail: str) -> None:
    message = told(source)
    assert detail in message and len(message) < 1500


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    message = told(write(tmp_path / "rows.txt", lines(ROWS)))
    assert "its name ends in .txt" in message and ".jsonl" in message


def test_held_out_rows_depend_on_split_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS))
    first = load(path)
    for options in ({"seed": 9}, {"train_fraction": 0.2}, {"max_train_samples": 3}):
        other = load(path, **options)
        assert ids(other, "test") == ids(first, "test")
        assert ids(other, "valid") == ids(first, "valid")
    moved = load(
        write(tmp_path / "b.jsonl", lines([{"instruction": "New.", "output": "y"}, *ROWS[::-1]]))
    )
    kept = set(ids(moved, "test")) & set(ids(first, "test"))
    assert len(kept) >= 5  # a row more and another order move at most one
    assert ids(load(path, split_seed=1), "test") != ids(first, "test")


def test_train_rows_are_drawn_with_seed_and_smaller_draws_are_part_of_larger(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.jsonl", lines(ROWS))
    every = ids(load(path), "train")
    some = ids(load(path, max_train_samples=10), "train")
    few = ids(load(path, train_fraction=0.2), "train")
    assert len(some) == 10 and len(few) == 6 and set(few) < set(some) < set(every)
    assert some == [prompt for prompt in every if prompt in some]
    assert ids(load(path, max_train_samples=10, seed=1), "train") != some
    assert len(load(path, train_fraction=0.5, max_train_samples=4).splits["train"]) == 4


def test_equal_questions_stay_on_one_side(tmp_path: Path) -> None:
    rows = [{**row, "output": f"{row['output']} # {n}"} for row in ROWS for n in range(3)]
    for seed in range(5):
        found = load(write(tmp_path / "a.jsonl", lines(rows)), split_seed=seed)
        sides = [set(ids(found, name)) for name in ("train", "valid", "test")]
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
        assert len(found.splits["test"]) == 6 and len(found.splits["valid"]) == 3
    assert found.problems["counts"]["short_split"] == 1


def test_splits_of_the_data_itself_are_cut_to_what_was_asked(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", lines(ROWS[:20]))
    write(tmp_path / "test.jsonl", lines(ROWS[20:]))
    found = load(tmp_path)
    assert {k: len(v) for k, v in found.splits.items()} == {"train": 16, "valid": 4, "test": 6}
    assert found.problems["counts"]["split_cut"] == 14
    assert ids(load(tmp_path, seed=5), "test") == ids(found, "test")


@pytest.mark.parametrize(
    ("n", "fix"),
    [(10, "eval_samples=1 and valid_samples=1"), (2, "give more rows")],
)
def test_too_few_rows_are_told_with_what_fits(tmp_path: Path, n: int, fix: str) -> None:
    message = told(write(tmp_path / "a.jsonl", lines(ROWS[:n])))
    assert f"{n} training rows, too few to hold out" in message and fix in message


CHANGED = {**ROWS[0], "output": ROWS[0]["output"] + "  # so"}


LONG = " ".join(f"word{n}" for n in range(40))


def folder_with_duplicates(folder: Path) -> Path:
    near = {"instruction": f"{LONG} end", "output": "x = 1"}
    train = [*ROWS[:10], ROWS[9], {"instruction": f"  {LONG}\n", "output": "x = 1"}]
    write(folder / "train.jsonl", lines(train))
    equal = {**ROWS[3], "output": ROWS[3]["output"].replace("\n", "\n\n")}
    write(folder / "test.jsonl", lines([equal, near, *ROWS[20:24]]))
    same = {**ROWS[5], "output": "something else altogether"}
    write(folder / "valid.jsonl", lines([same, *ROWS[30:33]]))
    return folder


def test_train_rows_like_an_evaluation_row_are_counted_by_kind(tmp_path: Path) -> None:
    found = load(folder_with_duplicates(tmp_path))
    facts = found.problems["duplicates"]
    assert facts["train_rows_like"] == {
        "test": {"equal": 1, "same_question": 0, "near": 1},
        "valid": {"equal": 0, "same_question": 1, "near": 0},
    }
    assert facts["within_train"]["equal"] == 1 and facts["removed"] == 0
    assert {"row": "train.jsonl:4", "like": "test.jsonl:1", "kind": "equal", "similarity": 1.0} in (
        facts["examples"]
    )
    assert len(found.splits["train"]) == 12


def test_many_train_rows_are_compared_in_blocks_with_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(folder_with_duplicates(tmp_path)).problems["duplicates"]
    monkeypatch.setattr(instructions, "ROWS_AT_ONCE", 5)
    blocks = load(tmp_path).problems["duplicates"]
    assert blocks["within_train"] == {"equal": 1, "near": None}
    assert {**blocks, "within_train": whole["within_train"]} == whole


def test_they_are_removed_on_request_before_train_rows_are_drawn(tmp_path: Path) -> None:
    found = load(folder_with_duplicates(tmp_path), remove_duplicates=True, max_train_samples=9)
    assert found.problems["duplicates"]["removed"] == 3
    assert found.problems["counts"]["removed_rows"] == 3
    held = {s.prompt for name in ("test", "valid") for s in found.splits[name]}
    assert len(found.splits["train"]) == 9 and not held & set(ids(found, "train"))


def test_nothing_is_left_where_train_is_the_test(tmp_path: Path) -> None:
    for name in ("train", "test", "valid"):
        write(tmp_path / f"{name}.jsonl", lines(ROWS[:4]))
    assert "Every train row equals" in told(tmp_path, remove_duplicates=True)


def test_mbpp_in_one_file_keeps_its_own_splits(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"Write a function for number {n}.",
            "code": f"def f{n}(x):\n    return x + {n}",
            "task_id": n,
            "test_list": [f"assert f{n}(1) == {n + 1}", f"assert f{n}(0) == {n}"],
        }
        for n in (1, 10, 11, 12, 510, 511, 600, 601, 602, 974)
    ]
    found = load(write(tmp_path / "mbpp.jsonl", lines(rows)), template="plain")
    assert {k: [s.id for s in v] for k, v in found.splits.items()} == {
        "train": ["601", "602", "974"],
        "valid": ["511", "600"],
        "test": ["11", "12", "510"],
    }
    assert found.problems["counts"]["official_splits"] == 10
    prompt = found.splits["test"][0].prompt
    assert "# Name it `f11`." in prompt and "f11(1) == 12" in prompt and "f11(0)" not in prompt


def test_the_fingerprint_follows_the_rows_and_nothing_else(tmp_path: Path) -> None:
    first = load(write(tmp_path / "a.jsonl", lines(ROWS)))
    for options in ({"seed": 3}, {"split_seed": 3}, {"template": "plain"}, {"train_fraction": 0.3}):
        assert load(tmp_path / "a.jsonl", **options).fingerprint == first.fingerprint
    turned = load(
        write(tmp_path / "b.jsonl", lines([{**r, "id": str(n)} for n, r in enumerate(ROWS[::-1])]))
    )
    assert turned.fingerprint == first.fingerprint
    other = load(write(tmp_path / "c.jsonl", lines([*ROWS[1:], CHANGED])))
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_bad_rows": "skip"}, "on_bad_rows"),
        ({"train_fraction": 0}, "train_fraction"),
        ({"train_fraction": True}, "train_fraction"),
        ({"max_train_samples": 0}, "max_train_samples"),
        ({"valid_samples": 0}, "valid_samples"),
        ({"eval_samples": 1.5}, "eval_samples"),
        ({"template": "alpacca"}, "template"),
        ({"template": "chat"}, "template"),
    ],
)
def test_an_argument_out_of_range_is_told(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(write(tmp_path / "a.jsonl", lines(ROWS)), **options)


def test_the_bundled_sample_loads_clean_with_its_note() -> None:
    found = load_instructions("smoke", valid_samples=10_000, eval_samples=10_000)
    assert all(found.splits[name] for name in ("train", "valid", "test")) and found.note
    assert found.problems["rows_dropped"] == {} and not found.problems["examples"]
    assert found.source == "smoke" and found.revision is None and found.licence == "Apache-2.0"
    assert json.loads(json.dumps(found.problems)) == found.problems
    page = found._repr_html_()
    assert "template alpaca" in repr(found) and ">train</td>" in page


@pytest.mark.slow
def test_eighteen_thousand_real_rows_take_seconds(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "instructions" / "code_alpaca_python.jsonl"
    if not source.is_file():
        pytest.skip(f"{source} is not there")
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    many = [
        {**rows[n % len(rows)], "input": f"{rows[n % len(rows)]['input']} case {n}"}
        for n in range(18_612)
    ]
    path = write(tmp_path / "a.jsonl", lines(many))
    began = time.process_time()
    found = load_instructions(str(path), valid_samples=200, eval_samples=200)
    assert time.process_time() - began < 15
    like = found.problems["duplicates"]["train_rows_like"]["test"]
    assert like["near"] > 1000 and found.problems["duplicates"]["within_train"]["near"] > 10_000
