"""Promise: every form in which a data set comes gives the same rows, or one error that asks which.

Data sets of the hub, folders of `save_to_disk`, Arrow files and objects come through `datasets`;
plain local files are read strictly, compressed or in an archive too. The hub is a server here.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset
from huggingface_hub import constants
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import nbhelpers as nb
from nbhelpers.budget.time_model import training_rows
from nbhelpers.data import load_clone_data, tables
from nbhelpers.data.detection import load_detection_data
from nbhelpers.data.files import csv_head, ending_of, head_fault, read_records
from nbhelpers.data.findings import Findings
from nbhelpers.data.sources import find_files, sort_files, unpacked
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.runs import plan_study
from nbhelpers.runs.identity import folder_stamp, run_id
from tests.clone_folder import write_folder
from tests.detection_on_disk import program
from tests.instruction_rows import ROWS, lines, load, write, write_csv, write_parquet
from tests.local_hub import LocalHub
from tests.parquet_folder import SPLITS, rows_of

HASH = "0123456789abcdef"
Rows = list[dict[str, Any]]
PROGRAMS = [
    {"code": program(i), "label": ("human", "ai")[i % 2], "task": f"t{i // 2}", "language": "c"}
    for i in range(24)
]
LOADERS: dict[str, Callable[[str], Any]] = {
    "finetune": load,
    "detector": load_detection_data,
    "clones": load_clone_data,
}


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub that this process asks."""
    with LocalHub() as hub:
        hub.use_here(monkeypatch, tmp_path / "hub")
        yield hub


def splits_of(job: str) -> dict[str, Rows]:
    """Rows of a job by split, as columns of plain types."""
    if job == "finetune":
        return {"train": ROWS[:30], "validation": ROWS[30:34], "test": ROWS[34:]}
    if job == "detector":
        return {"train": PROGRAMS[:16], "validation": PROGRAMS[16:20], "test": PROGRAMS[20:]}
    return {n.replace("valid", "validation"): rows_of(pairs) for n, pairs in SPLITS.items()}


@pytest.mark.parametrize("job", LOADERS)
def test_every_form_gives_a_job_the_same_rows(job: str, tmp_path: Path, hub: LocalHub) -> None:
    splits, fingerprints = splits_of(job), {}
    for split, rows in splits.items():
        write_parquet(tmp_path / "parquet" / f"data/{split}-00000-of-00001-{HASH}.parquet", rows)
        write(tmp_path / "jsonl" / f"{split}.jsonl.gz", gzip.compress(lines(rows).encode()))
        path = tmp_path / "csv" / f"{split}.csv"
        path.parent.mkdir(exist_ok=True)
        labels = {True: "1", False: "0"}
        write_csv(
            path,
            [
                {k: labels.get(v, v) if v in (True, False) else v for k, v in row.items()}
                for row in rows
            ],
        )
    for form in ("parquet", "jsonl", "csv"):
        hub.add(f"own/{form}", tmp_path / form)
        fingerprints[form] = LOADERS[job](f"own/{form}").fingerprint
    saved = datasets.DatasetDict({n: Dataset.from_list(rows) for n, rows in splits.items()})
    saved.save_to_disk(tmp_path / "saved")
    fingerprints["saved"] = LOADERS[job](str(tmp_path / "saved")).fingerprint
    preset = nb.load_preset(job, "smoke", data=saved)
    fingerprints["object"] = LOADERS[job](preset.settings.data).fingerprint
    local = LOADERS[job](str(tmp_path / "parquet")).fingerprint
    assert fingerprints == dict.fromkeys(fingerprints, local)


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=9)
VALUES = {"text": CELLS, "id": st.integers(-9, 9), "is": st.booleans(), "of": st.lists(CELLS)}
TYPED = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=4)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=TYPED)
@example(rows=[{"text": "\x1f\x08", "id": 0, "is": False, "of": []}])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.csv", "a.json"])
def test_both_readers_give_the_same_records(tmp_path: Path, name: str, rows: Rows) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, rows)
    elif name == "a.csv":
        rows = [{key: f"x{row[key]}" for key in ("text", "id")} for row in rows]
        write_csv(path, rows)
        assume(head_fault(path.read_bytes()) is None)  # else it is taken for a binary file
    else:
        write(path, lines(rows) if name == "a.jsonl" else json.dumps(rows))
    options = dict(zip(("delimiter", "header"), csv_head(path), strict=True))
    table = tables.open_file(path, ending_of(path), **options if name == "a.csv" else {})
    assert table is not None
    strict, through = (
        [record.values for record in read_records(source, name, Findings("stop", name))]
        for source in (path, table)
    )
    assert strict == through == rows


