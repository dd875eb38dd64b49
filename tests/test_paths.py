"""Promise: a path that somebody typed is answered or refused with a fix, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbhelpers.cli.options import typed_path
from nbhelpers.common.files import absence, expanded, kind_of
from nbhelpers.data import load_clone_data
from nbhelpers.errors import ConfigError, DataError, NbhelpersError
from nbhelpers.presets.checks import source_problems
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.parameters import check_values
from nbhelpers.reports.writing import report
from nbhelpers.runs.identity import folder_stamp
from nbhelpers.runs.run import open_run

LONG = "x" * 5000
ODD = ["~no-such-user/x", LONG]


def test_a_path_is_a_file_a_folder_something_else_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = [kind_of(tmp_path / name) for name in ("file", ".", "pipe", "loop", "none", LONG)]
    assert found == ["file", "folder", "other", "", "", ""]
    assert [kind_of(odd) for odd in ODD] == [""] * 2


@pytest.mark.parametrize("odd", ["~no-such-user/x", None, 3], ids=repr)
def test_what_is_no_path_is_refused_by_its_name_with_a_fix(odd: object) -> None:
    with pytest.raises(ConfigError, match="run_dir is ") as caught:
        expanded(odd, "run_dir")  # type: ignore[arg-type]
    assert caught.value.fix


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_an_odd_path_never_crashes_what_takes_one(odd: str) -> None:
    places = [
        lambda: open_run(odd),
        lambda: report(odd, show=False),
        lambda: load_preset("clones", f"{odd}.yaml"),
        lambda: load_preset("clones", "smoke", overrides={"data": odd}),
        lambda: load_preset("clones", "smoke", overrides={"model": f"{odd} x"}),
        lambda: load_clone_data(odd),
    ]
    for place in places:
        with pytest.raises(NbhelpersError) as caught:
            place()
        assert caught.value.fix
    assert folder_stamp(odd) == ""


@pytest.mark.parametrize("run_dir", ["~no-such-user/x", " "], ids=repr)
def test_a_run_dir_that_cannot_be_is_refused_before_anything_runs(run_dir: str) -> None:
    with pytest.raises(ConfigError, match="run_dir"):
        check_values("clones", {"run_dir": run_dir})


@pytest.mark.parametrize("text", ["", "  "])
def test_the_empty_text_is_not_taken_for_the_folder_one_is_in(text: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        typed_path(text)
    with pytest.raises(DataError, match="neither `smoke`"):
        load_clone_data(text)
    assert typed_path(".") == Path()


def test_a_folder_of_presets_that_is_a_file_says_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="is a file"):
        list_presets("clones")
    assert absence(tmp_path / "none") == "does not exist"


CLOSED = """
import sys
from nbhelpers.errors import ConfigError
from nbhelpers.presets.checks import source_problems
from nbhelpers.runs.run import list_runs, open_run
folder = sys.argv[1]
print(source_problems("clones", {"data": folder + "/data"}, {})[0].text)
for ask in (lambda: list_runs(folder), lambda: open_run(folder + "/run")):
    try:
        print(repr(ask()))
    except ConfigError as error:
        print(error.message)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="drops root's rights by setpriv")
def test_a_closed_folder_is_called_closed_and_not_missing(tmp_path: Path, root: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "data").mkdir(parents=True)
    words = [sys.executable, "-c", CLOSED, str(closed)]
    if os.getuid() == 0:  # root is above permissions: hand the folder away, and drop that right
        os.chown(closed, 65534, 65534)
        words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *words]
    closed.chmod(0o700 if os.getuid() == 0 else 0)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=root)
    except FileNotFoundError:
        pytest.skip("no setpriv here")
    finally:
        closed.chmod(0o700)
    if "cannot be looked at" not in done.stdout and "bounding" in done.stderr:
        pytest.skip("rights cannot be dropped here")
    data, runs, run = done.stdout.splitlines()
    assert "cannot be looked at" in data and "may not be read" in runs
    assert "cannot be looked at" in run


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data", "https://huggingface.co/datasets/owner/name", "for the hub write owner/name"),
        ("model", "https://huggingface.co/owner/name", "for the hub write owner/name"),
        ("data", "owner/name/more", "check the path"),
        ("model", "foo bar", "hub id"),
    ],
)
def test_a_malformed_hub_name_is_found_before_a_worker_starts(
    name: str, value: str, said: str
) -> None:
    (problem,) = source_problems("clones", {name: value}, {})
    assert said in problem.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data", "hf://datasets/owner/name"),  # what an error of the loader tells people to type
        ("data", "owner/name"),
        ("model", "gpt2"),
        ("model", "owner/name"),
    ],
)
def test_a_well_formed_hub_name_passes(name: str, value: str) -> None:
    assert source_problems("clones", {name: value}, {}) == []
