"""Promise: the picker shows the budget of what is chosen at once, and prints lines that equal it.

Only the parts that ipywidgets 7.7 and 8 share are used. CI has one version; for the other:

    pip install --target old --no-deps ipywidgets==7.7.1 ipython_genutils
    PYTHONPATH=old python -m pytest tests/test_picker.py
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from nbhelpers.budget.memory import DOES_NOT_FIT, TIGHT
from nbhelpers.errors import ConfigError, HardwareError, JobFailed, NbhelpersError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.notebook.picker import Latest, PickerBox, PresetPicker, pick_preset
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.parameters import check_values, parse_overrides

pytestmark = pytest.mark.slow
LIMIT_S = 300  # for what is sure to come, on a machine however busy
EXACT = 5 * 2**30  # what a simulation finds in these tests
T4, H100 = plan_hardware("t4"), plan_hardware("h100")


@pytest.fixture
def bars() -> None:
    """The bars are drawn: for the tests that look at them, since drawing takes most of the time."""


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is simulated unless a test says what comes out, and nothing drawn unless it asks."""
    monkeypatch.setattr("nbhelpers.notebook.picker.missing_libraries", lambda: ["torch"])
    if "bars" not in request.fixturenames:
        monkeypatch.setattr("nbhelpers.reports.figures_budget.budget_bars", lambda _: None)


def simulated(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]) -> None:
    """Let the process beside this one answer so."""
    monkeypatch.setattr("nbhelpers.notebook.picker.missing_libraries", list)
    monkeypatch.setattr("nbhelpers.notebook.choice.simulate_budget", answer)
    for module in ("choice", "picker"):  # whatever the package's tables hold
        monkeypatch.setattr(
            f"nbhelpers.notebook.{module}.is_exact", lambda b, _: b.total_bytes == EXACT
        )


def test_it_starts_from_the_parameters_of_the_notebook() -> None:
    given = {"seq_len": 256, "loss": "plain"}
    picker = pick_preset("finetune", T4, preset="seed-t4", adapters="r8", overrides=given)
    controls = PickerBox(picker).controls
    chosen = {name: control.value for name, control in controls.items()}
    assert (chosen["preset"], chosen["adapters"], chosen["seq_len"]) == ("seed-t4", "r8", 256)
    assert (chosen["loss"], chosen["gradient_checkpointing"]) == ("plain", False)
    assert picker.overrides == given


@pytest.mark.usefixtures("bars")
def test_another_preset_changes_bars_answer_and_lines() -> None:
    picker = pick_preset("finetune", T4)
    box = PickerBox(picker)
    bars, lines = bytes(box.bars.value), box.lines.value
    assert bars.startswith(b"\x89PNG") and "fits" in box.answer.value
    box.controls["preset"].value = "seed-t4"
    assert bytes(box.bars.value) != bars and box.lines.value != lines
    assert "x does not fit" in box.answer.value and "checkpointing" in box.answer.value
    assert "--preset seed-t4" in box.lines.value
    assert box.controls["gradient_checkpointing"].value is False


def test_every_control_reaches_the_budget_or_the_plan() -> None:
    picker = pick_preset("finetune", T4, any_job=True)
    box, seen = PickerBox(picker), set()
    changes = {"seq_len": 1024, "gradient_checkpointing": False, "loss": "plain"}
    changes |= {"precision": "fp32", "adapters": "qlora-r16"}
    for name, value in changes.items():
        box.controls[name].value = value
        assert "Not possible" not in box.answer.value
        seen.add(picker.budget.total_bytes)
    assert len(seen) == len(changes)
    box.controls["per_device_train_batch_size"].value = 8
    assert "8 samples x 2 micro-steps" in box.details.value
    box.controls["gpu"].value = "a100-80gb"
    assert picker.budget.capacity_bytes == 81920 * 2**20
    box.controls["count"].value = 2
    assert picker.plan.world_size == 2
    box.controls["job"].value = "clones"
    assert picker.choice.job == "clones" and picker.adapters is None
    before = picker.budget.total_bytes
    box.controls["attention"].value = "eager"
    assert picker.budget.total_bytes > before
    box.controls["model"].value = "graphcodebert"
    assert picker.load().settings.model == "microsoft/graphcodebert-base"
    assert box.controls["loss"].layout.display == "none"


