"""Promise: a whole run from gated repositories, and no secret and no script of others in its trace.

The fine-tuning notebook runs headless on a model and data of a hub on this machine (`make
test-hub`): the token that opens them, a tracker's key, and a script tag in the rows, the data's
licence, the preset and the instruction are searched in all that the run leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import yaml

from tests.hub_models import write_gemma
from tests.local_hub import LocalHub

pytestmark = pytest.mark.hub

ROOT = Path(__file__).resolve().parent.parent
TOKEN, KEY = "hf_planted_7351", "wandb_planted_9911"
TAG = "<script>alert('planted')</script>"
MORE = {"valid_samples": 4, "eval_samples": 4, "max_new_tokens": 16}


def write_rows(folder: Path) -> Path:
    folder.mkdir()
    code = "def f(x):\n    return x + {n}  # {tag}"
    rows = [
        {"instruction": f"{TAG} add {n}", "output": code.format(n=n, tag=TAG)} for n in range(40)
    ]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def write_preset(path: Path) -> Path:
    """The smoke preset with a script tag in all that it says."""
    preset = yaml.safe_load((ROOT / "configs/finetune/smoke.yaml").read_text())
    preset["about"] = f"{TAG} {preset['about']}"
    preset["why"] = {name: f"{TAG} {why}" for name, why in preset["why"].items()}
    path.write_text(yaml.safe_dump(preset))
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs, the executed notebook and what the command said."""
    work, trace = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("trace")
    parameters = {
        "preset": str(write_preset(work / "mine.yaml")),
        **{"model": "own/gemma", "data": "own/rows", "epochs": "1", "adapters": "r8"},
        **{"evaluate": "text", "more_settings": json.dumps(MORE), "run_dir": str(trace / "runs")},
    }
    words = ["notebooks/01_finetune_gemma.ipynb", "--output", str(trace / "executed.ipynb")]
    words += [word for pair in parameters.items() for word in ("-p", "=".join(pair))]
    with LocalHub(token=TOKEN) as hub:
        hub.add("own/gemma", write_gemma(work / "model"), repo_type="model", is_gated=True)
        hub.add("own/rows", write_rows(work / "rows"), is_gated=True, card={"license": TAG})
        own = {"WANDB_API_KEY": KEY, "NBHELPERS_CACHE": str(work / "cache")}
        done = subprocess.run(
            [sys.executable, "-m", "nbhelpers", "run", *words],
            env=os.environ | hub.environment(work / "hub", token=TOKEN) | own,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=ROOT,
        )
    (trace / "said.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return trace


def test_a_planted_secret_is_in_no_file_of_the_run_and_in_no_output(trace: Path) -> None:
    files = [path for path in trace.rglob("*") if path.is_file()]
    assert len(files) > 20 and any("adapter_model" in path.name for path in files)
    for path in files:
        content = path.read_bytes()
        assert TOKEN.encode() not in content and KEY.encode() not in content, path


class Scripts(HTMLParser):
    """The texts of the scripts of a page, as a browser reads it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside, self.texts = False, list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.append(data)


def pages(trace: Path) -> Iterator[tuple[str, str]]:
    """Each page that a run wrote, and each output that a notebook shows as HTML or as a picture."""
    for path in trace.rglob("*.html"):
        yield path.name, path.read_text()
    for cell in nbformat.read(trace / "executed.ipynb", as_version=4).cells:
        for output in cell.get("outputs", ()):
            for kind, content in output.get("data", {}).items():
                if kind in ("text/html", "image/svg+xml", "text/markdown"):
                    yield f"{cell.id} {kind}", content


def test_a_planted_script_runs_on_no_page_and_in_no_output(trace: Path) -> None:
    names = []
    for name, page in pages(trace):
        names.append(name)
        assert not any("planted" in text for text in Scripts(page).texts), name
    assert {"report.html", "study.html"} <= set(names) and len(names) > 6
    shown = "".join(page for _, page in pages(trace))
    assert "&lt;script&gt;alert" in shown  # it is there, as text
