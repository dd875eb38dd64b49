"""A notebook that carries the library holds a wheel that pip and Python can use."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import nbformat
import pytest

import nbhelpers
from nbhelpers.errors import ConfigError
from nbhelpers.notebook.bundle import bundle

ROOT = Path(__file__).resolve().parent.parent


def test_the_cells_of_a_bundle_write_a_whole_wheel_and_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    original = nbformat.read(ROOT / "notebooks/03_find_clones.ipynb", as_version=4)
    cells = nbformat.read(bundle(ROOT / "notebooks/03_find_clones.ipynb"), as_version=4).cells
    place = next(i for i, cell in enumerate(cells) if "b85decode" in cell.source)
    others = [cell.source for i, cell in enumerate(cells) if i not in (place, place + 1)]
    before = [cell.source for i, cell in enumerate(original.cells) if i != place]
    assert others == before
    variables: dict[str, object] = {}
    exec(cells[place].source, variables)
    exec("import os, sys\nfrom pathlib import Path\n" + _source_line(cells[place + 1]), variables)
    path = Path(variables["source"])
    assert path.name == f"nbhelpers-{nbhelpers.__version__}-py3-none-any.whl"
    site = tmp_path / "site"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(site)
    about = next(site.glob("*.dist-info"))
    for line in (about / "RECORD").read_text().splitlines():
        name, digest, _ = line.rsplit(",", 2)
        if digest:
            sha = hashlib.sha256((site / name).read_bytes()).digest()
            assert digest == "sha256=" + base64.urlsafe_b64encode(sha).decode().rstrip("=")
    needs = " ".join(PathDistribution(about).requires or ())
    assert "torch>=" in needs and "papermill>=" in needs
    program = "import nbhelpers as nb; print(nb.__file__, len(nb.list_presets('clones')))"
    command = [sys.executable, "-c", program]
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    where, count = done.stdout.split()
    assert where.startswith(str(site))
    assert int(count) == len(nbhelpers.list_presets("clones"))


def _source_line(cell: nbformat.NotebookNode) -> str:
    return next(line for line in cell.source.splitlines() if line.startswith("source = "))


@pytest.mark.parametrize("has_file", [True, False])
def test_what_is_no_notebook_of_ours_is_refused(tmp_path: Path, has_file: bool) -> None:
    path = tmp_path / "mine.ipynb"
    if has_file:
        nbformat.write(nbformat.v4.new_notebook(), path)
    with pytest.raises(ConfigError, match=r"source = |not a notebook"):
        bundle(path)


def test_a_bundle_is_not_bundled_again_and_no_notebook_is_written_over_itself(
    tmp_path: Path,
) -> None:
    source, one = tmp_path / "source.ipynb", tmp_path / "one.ipynb"
    source.write_bytes((ROOT / "notebooks/03_find_clones.ipynb").read_bytes())
    with pytest.raises(ConfigError, match="the notebook itself"):
        bundle(source, source)
    for wrong, words in ((tmp_path, "not as"), (tmp_path / "no" / "b.ipynb", "does not exist")):
        with pytest.raises(ConfigError, match=words):
            bundle(source, wrong)
    (tmp_path / "a.ipynb").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        bundle(source, tmp_path / "a.ipynb")
    with pytest.raises(ConfigError, match="carries the library already"):
        bundle(bundle(source, one), tmp_path / "two.ipynb")
    assert source.read_bytes() == (ROOT / "notebooks/03_find_clones.ipynb").read_bytes()
