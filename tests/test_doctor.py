"""Promise: before a run one table says what is well, what may fail, and what to mend and how."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_double import ADA, MIB, T4, FakeGpu, FakeNvml
from typer.testing import CliRunner

import nbhelpers as nb
from nbhelpers.cli.app import app
from nbhelpers.errors import HardwareError
from nbhelpers.jobs.models.weights import find_weights
from tests.hub_refusals import GOOD_TOKEN, NO_TOKEN, REFUSALS, serve_access
from tests.local_hub import LocalHub, Trouble

Patch = pytest.MonkeyPatch


def examined(*words: str) -> tuple[dict[str, dict[str, str]], int]:
    """The lines of `nbhelpers doctor` by their name, and its exit code."""
    result = CliRunner().invoke(app, ["doctor", *words, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"]
    return {line["what"]: line for line in told["lines"]}, result.exit_code


@pytest.mark.parametrize(("what", "code"), [("model", 2), ("data", 5)])
@pytest.mark.parametrize(("token", "name", "trouble", "message", "fix"), REFUSALS)
def test_every_refusal_of_the_hub_ends_in_its_line_and_its_exit_code(
    what: str,
    code: int,
    token: str | None,
    name: str,
    trouble: Trouble | None,
    message: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    if what == "data" and name == "own/bare":
        message, fix = "has no files of rows", "name another data set"
    with LocalHub() as hub:
        serve_access(hub, tmp_path)
        hub.use_here(monkeypatch, tmp_path / "cache", token=token)
        monkeypatch.setattr("nbhelpers.use.hub.time.sleep", lambda seconds: None)
        hub.troubles = [trouble] if trouble else []
        lines, exit_code = examined("finetune", "-p", "smoke", "-o", f"{what}={name}")
    line = lines[f"finetune {what}"]
    assert (line["state"], exit_code) == ("stop", 2 if "characters" in message else code)
    assert message in line["text"] and fix in line["fix"]
    assert not token or token not in json.dumps(lines)


def test_what_the_hub_or_its_cache_has_is_well_and_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    words = ("finetune", "-p", "smoke", "--model", "own/gated", "-o", "data=own/gated")
    with LocalHub() as hub:
        serve_access(hub, tmp_path)
        hub.use_here(monkeypatch, tmp_path / "cache", token=GOOD_TOKEN)
        lines, code = examined(*words)
        fetched = {path.rpartition("/")[2] for m, path in hub.requests if m == "GET"}
        assert not fetched & {"model.safetensors", "train.jsonl"}
        assert (lines["finetune model"]["state"], lines["finetune data"]["state"]) == ("ok", "ok")
        assert code == 0 and "HF_TOKEN is there" in lines["token"]["text"]
        weights = find_weights("own/gated", None).folder / "model.safetensors"
        hub.use_here(monkeypatch, tmp_path / "cache", token=NO_TOKEN, offline=True)
        lines, code = examined(*words)
        assert "the local cache has it" in lines["finetune model"]["text"]
        assert (lines["finetune data"]["state"], code) == ("stop", 5)
        assert "offline mode is on" in lines["finetune data"]["text"]
        weights.resolve().write_bytes(b"cut")
        lines, code = examined(*words)
        assert "cut short" in lines["finetune model"]["text"] and code == 2


P100 = {"name": "Tesla P100-PCIE-16GB", "capability": (6, 0), "total": 16384 * MIB}
DOCTOR = "nbhelpers.notebook.doctor"


def card(facts: dict[str, Any], *, cpu_build: bool = False) -> Callable[[Patch], None]:
    def patch_driver(patch: Patch) -> None:
        patch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(**facts)))
        patch.setattr(f"{DOCTOR}._is_cpu_build", lambda: cpu_build)

    return patch_driver


def needing(*lines: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(f"{DOCTOR}.requirements", lambda: list(lines))


def in_colab(patch: Patch) -> None:
    patch.setenv("COLAB_RELEASE_TAG", "x")
    patch.delenv("HF_TOKEN", raising=False)


def full_disk(patch: Patch) -> None:
    patch.setattr("nbhelpers.budget.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=10**6))


def as_it_is(patch: Patch) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("change", "words", "what", "state", "text", "code"),
    [
        (card(P100), "clones", "GPU", "stop", "no kernels", 3),
        (card(T4, cpu_build=True), "clones", "GPU", "stop", "built for CPUs", 3),
        (card(T4), "clones", "GPU", "ok", "no native bf16 (compute capability 7.5): fp16", 0),
        (card(ADA), "clones", "GPU", "ok", "bf16 is native (compute capability 8.9)", 0),
        (as_it_is, "clones --gpu l4", "clones preset", "ok", "of the GPU's", 0),
        (as_it_is, "clones -p t4", "clones preset", "stop", "is for the GPU t4; there is no", 3),
        (
            as_it_is,
            "finetune --gpu t4 -o per_device_train_batch_size=64 -o global_batch_size=64",
            *("finetune preset", "stop", "The run needs", 8),
        ),
        (as_it_is, "clones -p t5", "clones preset", "stop", "t5", 2),
        (as_it_is, "clones -o epochs=x", "clones preset", "stop", "epochs", 2),
        (as_it_is, "detector -o data=./none", "detector preset", "stop", "does not exist", 2),
        (as_it_is, "detector -o data=cut.jsonl.gz", "detector data", "stop", "cut.jsonl.gz", 5),
        (as_it_is, "finetune -o data=empty", "finetune data", "stop", "holds no file that is", 5),
        (as_it_is, "finetune -o data=two.csv", "finetune data", "ok", "with 2 rows; what they", 0),
        (as_it_is, "clones", "clones data", "ok", "the sample that comes with the package", 0),
        (needing("numpy", "no-such>=1"), "clones", "libraries", "stop", "are missing: no-such", 2),
        (needing("numpy<1"), "clones", "libraries", "warning", "outside the tested ranges", 0),
        (as_it_is, "clones --run-dir setup.cfg/x", "run folder", "stop", "place of a folder", 11),
        (as_it_is, "clones --run-dir /proc/x", "run folder", "stop", "cannot be used", 11),
        (in_colab, "clones --run-dir /content/drive/x", "run folder", "stop", "not mounted", 11),
        (in_colab, "clones", "run folder", "warning", "Colab deletes this machine's disk", 0),
        (in_colab, "clones", "token", "warning", "for the cells of its notebook", 0),
        (full_disk, "finetune -p smoke", "disk and RAM", "stop", "disk of the run folder", 2),
    ],
)
def test_each_line_says_what_is_so_and_stops_with_its_exit_code(
    change: Callable[[Patch], None],
    words: str,
    what: str,
    state: str,
    text: str,
    code: int,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    (tmp_path / "setup.cfg").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "two.csv").write_text("instruction,output\na,b\nc,d\n")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"code": "x"}\n' * 99)[:-9])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    for module in ("find_files", "check_access"):  # what the hub says is another test's
        if "data=" not in words:
            monkeypatch.setattr(f"{DOCTOR}.{module}", lambda *_, **__: None)
    change(monkeypatch)
    lines, exit_code = examined(*words.split())
    assert (lines[what]["state"], exit_code) == (state, code)
    assert text in lines[what]["text"] and (state == "ok" or lines[what]["fix"])


def test_a_notebook_sees_the_table_and_stops_with_the_first_stop_s_error(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checkup = nb.doctor("clones", "smoke", run_dir=tmp_path)
    assert checkup.require() is checkup and "<table>" in checkup._repr_html_()
    name = "<script>alert(1)"
    page = nb.doctor("clones", "smoke", overrides={"model": name}, run_dir=name)._repr_html_()
    assert "<script" not in page and "&lt;script" in page
    with pytest.raises(HardwareError, match="there is no GPU here") as caught:
        nb.doctor("clones", "t4", run_dir=tmp_path).require()
    assert "libraries" in caught.value.details and caught.value.fix


def test_all_jobs_are_examined_where_none_is_named(monkeypatch: Patch) -> None:
    lines, code = examined()
    assert code == 0 and {f"{job} preset" for job in ("clones", "detector", "finetune")} <= set(
        lines
    )