def split_card(**configurations: dict[str, str]) -> dict[str, Any]:
    """A card's part on files: configurations with the pattern of each split."""
    parts = [
        {"config_name": name, "data_files": [{"split": s, "path": p} for s, p in splits.items()]}
        for name, splits in configurations.items()
    ]
    return {"configs": parts}


LANGUAGES = {"java/train-00000-of-00001.parquet": 40, "perl/train-00000-of-00001.parquet": 20}
OF_CARD = split_card(java={"train": "java/*"}, perl={"rows": "perl/train-*"})
PREFERENCES = {f"data/{n}-00000-of-00001-{HASH}.parquet": 20 for n in ("train_gen", "test_gen")}
SFT = {f"data/{n}-00000-of-00001-{HASH}.parquet": 20 for n in ("train_sft", "train_gen")}
CONVERTED = {"default/partial-train/0000.parquet": 20, "other/train/0000.parquet": 40}
PARTS = {f"data/train-0000{n}-of-00003-{HASH}.parquet": 10 for n in range(3)}


@pytest.mark.parametrize(
    ("files", "card", "asked", "rows"),
    [
        (PARTS, {}, "", 30),
        (SFT, {}, "", 20),
        (CONVERTED, {}, "", 20),
        (CONVERTED, {}, ":other", 40),
        (LANGUAGES, {}, ":perl", 20),
        (LANGUAGES, {}, "", "several configurations; there are java, perl. | data={}:java or"),
        (LANGUAGES, OF_CARD, "", "several configurations; there are java, perl. | data={}:java or"),
        (LANGUAGES, OF_CARD, ":go", "no configuration go with rows; there are java, perl."),
        (LANGUAGES, OF_CARD, ":java", 40),
        (LANGUAGES, OF_CARD, ":perl", 20),
        (LANGUAGES, OF_CARD, ":java:dev", "no split dev; there is train. | data={}:java:train"),
        (PREFERENCES, {}, "", "no split train; there are test_gen, train_gen. | data={}::test_gen"),
        (PREFERENCES, {}, "::train_gen", 20),
        ({"a.parquet": 20, "b.parquet": 30}, {}, "", "no name says train; there are a, b."),
        ({"a.parquet": 20, "b.parquet": 30}, {}, "::b", 30),
        (LANGUAGES, {}, "::train", "there are java, perl. | data={}:java:train or"),
        (LANGUAGES, OF_CARD, ":rows", "but a split of this name. | data={}:perl:rows"),
        ({"a.parquet": 20, "b.parquet": 30}, {}, ":b", "a split of this name. | data={}::b"),
    ],
)
def test_names_that_the_hub_writes_are_read_or_asked_for(
    files: dict[str, int],
    card: dict[str, Any],
    asked: str,
    rows: int | str,
    tmp_path: Path,
    hub: LocalHub,
) -> None:
    for name, n in files.items():
        write_parquet(tmp_path / "set" / name, ROWS[:n])
    hub.add("own/set", tmp_path / "set", card=card)
    preset = nb.load_preset("finetune", "smoke", overrides={"data": f"own/set{asked}"})
    if isinstance(rows, int):
        data = load(preset.settings.data)
        assert sum(map(len, data.splits.values())) == rows
        assert data.source.startswith("own/set") and data.revision
        return
    with pytest.raises(DataError) as caught:
        load(preset.settings.data)
    message, _, fix = rows.format("own/set").partition(" | ")
    assert message in caught.value.message and fix in caught.value.fix