def test_what_is_not_possible_is_told_and_changes_nothing() -> None:
    picker = pick_preset("finetune", T4)
    box, before = PickerBox(picker), picker.line
    box.controls["precision"].value = "bf16"
    assert "nothing was changed" in box.answer.value and "Fix:" in box.answer.value
    assert picker.line == before and box.controls["precision"].value == "auto"


def test_the_presets_own_value_is_no_override() -> None:
    picker = pick_preset("finetune", T4)
    picker.change(seq_len=1024)
    assert picker.overrides == {"seq_len": 1024}
    assert "seq_len = 1024" in picker.line
    picker.change(seq_len=512)
    assert picker.overrides == {}


def test_another_preset_keeps_the_parameters_and_drops_what_was_tried() -> None:
    picker = pick_preset("clones", T4, overrides={"seed": 7})
    picker.change(seq_len=128)
    picker.change(preset="h100")
    assert picker.overrides == {"seed": 7}
    picker.reset()
    assert picker.name == "t4" and picker.overrides == {"seed": 7}


def test_a_preset_for_two_cards_plans_two() -> None:
    picker = pick_preset("clones", plan_hardware("rtx6000ada"))
    picker.change(preset="seed-2x-rtx6000ada")
    assert picker.plan.world_size == 2
    assert "--gpu rtx6000ada --count 2" in picker.lines["shell"]


def test_a_preset_for_two_cards_is_refused_on_the_one_that_is_here() -> None:
    picker = pick_preset("clones", replace(plan_hardware("rtx6000ada"), is_planned=False))
    with pytest.raises(HardwareError, match="num_gpus=2"):
        picker.change(preset="seed-2x-rtx6000ada")
    assert picker.name == "rtx6000ada"


def _chosen() -> PresetPicker:
    picker = pick_preset("finetune", T4)
    picker.change(preset="seed-t4")
    picker.change(adapters="qlora-r8")
    picker.change(seq_len=256, loss="chunked", lora_target_modules=["q_proj", "v_proj"])
    return picker


def test_the_python_lines_make_the_same_preset_and_budget() -> None:
    picker, names = _chosen(), {}
    exec("import nbhelpers as nb\n" + picker.lines["Python"], names)
    assert names["chosen"].settings == picker.load().settings
    assert names["plan"] == picker.plan
    assert names["budget"].total_bytes == picker.budget.total_bytes


def test_the_shell_lines_make_the_same_preset() -> None:
    picker = _chosen()
    for line in picker.lines["shell"].splitlines():
        words = shlex.split(line)
        pairs = [words[i + 1] for i, word in enumerate(words) if word == "-o"]
        overrides = parse_overrides("finetune", pairs)
        name = words[words.index("--preset") + 1]
        made = load_preset("finetune", name, hardware=T4, overrides=overrides)
        assert made.settings == picker.load().settings


def test_the_papermill_line_gives_the_same_parameters() -> None:
    picker = _chosen()
    words = shlex.split(picker.lines["papermill"])
    given: dict[str, Any] = {}
    for i, word in enumerate(words):
        if word == "-p":
            given[words[i + 1]] = yaml.safe_load(words[i + 2])
        elif word == "-y":
            given |= yaml.safe_load(words[i + 1])
    written: dict[str, Any] = {}
    exec(picker.line, written)
    assert {name: written[name] for name in given} == given
    name, overrides = check_values("finetune", given | {"adapters": ""})
    made = load_preset("finetune", name, hardware=T4, overrides=overrides)
    assert made.settings == picker.answer.preset.settings
    assert picker.answer.variants["qlora-r8"].settings.lora_alpha == 16  # 32 for rank 16


