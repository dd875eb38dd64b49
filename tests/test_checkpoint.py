"""Promise: a checkpoint is whole or absent, and damage is noticed before it is used."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from nbhelpers.errors import DataError, JobFailed
from nbhelpers.jobs import checkpoint as ck


def save(folder: Path, step: int, *, is_best: bool = False, keep: int = 2, extra=None) -> Path:
    model = {"weight": torch.full((4,), float(step))}
    optimizer = {"state": {0: {"exp_avg": torch.ones(4)}}, "param_groups": [{"lr": 0.1}]}
    return ck.save_checkpoint(
        folder,
        step=step,
        model_state=model,
        optimizer_state=optimizer,
        state={"train": {"step": step}},
        extra=extra or (lambda path: None),
        is_best=is_best,
        keep=keep,
    )


def names(folder: Path) -> list[str]:
    return [path.name for path in ck.list_checkpoints(folder)]


def test_what_was_saved_comes_back(tmp_path: Path):
    path = save(tmp_path, 7)
    model, optimizer, values = ck.load_training_state(path)
    assert model["weight"].tolist() == [7.0] * 4
    assert optimizer["state"][0]["exp_avg"].tolist() == [1.0] * 4
    assert values == {"train": {"step": 7}, "is_best": False}
    assert ck.verify(path) == ""


def test_the_best_and_the_last_are_kept_and_the_oldest_others_go(tmp_path: Path):
    for step in range(1, 7):
        save(tmp_path, step, is_best=step == 2, keep=3)
    assert names(tmp_path) == ["step-00000002", "step-00000005", "step-00000006"]
    assert ck.read_index(tmp_path) == {"best": "step-00000002", "last": "step-00000006"}
    assert ck.find_best(tmp_path).name == "step-00000002"


@pytest.mark.parametrize("keep", [1, 2])
def test_a_limit_below_two_keeps_last_and_best(tmp_path: Path, keep: int):
    for step in (1, 2, 3):
        save(tmp_path, step, is_best=step == 1, keep=keep)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, name: str, damage: str):
    save(tmp_path, 1)
    file = save(tmp_path, 2) / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        flipped = bytes([content[-1] ^ 1])
        file.write_bytes(content[:-1] if damage == "cut" else content[:-1] + flipped)
    warnings: list[str] = []
    assert ck.find_last(tmp_path, warnings.append).name == "step-00000001"
    assert len(warnings) == 1 and name in warnings[0]


def test_a_half_written_checkpoint_is_never_taken(tmp_path: Path):
    save(tmp_path, 1)
    (tmp_path / "step-00000002.part").mkdir()
    (tmp_path / "step-00000002.part" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000003").mkdir()  # renamed by a file system that lost the manifest
    warnings: list[str] = []
    assert ck.find_last(tmp_path, warnings.append).name == "step-00000001"
    assert "step-00000003" in warnings[0]


@pytest.mark.parametrize("is_best", [True, False])
def test_a_kill_before_the_index_is_written_loses_no_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_best: bool
):
    class Kill(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Kill

    save(tmp_path, 1, is_best=True)
    (tmp_path / "step-00000009.part").mkdir()  # of another kill
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(ck, "_point", kill)
        save(tmp_path, 2, is_best=is_best)
    assert ck.find_best(tmp_path).name == "step-00000001"
    assert ck.find_last(tmp_path, pytest.fail).name == "step-00000002"
    assert ck.find_best(tmp_path).name == ("step-00000002" if is_best else "step-00000001")
    assert ck.read_index(tmp_path)["last"] == "step-00000002"
    assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_leaves_the_earlier_checkpoint_and_says_what_to_do(tmp_path: Path):
    save(tmp_path, 1)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(JobFailed, match="full") as error:
        save(tmp_path, 2, extra=full)
    assert "run_dir" in error.value.fix
    assert names(tmp_path) == ["step-00000001"] and not list(tmp_path.glob("*.part"))
    assert ck.verify(tmp_path / "step-00000001") == ""


def test_an_index_that_cannot_be_read_is_told_and_does_not_hide_the_last_checkpoint(tmp_path: Path):
    save(tmp_path, 1, is_best=True)
    (tmp_path / ck.INDEX).write_text("{")
    assert ck.find_last(tmp_path, lambda text: None).name == "step-00000001"
    with pytest.raises(DataError, match=r"index\.json: is no JSON"):
        ck.find_best(tmp_path)


def test_the_manifest_names_every_file(tmp_path: Path):
    path = save(tmp_path, 3, extra=lambda folder: (folder / "config.json").write_text("{}"))
    manifest = json.loads((path / ck.MANIFEST).read_text())
    assert set(manifest) == {"model.safetensors", "optimizer.pt", "state.json", "config.json"}