def zipped(path: Path, rows: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.jsonl", rows)


def tarred(path: Path, rows: str) -> None:
    with tarfile.open(path, "w:xz") as archive:
        archive.add(write(path.with_name("rows") / "train.jsonl", rows), "train.jsonl")


def streamed(kind: str) -> Callable[[Path, str], None]:
    def pack(path: Path, rows: str) -> None:
        with pa.CompressedOutputStream(str(path), kind) as stream:
            stream.write(rows.encode())

    return pack


PACKED: dict[str, Callable[[Path, str], Any]] = {
    "a.jsonl.gz": lambda path, rows: write(path, gzip.compress(rows.encode())),
    "a.jsonl.xz": lambda path, rows: write(path, lzma.compress(rows.encode())),
    "a.json.bz2": lambda path, rows: write(path, bz2.compress(rows.encode())),
    "a.jsonl.zst": streamed("zstd"),
    "a.ndjson.lz4": streamed("lz4"),
    "a.zip": zipped,
    "a.tar.xz": tarred,
    "A.ZIP": zipped,
    "A.TAR.XZ": tarred,
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_rows_are_read_by_line_and_damage_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    PACKED[name](path, lines(ROWS) + "{\n")
    with pytest.raises(DataError, match=r"json\w*(\.\w+)?:41: Expecting property"):
        load(path)
    PACKED[name](path, lines(ROWS))
    assert load(path).fingerprint == load(write(tmp_path / "plain.jsonl", lines(ROWS))).fingerprint
    write(path, path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"damaged|cannot be unpacked|not JSON") as caught:
        load(path)
    assert re.search("again|write one JSON", caught.value.fix)


def test_a_clone_folder_is_read_compressed_and_as_one_archive(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder)
    expected = load_clone_data(str(folder)).fingerprint
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    assert nb.load_preset("clones", "smoke", data=tmp_path / "pairs.zip").settings.data
    assert load_clone_data(str(tmp_path / "pairs.zip")).fingerprint == expected
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    assert load_clone_data(str(folder)).fingerprint == expected


def test_a_class_is_read_by_its_name_and_json_as_what_it_says(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["ai", "human"])  # the other way round than 0 and 1
    codes = [{**row, "label": names.str2int(row["label"])} for row in PROGRAMS]
    table = Dataset.from_list(codes).cast_column("label", names)
    table.to_parquet(tmp_path / "a.parquet")
    table.save_to_disk(tmp_path / "saved")
    write(tmp_path / "a.jsonl", lines(PROGRAMS))
    expected = load_detection_data(str(tmp_path / "a.jsonl")).fingerprint
    assert load_detection_data(str(tmp_path / "a.parquet")).fingerprint == expected
    assert load_detection_data(str(tmp_path / "saved")).fingerprint == expected


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["Clone", "not-clone"], ""),
        (["1", "0"], ""),
        (["clone", "other"], "classes of label are called clone, other; read are not_clone"),
        (["no", "yes", "unknown"], "classes of label are called no, yes, unknown"),
    ],
)
def test_clones_are_read_by_the_names_of_their_classes(
    names: list[str], fault: str, tmp_path: Path
) -> None:
    plain = splits_of("clones")
    for split, rows in plain.items():
        write_parquet(tmp_path / "plain" / f"{split}.parquet", rows)
        table = Dataset.from_list([{**row, "label": int(not row["label"])} for row in rows])
        table = table.cast_column("label", datasets.ClassLabel(names=names))
        (tmp_path / "named").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "named" / f"{split}.PARQUET")
    if fault:
        with pytest.raises(DataError, match=fault):
            load_clone_data(str(tmp_path / "named"))
        return
    expected = load_clone_data(str(tmp_path / "plain")).fingerprint
    assert load_clone_data(str(tmp_path / "named")).fingerprint == expected