@pytest.mark.parametrize(
    ("files", "opened", "name"),
    [
        (["notebooks/01_finetune_gemma.ipynb"], "", "notebooks/01_finetune_gemma.ipynb"),
        (["01_finetune_gemma.ipynb"], "", "01_finetune_gemma.ipynb"),
        (["mine.ipynb"], "/home/me/mine.ipynb", "mine.ipynb"),
    ],
)
def test_the_lines_work_where_the_notebook_lies_alone_and_path_lacks_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], opened: str, name: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JPY_SESSION_NAME", opened)
    lines = pick_preset("finetune", T4).lines
    assert shlex.split(lines["papermill"])[:4] == ["papermill", "--cwd", ".", name]
    for line in lines["shell"].splitlines():
        assert shlex.split(line)[:3] == [sys.executable, "-m", "nbhelpers"]


def test_several_adapters_are_a_study_with_a_bar_each() -> None:
    picker = pick_preset("finetune", T4)
    picker.change(adapters="all")
    assert list(picker.answer.budgets) == ["base", "r8", "r16", "r32", "qlora-r16"]
    assert "nbhelpers study --preset t4 --adapters all" in picker.lines["shell"]
    assert picker.budget.total_bytes == picker.answer.budgets["r32"].total_bytes


def test_in_the_budget_notebook_the_lines_name_job_and_card() -> None:
    picker = pick_preset("detector", H100, any_job=True)
    assert picker.line.splitlines()[:2] == ['gpu = "h100"', 'job = "detector"']
    first, second = picker.lines["papermill"].splitlines()
    assert "00_gpu_and_budget" in first and "-p gpu h100 -p job detector" in first
    assert "02_detect_ai_code" in second


def test_a_price_and_a_limit_are_answered() -> None:
    picker = pick_preset("finetune", T4, price_per_hour=2.0, max_hours=0.5)
    text = repr(picker)
    assert "Cost:" in text and "not finish in your 30 min 00 s" in text
    assert "--preset t4 --gpu t4 --price 2.0 --max-hours 0.5\n" in text
    picker = pick_preset("finetune", T4, any_job=True, price_per_hour=2.0)
    picker.change(job="clones")
    assert "price_per_hour = 2.0" in picker.line and "max_hours" not in picker.line
    assert "-p price_per_hour 2.0" in picker.lines["papermill"].splitlines()[0]
    with pytest.raises(ConfigError, match="price_per_hour"):
        _ = pick_preset("finetune", T4, price_per_hour=-1).answer.time_lines


def test_wrong_parameters_are_refused_with_the_fix() -> None:
    for wrong in ({"preset": "t44"}, {"adapters": "r0"}, {"overrides": {"seqlen": 5}}):
        with pytest.raises(NbhelpersError) as error:
            pick_preset("finetune", T4, **wrong)
        assert error.value.fix


def test_the_exact_budget_replaces_the_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    picker, gate = pick_preset("clones", T4), threading.Event()
    quick = picker.budget

    def answer(*_: Any, **__: Any) -> Any:
        assert gate.wait(LIMIT_S)
        return replace(quick, source="simulation", total_bytes=EXACT)

    simulated(monkeypatch, answer)
    box = PickerBox(picker)
    assert "? checking" in box.answer.value and "+ fits" not in box.answer.value
    gate.set()
    assert box.wait(LIMIT_S)
    assert "5.0 GiB" in box.answer.value and "checking" not in box.answer.value
    assert "+ fits" in box.answer.value and "this read" not in box.answer.value
    assert picker.budget.source == "simulation"


