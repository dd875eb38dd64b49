"""The preset picker is sugar: it prints the equal line, and leaves no widget in a headless run."""

from __future__ import annotations

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.notebook.picker import pick_preset


def test_the_picker_starts_from_the_preset_for_this_hardware() -> None:
    picker = pick_preset("clones", plan_hardware("t4"))
    assert picker.line == 'preset = "t4"'
    assert picker.line in repr(picker)


def test_choosing_prints_the_equal_line() -> None:
    picker = pick_preset("clones")
    assert picker.line == 'preset = "smoke"'
    assert picker.choose("h100") == 'preset = "h100"'
    assert "H100" in picker.text()
    with pytest.raises(ConfigError):
        picker.choose("h1000")


def test_a_fine_tuning_is_picked_with_its_adapters() -> None:
    picker = pick_preset("finetune", plan_hardware("l4"))
    assert picker.line == 'preset = "l4"\nadapters = "r16"'
    assert picker.vary("r8,qlora-r8").endswith('adapters = "r8,qlora-r8"')
    with pytest.raises(ConfigError, match="no adapter"):
        picker.vary("r0")
    with pytest.raises(ConfigError, match="no adapters"):
        pick_preset("clones").vary("r8")


@pytest.mark.parametrize("is_headless", [True, False])
def test_a_headless_run_shows_text_and_a_figure_instead_of_a_widget(
    monkeypatch: pytest.MonkeyPatch, is_headless: bool
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", lambda what, **_: shown.append(what))
    monkeypatch.setattr("nbhelpers.notebook.choice.missing_libraries", lambda: ["torch"])
    if is_headless:
        monkeypatch.setenv("NBHELPERS_OWNER_PID", "1")
    pick_preset("clones", plan_hardware("t4"))._ipython_display_()
    assert ("application/vnd.jupyter.widget-view+json" in shown[0]) is not is_headless
    assert "nbhelpers train clones --preset t4" in shown[0]["text/plain"]
    if is_headless:
        assert set(shown[0]) == {"text/plain", "text/html"}
        assert shown[1]["image/png"].startswith(b"\x89PNG")