@pytest.mark.parametrize(
    "head",
    [
        "configs: [oops",
        "configs: hello",
        "configs: [a]",
        "configs: [{data_files: 3}]",
        "- a",
        "\xff",
    ],
)
def test_a_damaged_card_in_the_cache_leaves_it_to_the_names(
    head: str, tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.use_here(monkeypatch, tmp_path / "hub", offline=True)
    cached = Path(constants.HF_HUB_CACHE) / "datasets--own--set"
    write(cached / "refs" / "main", "a" * 40)
    folder = cached / "snapshots" / ("a" * 40)
    write(folder / "train.jsonl", lines(ROWS))
    write(folder / "README.md", f"---\n{head}\n---\n".encode("latin-1"))
    data = load("own/set")
    assert len(data.splits["train"]) == 30
    assert "README.md: its head is damaged" in "\n".join(data.problems["notes"])


def test_what_datasets_fills_stands_in_the_notes_and_times_stay_text(
    tmp_path: Path, hub: LocalHub
) -> None:
    rows = [{**row, "output": f"2020-01-01T00:00:{n:02}"} for n, row in enumerate(ROWS)]
    write(tmp_path / "times" / "train.jsonl", lines(rows))
    hub.add("own/times", tmp_path / "times")
    assert load("own/times").fingerprint == load(tmp_path / "times").fingerprint
    rows = [*map(dict, ROWS)]
    del rows[3]["input"]
    asked = [("role", "content", "user"), ("from", "value", "human")]
    chats = []
    for n in range(20):
        role, content, user = asked[n % 2]
        question, answer = {role: user, content: f"question {n * n}"}, {"from": "gpt", "value": "a"}
        chats.append([question, answer])
    write(tmp_path / "filled" / "train.jsonl", lines(rows))
    write(tmp_path / "turns" / "train.jsonl", lines([{"messages": chat} for chat in chats]))
    hub.add("own/filled", tmp_path / "filled")
    hub.add("own/turns", tmp_path / "turns")
    notes = "\n".join(load("own/filled").problems["notes"])
    assert "input in 1 rows" in notes
    local = load(tmp_path / "turns" / "train.jsonl")
    assert load("own/turns").fingerprint == local.fingerprint


def test_an_object_has_one_run_id_and_imports_no_torch_of_its_own(tmp_path: Path) -> None:
    had_torch = "torch" in sys.modules
    ids = []
    for rows in (ROWS, ROWS, ROWS[:20]):
        table = Dataset.from_list(rows)
        settings_ = nb.load_preset("finetune", "smoke", overrides={"data": table}).settings
        stamp = folder_stamp(settings_.data)
        ids.append(run_id("finetune", settings_.model_dump(mode="json"), stamp=stamp))
    assert ids[0] == ids[1] != ids[2] and ("torch" in sys.modules) == had_torch
    for other in (ROWS, table.to_pandas(), 3):
        with pytest.raises(ConfigError, match="neither text nor a Dataset") as caught:
            nb.load_preset("finetune", "smoke", data=other)
        assert "from_list" in caught.value.fix


def test_a_saved_folder_names_its_splits_or_its_damage(tmp_path: Path) -> None:
    table = Dataset.from_list(ROWS)
    datasets.DatasetDict({"a": table, "b": table}).save_to_disk(tmp_path / "two")
    with pytest.raises(DataError, match="there are a, b") as caught:
        load(tmp_path / "two")
    assert f"data={tmp_path / 'two'}/a" in caught.value.fix
    assert load(tmp_path / "two" / "a").fingerprint == load(tmp_path / "two" / "b").fingerprint
    content = (tmp_path / "two" / "a" / "data-00000-of-00001.arrow").read_bytes()
    with pytest.raises(DataError, match="no Arrow file, or is damaged") as caught:
        load(write(tmp_path / "cut.arrow", content[:900]))
    assert "write or download it again" in caught.value.fix
    write(tmp_path / "two" / "a" / "data-00000-of-00001.arrow", b"x")
    with pytest.raises(DataError, match="was written by save_to_disk, but cannot be read"):
        load(tmp_path / "two" / "a")


@pytest.mark.parametrize(
    ("job", "sizes", "message", "fix"),
    [
        ("finetune", {"train": 40, "test": 0}, "", ""),
        ("finetune", {"train": 0, "a": 40}, "", ""),
        ("finetune", {"train": 0, "test": 40}, "no split train .without rows: train", "/test"),
        ("finetune", {"train": 0, "test": 0}, "has no rows .splits: test, train", "save a data"),
        ("clones", {"train": 4}, "no split valid, test; there is train.", "DatasetDict"),
        ("clones", {"train": 4, "valid": 2, "test": 0}, "test .without rows: test", "DatasetDict"),
    ],
)
def test_an_empty_or_lacking_split_is_named_where_it_is_needed(
    job: str, sizes: dict[str, int], message: str, fix: str
) -> None:
    rows = ROWS if job == "finetune" else splits_of(job)["train"]
    table = Dataset.from_list(rows)
    saved = datasets.DatasetDict({name: table.select(range(n)) for name, n in sizes.items()})
    source = nb.load_preset(job, "smoke", data=saved).settings.data
    if not message:
        data = LOADERS[job](source)
        assert len(data.splits["train"]) == 30 and "has no rows" in str(data.problems["notes"])
        return
    with pytest.raises(DataError, match=message) as caught:
        LOADERS[job](source)
    assert fix in caught.value.fix


def test_an_object_that_cannot_be_saved_is_named_and_a_damaged_copy_made_again(
    tmp_path: Path,
) -> None:
    table = Dataset.from_list(ROWS)
    refused = {
        "cannot be saved: Object of type": table.with_transform(lambda batch: batch),
        r"data\['test'\] is a list, not a Dataset": datasets.DatasetDict(train=table, test=ROWS),
    }
    for message, data in refused.items():
        with pytest.raises(ConfigError, match=message) as caught:
            nb.load_preset("finetune", "smoke", data=data)
        assert re.search(r"\.map first|from_list", caught.value.fix)
    assert not list((tmp_path / "cache").rglob("*.part"))
    source = nb.load_preset("finetune", "smoke", data=table).settings.data
    write(Path(source) / "data-00000-of-00001.arrow", b"x")
    assert nb.load_preset("finetune", "smoke", data=table).settings.data == source
    assert len(load(source).splits["train"]) == 30


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.json", "saved"])
def test_local_rows_are_counted_before_they_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "saved":
        Dataset.from_list(ROWS).save_to_disk(path)
    elif name == "a.json":
        write(path, json.dumps(ROWS))
    else:
        writers = {"a.jsonl": lambda p, rows: write(p, lines(rows)), "a.csv": write_csv}
        writers.get(name, write_parquet)(path, ROWS)
    changes = {"data": str(path), "valid_samples": 4, "eval_samples": 6}
    preset = nb.load_preset("finetune", "smoke", overrides=changes)
    assert training_rows(preset.settings) == len(load(path).splits["train"]) == 30
    preset = nb.load_preset("finetune", "smoke", overrides=changes | {"valid_samples": 34})
    with pytest.raises(DataError, match="40 training rows, too few"):
        plan_study(preset, plan_hardware("t4"), adapters="r8")


def test_rows_of_a_job_with_splits_are_counted_by_split(tmp_path: Path) -> None:
    write_folder(tmp_path)
    n = len((tmp_path / "train.txt").read_text().splitlines())
    preset = nb.load_preset("clones", "smoke", data=str(tmp_path))
    assert training_rows(preset.settings) == n
    path = write(tmp_path / "rows" / "a.jsonl", lines(PROGRAMS * 5))
    preset = nb.load_preset("detector", "smoke", data=str(path))
    assert training_rows(preset.settings) == 96


def test_an_archive_is_read_as_its_folder_and_no_file_leaves_it(
    tmp_path: Path, hub: LocalHub
) -> None:
    for n, row in enumerate(PROGRAMS):
        write(tmp_path / "code" / row["label"] / row["task"] / f"{n}.c", row["code"])
    shutil.make_archive(str(tmp_path / "code"), "zip", tmp_path / "code")
    expected = load_detection_data(str(tmp_path / "code")).fingerprint
    assert load_detection_data(str(tmp_path / "code.zip")).fingerprint == expected
    (tmp_path / "set").mkdir()
    zipped(tmp_path / "set" / "rows.zip", lines(ROWS))
    hub.add("own/set", tmp_path / "set")
    assert len(load("own/set::train").splits["train"]) == 30
    with pytest.raises(DataError, match="own/set has no split dev; there is train"):
        load("own/set::dev")
    for name in ("../train.jsonl", "/train.jsonl"):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(name, lines(ROWS))
        with pytest.raises(DataError, match="put outside of its folder"):
            load(tmp_path / "a.zip")


TWO = {"train.zip": {"rows.jsonl": ROWS[:30]}, "test.ZIP": {"in/rows.jsonl": ROWS[:10]}}
LANGUAGES = {"java.zip": {"train.jsonl": ROWS[:30]}, "go.zip": {"train.jsonl": ROWS[:10]}}
PARTS = {
    "train-00000-of-00002.zip": {"a.jsonl": ROWS[:30]},
    "train-00001-of-00002.zip": {"b.jsonl": ROWS[:10]},
}
CARDED = {"train": "train.zip", "test": "te*.ZIP"}
GONE = {"configs": [{"config_name": "d", "data_dir": "sub"}]}


@pytest.mark.parametrize(
    ("archives", "card", "choice", "expected"),
    [
        (TWO, {}, "", {"train": 30, "test": 10}),
        (TWO, {}, "::test", {"train": 10}),
        (TWO, {}, ":test", "data=own/set:test:test"),
        (TWO, {}, ":test:test", {"train": 10}),
        (TWO, {}, "::dev", "there are test, train"),
        (TWO, {"data_files": CARDED}, "", {"train": 30, "test": 10}),
        (TWO | {"train.tar": {}}, {}, "", "unpacked to the same folder"),
        (LANGUAGES, {}, "", "data=own/set:go or data=own/set:java"),
        (LANGUAGES, {}, ":java", {"train": 30}),
        (PARTS, {}, "::train", {"train": 40}),
        ({"x.zip": LANGUAGES["java.zip"]}, {}, ":train", "data=own/set::train"),
        ({"x.zip": LANGUAGES["java.zip"]}, {}, ":dev", "Fix: leave it out: data=own/set"),
        ({"x.zip": LANGUAGES["java.zip"]}, GONE, "", "lacks the files of its configuration d: sub"),
    ],
)
def test_all_archives_of_a_data_set_are_read_as_their_names_say(
    archives: dict[str, dict[str, list[Any]]],
    card: dict[str, Any],
    choice: str,
    expected: Any,
    tmp_path: Path,
    hub: LocalHub,
) -> None:
    for name, files in archives.items():
        (path := tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for inner, rows in files.items():
                archive.writestr(inner, lines(rows))
    if "data_files" in card:
        parts = [{"split": key, "path": path} for key, path in card["data_files"].items()]
        card = {"configs": [{"config_name": "default", "data_files": parts}]}
    hub.add("own/set", tmp_path / "set", card=card)
    if isinstance(expected, str):
        with pytest.raises(DataError) as caught:
            load(f"own/set{choice}")
        assert expected in str(caught.value)
        return
    findings = Findings("stop", "own/set")
    files = find_files(f"own/set{choice}", None, findings)
    splits = sort_files(files, findings)
    counts = {
        split: sum(len((files.folder / name).read_text().splitlines()) for name in names)
        for split, names in splits.items()
    }
    assert counts == expected


def test_an_unpacked_archive_that_lost_files_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    zipped(path := tmp_path / "a.zip", lines(ROWS))
    whole = unpacked(path) / "train.jsonl"
    for damage in (whole.unlink, lambda: whole.write_text("")):
        damage()
        assert (unpacked(path) / "train.jsonl").read_text() == lines(ROWS)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(shutil, "unpack_archive", Mock(side_effect=full))
    whole.unlink()
    with pytest.raises(ConfigError, match=r"is full(.|\n)*NBHELPERS_CACHE"):
        unpacked(path)
    monkeypatch.setenv("NBHELPERS_CACHE", str(path))
    with pytest.raises(ConfigError, match=r"cannot be written(.|\n)*NBHELPERS_CACHE"):
        unpacked(path)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.xz", ".zip"])
def test_an_archive_that_is_cut_or_encrypted_is_one_error(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in").mkdir()
    rows = "".join(f'{{"instruction": "{i * i * 7919}", "output": "{i}"}}\n' for i in range(2000))
    (tmp_path / "in" / "train.jsonl").write_text(rows)
    kind = {".tar.gz": "gztar", ".tar.xz": "xztar", ".zip": "zip"}[ending]
    path = Path(shutil.make_archive(str(tmp_path / "rows"), kind, tmp_path / "in"))
    content = bytearray(path.read_bytes())
    if ending == ".zip":
        content[6] |= 1  # the mark of an encrypted file, in both of its places
        content[content.rindex(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="cannot be unpacked") as error:
        find_files(str(path), None, Findings("stop", path.name))
    assert "pack or download it again" in error.value.fix
