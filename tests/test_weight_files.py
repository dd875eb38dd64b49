"""Promise: weights that other scripts saved are found in their folder, and nothing else is loaded.

What can be told without torch is told before anything starts; no code of a file ever runs.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from nbhelpers.cli.flow import start_evaluation
from nbhelpers.errors import DataError
from nbhelpers.jobs.models.weights import read_state_dict
from nbhelpers.use.weight_files import require_weights, weights_file

STATE = OrderedDict(
    {"encoder.wte.weight": torch.ones(3, 2), "classifier.dense.bias": torch.ones(2)}
)


def save(path: Path, value: Any = STATE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)
    return path


def test_the_best_model_of_an_output_folder_is_found(tmp_path: Path) -> None:
    wanted = save(tmp_path / "saved_models/checkpoint-best-f1/model.bin")
    save(tmp_path / "saved_models/checkpoint-last/model.bin")
    save(tmp_path / "saved_models/checkpoint-last/optimizer.pt")
    save(tmp_path / "saved_models/training_args.bin")
    for given in (tmp_path / "saved_models", wanted.parent, wanted, tmp_path):
        assert weights_file(given) == wanted


def test_a_single_file_needs_no_name_that_is_known(tmp_path: Path) -> None:
    wanted = save(tmp_path / "run7" / "epoch-2.pt")
    save(tmp_path / "run7" / "scheduler.pt")
    assert weights_file(tmp_path) == wanted


def test_several_files_are_listed_and_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / f"checkpoint-{name}" / "model.bin")
    with pytest.raises(DataError, match=r"2 files of weights: checkpoint-a/model\.bin") as caught:
        weights_file(tmp_path)
    assert f"--checkpoint {tmp_path}/checkpoint-a/model.bin" in caught.value.fix


def test_a_folder_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("")
    with pytest.raises(DataError, match=r"no file of weights .* it has train\.log"):
        weights_file(tmp_path)


@pytest.mark.parametrize("ours", ["manifest.json", "checkpoints/index.json"])
def test_a_run_or_checkpoint_of_ours_stays_a_folder(tmp_path: Path, ours: str) -> None:
    save(tmp_path / "optimizer.pt")
    (tmp_path / ours).parent.mkdir(exist_ok=True)
    (tmp_path / ours).write_text("{}")
    assert weights_file(tmp_path) == tmp_path


def touch(path: str) -> None:
    Path(path).touch()


class Leaves:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return touch, (str(self.target),)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_a_pickled_object_is_refused_by_its_name_and_its_code_does_not_run(
    tmp_path: Path, is_zip: bool
) -> None:
    target = tmp_path / "written"
    form = {"_use_new_zipfile_serialization": is_zip}
    path = save(tmp_path / "model.bin", {"model": STATE, "note": Leaves(target)}, **form)
    with pytest.raises(DataError, match=r"pickled object \(.*touch\), not only tensors") as caught:
        read_state_dict(path)
    assert "model.state_dict()" in caught.value.fix
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"hello", "not written by torch.save"),
        (b"PK\x03\x04 and no end", "cut short or damaged"),
    ],
)
def test_what_is_no_file_of_weights_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(DataError, match=said):
        weights_file(tmp_path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.bin")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cut short"):
        require_weights(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_what_only_torch_can_see_is_refused_without_its_advice_to_run_code(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(pickle.dumps({"note": Leaves(tmp_path / "written")}, protocol=5))
    with pytest.raises(DataError) as caught:
        read_state_dict(path)
    assert "weights_only" not in str(caught.value) and not (tmp_path / "written").exists()


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", [None, "model", "state_dict", "model_state_dict"])
def test_a_state_dict_loads_bare_or_beside_other_things_without_its_prefix(
    tmp_path: Path, name: str | None, is_zip: bool
) -> None:
    state = OrderedDict((f"module.{key}", value) for key, value in STATE.items())
    value = state if name is None else {name: state, "epoch": 3, "best_f1": 0.9}
    path = save(tmp_path / "model.bin", value, _use_new_zipfile_serialization=is_zip)
    require_weights(path)
    found = read_state_dict(path)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[key], STATE[key]) for key in STATE)


def test_a_bad_checkpoint_stops_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"<!DOCTYPE html>")
    options = {"preset": "smoke", "overrides": {}, "run_dir": tmp_path / "runs", "fresh": False}
    with pytest.raises(DataError, match="web page"):
        start_evaluation("clones", "", tmp_path, **options)
    assert not (tmp_path / "runs").exists()


def test_nothing_of_this_needs_torch() -> None:
    code = "import sys, nbhelpers.use.weight_files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
