"""Run every notebook on `smoke` as Colab would: its versions, its variable, a module of its name.

An environment is made whose packages are those of Colab's image (colab.txt), with torch and what
else is needed from this one; `google.colab` is a stand-in without secrets and without a drive. Each
notebook runs headless there. The exit code is 1 where one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from versions import ROOT, shared_environment

VERSIONS = ROOT / "tools" / "colab.txt"
SECRETS = """class SecretNotFoundError(Exception):
    pass


def get(name):
    raise SecretNotFoundError(name)
"""
DRIVE = """def mount(place, **options):
    raise ValueError("mount failed: there is no drive behind this stand-in")
"""


def write_stand_in(folder: Path) -> None:
    """Write `google.colab`, and what an IPython kernel of Colab imports when it starts."""
    colab, startup = folder / "google" / "colab", folder / "ipython/profile_default/startup"
    for place in (colab, startup):
        place.mkdir(parents=True, exist_ok=True)
    (colab / "__init__.py").write_text("from google.colab import drive, userdata\n")
    (colab / "userdata.py").write_text(SECRETS)
    (colab / "drive.py").write_text(DRIVE)
    (startup / "00-colab.py").write_text("import google.colab\n")


def install(python: Path) -> list[str]:
    """Install Colab's versions, those that can be had; return the lines that cannot."""
    pip = [str(python), "-m", "pip", "install", "-qq"]
    if subprocess.run([*pip, "-r", str(VERSIONS)], check=False).returncode == 0:
        return []
    lines = [n for n in VERSIONS.read_text("utf-8").splitlines() if n and n[0] != "#"]
    return [n for n in lines if subprocess.run([*pip, n], check=False).returncode]


def main() -> int:
    """Make the environment and run the notebooks; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of this project")
    parser.add_argument("--folder", type=Path, help="where the environment is made and stays")
    options = parser.parse_args()
    notebooks = options.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    failed = []
    with tempfile.TemporaryDirectory(prefix="nbhelpers-colab-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        python = shared_environment(folder / "venv")
        if lost := install(python):
            print(f"Not to be had here: {', '.join(lost)}")
        write_stand_in(folder)
        surroundings = os.environ | {
            "COLAB_RELEASE_TAG": "release-colab",
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        }
        print(f"Python {sys.version.split()[0]}, torch {version('torch')}, else {VERSIONS.name}")
        for notebook in notebooks:
            began = time.monotonic()
            words = ["-m", "nbhelpers", "run", str(notebook)]
            words += ["--output", str(folder / notebook.name)]
            if '"preset = ' in notebook.read_text("utf-8"):
                words += ["-p", "preset=smoke"]
            done = subprocess.run(
                [python, *words], env=surroundings, cwd=folder, text=True, capture_output=True
            )
            state = f"exit code {done.returncode}" if done.returncode else "ok"
            print(f"{notebook.name}: {state}, {time.monotonic() - began:.0f} s", flush=True)
            if done.returncode:
                failed.append(notebook.name)
                print((done.stdout + done.stderr)[-3000:])
    return min(1, len(failed))


if __name__ == "__main__":
    sys.exit(main())