def test_another_verdict_is_told_and_advice_stays_until_it_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picker, asked, seen = pick_preset("finetune", T4, preset="seed-t4"), [], []
    quick, is_made = picker.budget, threading.Event()
    assert quick.verdict == DOES_NOT_FIT and quick.advice

    def answer(*_: Any, with_advice: bool, **__: Any) -> Any:
        assert is_made.wait(LIMIT_S)
        asked.append(with_advice)
        seen.append(box.answer.value if with_advice else "")
        advice = ("a smaller batch",) if with_advice else ()
        return replace(quick, total_bytes=EXACT, verdict=TIGHT, advice=advice)

    simulated(monkeypatch, answer)
    box = PickerBox(picker)
    is_made.set()
    assert box.wait(LIMIT_S)
    assert asked == [False, True] and "a smaller batch" in box.answer.value
    assert quick.advice[0] in unescape(seen[1]) and "is being simulated" in seen[1]
    for page in (seen[1], box.answer.value):
        assert "! tight" in page and "this read" in page and ": does not fit." in page


def test_a_simulation_that_fails_leaves_the_quick_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> Any:
        raise JobFailed("it broke", fix="mend it")

    picker = pick_preset("clones", T4)
    simulated(monkeypatch, answer)
    box = PickerBox(picker)
    assert box.wait(LIMIT_S)
    assert "it broke" in box.answer.value and picker.budget.title() in repr(picker)


def test_only_the_newest_choice_is_simulated_to_its_end() -> None:
    latest, began, go_on, done = Latest(), threading.Event(), threading.Event(), []

    def first(check: Callable[[str], None]) -> str:
        began.set()
        assert go_on.wait(LIMIT_S)
        check("next")
        return "first"

    latest.ask(first, done.append)
    assert began.wait(LIMIT_S)
    latest.ask(lambda _: "second", done.append)
    latest.ask(lambda _: "third", done.append)
    go_on.set()
    assert latest.wait(LIMIT_S)
    assert done == ["third"]


def test_a_rerun_of_the_cell_keeps_the_choice_until_a_parameter_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nbhelpers.notebook.picker.is_notebook", lambda: True)
    monkeypatch.setattr("nbhelpers.notebook.picker._CHOSEN", {})
    PickerBox(pick_preset("clones", T4)).controls["preset"].value = "h100"
    assert pick_preset("clones", T4).preset == "h100"
    assert pick_preset("clones", T4, overrides={"seed": 1}).preset == "auto"
    picker = pick_preset("clones", T4)
    PickerBox(picker).reset.click()
    assert pick_preset("clones", T4).preset == "auto"


def test_a_change_returns_the_equal_line_and_refuses_what_is_not_there() -> None:
    picker = pick_preset("clones")
    assert picker.line == 'preset = "smoke"' and picker.line in repr(picker)
    assert picker.change(preset="h100") == 'preset = "h100"'
    with pytest.raises(ConfigError):
        picker.change(preset="h1000")
    with pytest.raises(ConfigError, match="no adapters"):
        picker.change(adapters="r8")
    assert picker.name == "h100"
    picker = pick_preset("finetune", plan_hardware("l4"))
    assert picker.line == 'preset = "l4"\nadapters = "r16"'
    assert picker.change(adapters="r8,qlora-r8").endswith('adapters = "r8,qlora-r8"')
    with pytest.raises(ConfigError, match="no adapter"):
        picker.change(adapters="r0")


@pytest.mark.usefixtures("bars")
@pytest.mark.parametrize("is_headless", [True, False])
def test_a_headless_run_shows_text_and_a_figure_instead_of_a_widget(
    monkeypatch: pytest.MonkeyPatch, is_headless: bool
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", lambda what, **_: shown.append(what))
    if is_headless:
        monkeypatch.setenv("NBHELPERS_OWNER_PID", "1")
    pick_preset("clones", T4)._ipython_display_()
    assert ("application/vnd.jupyter.widget-view+json" in shown[0]) is not is_headless
    assert "nbhelpers train clones --preset t4" in shown[0]["text/plain"]
    if is_headless:
        assert set(shown[0]) == {"text/plain", "text/html"}
        assert shown[1]["image/png"].startswith(b"\x89PNG")
