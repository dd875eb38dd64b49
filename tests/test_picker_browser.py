"""Promise: in JupyterLab another preset changes the bars and the lines, and a re-run uses it.

Needs jupyterlab, playwright and a Chromium (CHROMIUM names it, else /usr/bin/chromium); skipped
where one of them is missing. NBHELPERS_SHOTS names a folder that keeps the screenshots.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupyterlab")
api = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "00_gpu_and_budget.ipynb"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"]
LIMIT_MS = 120_000
CONNECTED = """() => {
  const shown = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const session = shown && shown.sessionContext && shown.sessionContext.session;
  return !!session && session.kernel && session.kernel.connectionStatus === 'connected';
}"""
ENDED = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.widgets;
  const code = cells.filter(cell => cell.model.type === 'code');
  const failed = code.filter(
    cell => cell.model.outputs.toJSON().some(output => output.output_type === 'error'));
  return failed.length > 0 || code.every(cell => cell.model.executionCount);
}"""
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .filter(cell => cell.model.type === 'code')
  .flatMap(cell => cell.model.outputs.toJSON())
  .filter(output => output.output_type === 'error').map(output => output.evalue)"""
# The cell of an id, brought into view, so that its output is drawn.
SHOW = """id => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const at = notebook.widgets.findIndex(cell => cell.model.id === id);
  notebook.activeCellIndex = at;
  return notebook.scrollToItem(at, 'start');
}"""
TEXT_OF = """id => {
  const cells = window.jupyterapp.shell.currentWidget.content.widgets;
  const cell = cells.find(cell => cell.model.id === id);
  return JSON.stringify(cell.model.outputs.toJSON());
}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).is_file(), reason=f"no Chromium at {CHROMIUM}"),
]


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[str]:
    """Start JupyterLab on a folder, without news and without settings of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, own = secrets.token_hex(8), tempfile.mkdtemp()
    news = Path(own, "@jupyterlab", "apputils-extension")
    news.mkdir(parents=True)
    Path(news, "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    names = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    env = {**os.environ, **dict.fromkeys((*names, "IPYTHONDIR"), own), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.news_url=None", "--LabApp.expose_app_in_browser=True"]
    command += ["--LabApp.extension_manager=readonly"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with (
        Path(own, "lab.log").open("w") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as server,
    ):
        try:
            _await_server(server, f"http://127.0.0.1:{port}/api/status?token={token}")
            yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK.name}?token={token}&reset"
        finally:
            server.terminate()
            server.wait(20)
            shutil.rmtree(own, ignore_errors=True)


def _await_server(server: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(240):
        assert server.poll() is None, "JupyterLab ended at once"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.25)
    raise AssertionError("JupyterLab did not answer within a minute")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The notebook in a browser, after all its cells have run."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(NOTEBOOK, folder)
    with lab(folder) as address, api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1300, "height": 1100})
        page.set_default_timeout(LIMIT_MS)
        page.goto(address)
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        page.wait_for_function(CONNECTED)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(ENDED)
        assert page.evaluate(ERRORS) == []
        yield page
        browser.close()


def dropdown(page: Any, name: str) -> Any:
    """The control with this description."""
    return page.locator(".widget-dropdown", has_text=name).locator("select").first


def shot(page: Any, name: str) -> None:
    """Keep a screenshot where somebody wants to look at it."""
    if folder := os.environ.get("NBHELPERS_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")))


def test_another_preset_changes_the_bars_and_the_printed_line(page: Any) -> None:
    page.evaluate(SHOW, "picker")
    bars = page.locator(".widget-image").last
    lines = page.locator(".widget-html", has_text="papermill").last
    api.expect(lines).to_contain_text('preset = "t4"')
    before = bars.evaluate("image => image.src")
    shot(page, "before")
    started = time.monotonic()
    dropdown(page, "preset").select_option("seed-t4")
    api.expect(lines).to_contain_text('preset = "seed-t4"')
    api.expect(lines).to_contain_text("nbhelpers budget --job finetune --preset seed-t4 --gpu t4")
    took_s = time.monotonic() - started
    page.wait_for_function(
        "before => [...document.querySelectorAll('img.widget-image')].every(i => i.src != before)",
        arg=before,
    )
    api.expect(page.locator(".widget-html", has_text="does not fit").first).to_be_visible()
    shot(page, "after")
    assert took_s < 5, "the answer follows within a second; a busy machine gets five"


def test_a_rerun_uses_what_was_chosen_and_says_so(page: Any) -> None:
    assert "finetune/t4" in page.evaluate(TEXT_OF, "plan")
    page.evaluate(SHOW, "plan")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
    page.wait_for_function(f"() => ({TEXT_OF})('plan').includes('finetune/seed-t4')")
    shot(page, "rerun")


def test_running_all_cells_again_keeps_the_choice(page: Any) -> None:
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(ENDED)
    page.evaluate(SHOW, "picker")
    api.expect(dropdown(page, "preset")).to_have_value("seed-t4")
    assert "finetune/seed-t4" in page.evaluate(TEXT_OF, "plan")
