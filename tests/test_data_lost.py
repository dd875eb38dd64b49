"""Promise: nothing in data is lost in silence: it is used, or told in a line with counts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.audit import audit
from nbhelpers.data.coding_tasks import load_tasks
from nbhelpers.data.detection import load_detection_data, read_rows
from nbhelpers.data.detection_sources import decode
from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.errors import DataError
from tests.clone_folder import write_folder
from tests.detection_on_disk import both_classes, program
from tests.instruction_rows import ROWS, lines, load, told, write, write_parquet
from tests.parquet_folder import SPLITS, rows_of
from tests.parquet_folder import write as write_pairs

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))


def as_csv(path: Path, rows: Rows) -> Path:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    table.writeheader()
    table.writerows(rows)
    return write(path, text.getvalue())


WRITERS = {
    "a.jsonl": lambda path, rows: write(path, lines(rows)),
    "a.csv": as_csv,
    "a.parquet": write_parquet,
}


def said(data: Any) -> str:
    return "\n".join(data.warnings)


# ------------------------------------------------------------------------------------------------
# Instructions: what stands around a question and its answer.


def asked(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Question {number}?"}


ANSWERED = [asked(1), {"role": "assistant", "content": "First."}, asked(2)]
ANSWERED += [{"role": "assistant", "content": "Last."}]
SHAREGPT = [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "A."}]
CONTEXTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "system": ({"system": "Be brief."}, ["Be brief."]),
    "system_prompt": ({"system_prompt": "Be brief."}, ["Be brief."]),
    "history of pairs": ({"history": [["Hi", "Ho"]]}, ["User: Hi", "Assistant: Ho"]),
    "history as text": ({"history": "[['Hi', 'Ho']]"}, ["User: Hi", "Assistant: Ho"]),
    "history of turns": (
        {"history": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
        ["User: Hi", "Assistant: Ho"],
    ),
    "both": ({"system": "Be brief.", "history": [["Hi", "Ho"]]}, ["Be brief.", "Assistant: Ho"]),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_system_and_history_stand_before_the_question(tmp_path: Path, name: str) -> None:
    more, parts = CONTEXTS[name]
    empty = dict.fromkeys(more, "" if name == "history as text" else None)
    rows = [row | (more if n % 2 else empty) for n, row in enumerate(ROWS)]
    data = load(write(tmp_path / "a.jsonl", lines(rows)))
    prompts = {s.id: s.prompt for part in data.splits.values() for s in part}
    for n in range(40):
        prompt = prompts[f"a.jsonl:{n + 1}"]
        assert all((part in prompt) is (n % 2 == 1) for part in parts)
        assert ROWS[n]["instruction"] in prompt and ROWS[n]["input"] in prompt
    assert ("earlier answers" in said(data)) is ("Ho" in "".join(parts))


def test_a_system_column_joins_a_conversation_and_other_columns_are_named(tmp_path: Path) -> None:
    rows: Rows = [
        {"conversations": [*SHAREGPT, {"from": "human", "value": f"Q{n}?"}, SHAREGPT[1]]}
        | {"system": "You are terse.", "tools": "[]" if n % 2 else "", "topic": "x"}
        for n in range(40)
    ]
    rows[3]["conversations"] = [{"from": "system", "value": "Own words."}, *SHAREGPT]
    data = load(write(tmp_path / "a.jsonl", lines(rows)))
    prompts = {s.id: s.prompt for part in data.splits.values() for s in part}
    assert all("You are terse." in prompt for prompt in prompts.values())
    assert "You are terse.\n\nOwn words." in prompts["a.jsonl:4"]
    assert "nobody reads: 2 (" in said(data)
    assert "tools in 20 rows, topic in 40 rows" in said(data)
    assert "system as the system text" in said(data)
    n = sum(s.id != "a.jsonl:4" for s in data.splits["train"])
    assert f"read, but not trained on: {n} (a.jsonl: in {n} conversations; supervise=all" in said(
        data
    )
    every = load(tmp_path / "a.jsonl", supervise="all")
    assert len(every.splits["train"]) == 30 + n and every.fingerprint == data.fingerprint
    assert every.splits["test"] == data.splits["test"] and "trained on:" not in said(every)
    assert f"each an example of its own: {n} (a.jsonl: {30 + n} examples of 30 rows)" in said(every)
    chats = {s.id: s for s in every.splits["train"]}
    for name in (name for name in chats if "#" in name):
        first, last = chats[name], chats[name.partition("#")[0]]
        assert first.completion == "A." and "Q?" in first.prompt and name.endswith("#2")
        assert first.prompt.count("A.") == 0 and last.prompt.count("A.") == 1


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("nothing", [None, float("nan"), "", "nan"])
def test_an_optional_column_without_a_value_is_empty(
    tmp_path: Path, name: str, nothing: Any
) -> None:
    rows = [row | {"input": nothing, "system": nothing} for row in ROWS]
    data = load(WRITERS[name](tmp_path / name, rows), on_bad_rows="drop")
    bare = [{k: v for k, v in row.items() if k != "input"} for row in ROWS]
    assert data.fingerprint == load(write(tmp_path / "b.jsonl", lines(bare))).fingerprint
    is_word = nothing == "nan" or (name == "a.csv" and str(nothing) == "nan")
    assert ("taken as empty: 80" in said(data)) is is_word


def test_a_task_groups_rows_and_does_not_name_them(tmp_path: Path) -> None:
    rows = [row | {"task_id": f"t{n // 5}"} for n, row in enumerate(ROWS)]
    for at, split in enumerate((0, 1, 2)):
        data = load(
            write(tmp_path / f"{at}.jsonl", lines(rows)),
            valid_samples=5,
            eval_samples=5,
            split_seed=split,
        )
        parts = {name: [s.completion for s in part] for name, part in data.splits.items()}
        assert sum(map(len, parts.values())) == 40
        for name in ("valid", "test"):  # whole tasks
            numbers = {int(text.partition("_")[2].partition("(")[0]) // 5 for text in parts[name]}
            assert len(parts[name]) == 5 and len(numbers) == 1
    ids = [s.id for part in data.splits.values() for s in part]
    assert len(set(ids)) == 40 and {"t0", "2.jsonl:2"} <= set(ids)


def test_what_is_read_otherwise_than_expected_is_said(tmp_path: Path) -> None:
    rows = [row | {"task_id": f"t{n // 9}"} for n, row in enumerate(ROWS)]
    rows[3]["output"] = "NaN"
    data = load(as_csv(tmp_path / "a.csv", rows), valid_samples=10, eval_samples=10)
    assert "say nan, none or null, used as they are: 1 (a.csv:" in said(data)
    assert "task_id: rows of one stay in one split" in said(data)
    notes = "\n".join(data.problems["notes"])
    assert "rows of one question or task_id stay together" in notes
    one_task = [row | {"task_id": "t"} for row in ROWS]
    message = told(as_csv(tmp_path / "b.csv", one_task))
    assert "have 1 task, and rows of one question or task_id stay on one side" in message


def test_the_tests_of_a_problem_are_read_from_a_cell(tmp_path: Path) -> None:
    row = {"text": "Double it.", "code": "def twice(x):\n    return 2 * x", "task_id": "11.0"}
    rows = [row | {"test_list": "['assert twice(2) == 4']"}]
    (task,) = load_tasks("mbpp", mbpp_data=str(as_csv(tmp_path / "test.csv", rows)))
    assert task.entry_point == "twice" and task.id == "MBPP/11"
    messages: list[str] = []
    bad = as_csv(tmp_path / "bad" / "test.csv", [*rows, row | {"test_list": ""}])
    load_tasks("mbpp", mbpp_data=str(bad), on_bad_rows="drop", warn=messages.append)
    assert "1 row is left out" in messages[0] and "test.csv:4" in messages[0]
    many = [row | {"task_id": str(n)} for n in range(1, 975)]
    many = [r | {"text": f"Do {r['task_id']}", "test_list": rows[0]["test_list"]} for r in many]
    data = load(as_csv(tmp_path / "all.csv", many), valid_samples=90, eval_samples=500)
    assert [len(part) for part in data.splits.values()] == [374, 90, 500]  # the authors' splits


class Alternating:
    """A tokenizer whose chat template takes turns of user and assistant alone."""

    chat_template, bos_token = "there is one", None

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        for at, message in enumerate(messages):
            if message["role"] != ("user", "assistant")[at % 2]:
                raise ValueError("Conversation roles must alternate")
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def test_chats_that_a_template_refuses_are_all_named_and_dropped(tmp_path: Path) -> None:
    rows: Rows = [{"messages": [asked(n), {"role": "gpt", "content": f"{n}"}]} for n in range(40)]
    rows[7]["messages"].insert(0, asked(99))
    rows[9]["messages"].insert(0, {"role": "assistant", "content": "Hello."})
    path = write(tmp_path / "a.jsonl", lines(rows))
    options = {"template": "chat", "tokenizer": Alternating()}
    message = told(path, **options)
    assert "2 x the model's chat template does not take the row" in message
    assert "a.jsonl:8" in message and "a.jsonl:10" in message and "template=alpaca" in message
    data = load(path, on_bad_rows="drop", **options)
    assert sum(map(len, data.splits.values())) == 38
    within = [asked(1), {"role": "system", "content": "Now in French."}, *rows[0]["messages"]]
    within[2:2] = [{"role": "assistant", "content": "One."}]
    chats = [*rows[:7], {"messages": within}]
    message = told(write(tmp_path / "b.jsonl", lines(chats)), **options)
    assert "b.jsonl:8" in message and "(user, system, assistant, user)" in message
    plain = load(tmp_path / "b.jsonl", valid_samples=1, eval_samples=1)
    prompts = "".join(s.prompt for part in plain.splits.values() for s in part)
    assert "User: Question 1?\n\nSystem: Now in French.\n\nAssistant: One." in prompts
    assert "2 rows are left out of the data" in said(data)
    assert sum(map(len, load(path).splits.values())) == 40  # a template of texts takes them


# ------------------------------------------------------------------------------------------------
# Rows of code: labels, columns, folders, notebooks.


PAIRS_OF_LABELS = [(0.0, 1.0), ("0.0", "1.0"), ("0", "1"), (False, True), ("Human", "AI"), (0, 1)]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("labels", PAIRS_OF_LABELS, ids=str)
def test_labels_are_read_however_a_table_writes_them(
    tmp_path: Path, name: str, labels: tuple[Any, Any]
) -> None:
    rows = [row | {"label": labels[row["label"] == "ai"], "author": 7.0} for row in both_classes()]
    read = read_rows(str(WRITERS[name](tmp_path / name, rows)))
    assert [row.label for row in read] == ["human", "ai"] * 20
    assert {row.author for row in read} == {"7"}


def test_the_first_row_of_a_file_may_be_the_bad_one(tmp_path: Path) -> None:
    rows = both_classes()
    del rows[0]["code"]
    path = write(tmp_path / "a.jsonl", lines(rows))
    with pytest.raises(DataError, match=r"a\.jsonl:1: no column code"):
        load_detection_data(str(path))
    data = load_detection_data(str(path), on_bad_rows="drop")
    assert len(data.rows) == 39 and "1 row is left out of the data" in said(data)


def test_columns_and_words_that_were_met_are_told(tmp_path: Path) -> None:
    import datetime

    day = datetime.date(2019, 4, 2)
    rows = [
        {"text": row["code"], "is_ai": float(row["label"] == "ai"), "date": day, "topic": "x"}
        for row in both_classes()
    ]
    found = audit(str(write_parquet(tmp_path / "a.parquet", rows)))
    text = "\n".join(found.read)
    assert "Columns: code from text, label from is_ai, date." in text
    assert "0 = human (20)" in text and "1 = ai (20)" in text
    assert "nobody reads: 1 (" in text and "topic in 40 rows" in text
    assert found.facts["people"][0]["first_date"] == "2019-04-02"
    memory = audit([{**row, "date": str(day)} for row in rows])
    assert memory.read[:2] == found.read[:2]


def test_rows_of_one_task_are_no_data_for_an_audit_either() -> None:
    rows = [{**row, "task": "one", "split": ""} for row in load_style_rows()[::3]]
    found = audit(rows)
    assert found.verdict == "hopeless" and "304 of 304 rows have one task" in found.reasons[0]
    two = [row | {"task": "one" if n % 3 else f"t{n}"} for n, row in enumerate(rows)]
    assert not any("have one task" in reason for reason in audit(two).reasons)


def test_rows_without_a_label_are_told_as_they_are(tmp_path: Path) -> None:
    rows = [row | {"label": "maybe"} for row in both_classes()] + [{"code": "x = 1"}]
    found = audit(str(as_csv(tmp_path / "a.csv", rows)))
    assert "No label in the 1 row that can be used: the column label is empty" in found.reasons[0]
    assert "40 rows are left out" in found.reasons[0] and "maybe = no label (40)" in found.read[1]
    write(tmp_path / "set" / "alice" / "a.py", program(1))
    found = audit(str(tmp_path / "set"))
    assert found.read == ["Folders: alice = no label (1)."]
    assert "two folders, human and ai" in found.reasons[0]


def test_the_code_cells_of_a_notebook_are_read(tmp_path: Path) -> None:
    def cell(kind: str, source: Any) -> dict[str, Any]:
        return {"cell_type": kind, "source": source}

    cells = [
        cell("markdown", "# Title"),
        cell("code", ["import os\n", "!pip install x\n", "y = 1"]),
    ]
    cells += [cell("code", "%%bash\nls"), cell("code", "%%time\nprint(y)"), cell("code", "")]
    book = {"cells": cells, "metadata": {"kernelspec": {"language": "python"}}}
    expected = "import os\ny = 1\n\nprint(y)\n"
    write(tmp_path / "a" / "book.ipynb", json.dumps(book))
    (row,) = read_rows(str(tmp_path / "a"))
    assert (row.code, row.language) == (expected, "python")
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "z <- 1"}]}]}
    old["metadata"] = {"language_info": {"name": "R"}}
    decoded = decode(json.dumps(old).encode(), ".ipynb")
    assert (decoded.text, decoded.language) == ("z <- 1\n", "r")
    assert decode(b"[1]", ".ipynb").fault == (
        "unreadable_code",
        "it is no notebook that can be read",
    )


# ------------------------------------------------------------------------------------------------
# Pairs of functions.


@pytest.mark.parametrize("kind", [pa.float64(), pa.int8(), pa.bool_()], ids=str)
def test_labels_of_pairs_are_read_in_every_type(tmp_path: Path, kind: Any) -> None:
    for name, pairs in SPLITS.items():
        write_pairs(tmp_path / f"{name}.parquet", rows_of(pairs))
    expected = load_clone_data(str(tmp_path)).fingerprint
    for path in tmp_path.glob("*.parquet"):
        table = pq.read_table(path)
        label = table["label"].cast(pa.int8()).cast(kind) if kind != pa.bool_() else table["label"]
        table = table.set_column(table.schema.get_field_index("label"), "label", label)
        pq.write_table(table.append_column("topic", pa.array(["x"] * len(table))), path)
    data = load_clone_data(str(tmp_path))
    assert data.fingerprint == expected
    assert "topic in" in "".join(data.problems.warnings())


def test_what_clone_data_lacks_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    write_folder(tmp_path / "few")
    functions = (tmp_path / "few" / "data.jsonl").read_text().splitlines()
    more = [json.dumps({**json.loads(line), "repo": "x"}) for line in functions]
    write(tmp_path / "few" / "data.jsonl", "\n".join(more))
    text = "".join(load_clone_data(str(tmp_path / "few")).problems.warnings())
    assert f"repo in {len(functions)} rows" in text and "next to no rows" in text
    write(tmp_path / "none" / "train.csv", "a,b\n")
    with pytest.raises(DataError) as caught:
        load_clone_data(str(tmp_path / "none"))
    assert "put data.jsonl, train.txt" in caught.value.fix
    import gzip

    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    packed = write(tmp_path / "a.parquet.gz", gzip.compress((tmp_path / "a.parquet").read_bytes()))
    with pytest.raises(DataError, match="compressed; unpack it"):
        read_rows(str(packed))
    with pytest.raises(DataError, match="humans='no such thing'"):
        read_rows("no such thing", what="humans")


# ------------------------------------------------------------------------------------------------
# Every job says it while it runs; what a run says as a warning stands in the text of its report.


def job_data(job: str, folder: Path) -> str:
    """Data of a job with one bad row."""
    if job == "clones":
        write_folder(folder)
        path = folder / "train.txt"
        return str(write(path, path.read_text() + "1\t99\t1\n").parent)
    rows = both_classes(80) if job == "detector" else ROWS
    return str(write(folder / "a.jsonl", lines([*rows, {"topic": "x"}])))


@pytest.mark.parametrize("job", ["clones", "detector", "finetune"])
def test_rows_left_out_are_warnings_of_the_run(tmp_path: Path, job: str) -> None:
    from contexts import make_context

    from nbhelpers.hardware.detection import plan_hardware
    from nbhelpers.jobs.context import start_accelerator
    from nbhelpers.jobs.worker import job_module
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset

    more: dict[str, Any] = {
        "clones": {"pretrain_steps": 0},
        "detector": {"on_failed_audit": "go_on", "edit_suite": False, "augment_share": 0.0}
        | {"unseen_humans": job_data("detector", tmp_path / "more"), "pretrain_steps": 0},
        "finetune": {"valid_samples": 4, "eval_samples": 4},
    }[job]
    hardware = plan_hardware("h100")  # that is not there
    overrides = more | {"data": job_data(job, tmp_path), "on_bad_rows": "drop"}
    preset = load_preset(job, "smoke", overrides=overrides, hardware=hardware)
    plan = plan_batch(preset, hardware)
    context = make_context(
        settings=preset.settings,
        plan=plan,
        accelerator=start_accelerator("fp32", replace(plan, use_gpu=False)),
        emit_rank=lambda *_, **__: None,
    )
    try:
        job_module(job).build_data(context)
    except DataError as error:
        assert job == "detector" and "unseen_humans" in error.message  # the same programs
    told = "\n".join(context.warnings)
    assert any(text.startswith("1 row is left out of the data") for text in context.warnings)
    assert ("next to no rows" in told) is (job == "clones")
    assert ("unseen_humans: 1 row is left out" in told) is (job == "detector")
