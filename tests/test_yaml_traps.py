"""Promise: YAML that reads as something else than it looks, or that never ends, is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbhelpers.common.yaml_files import read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.presets.loading import load_preset


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [("010", "base 8"), ("-0400", "base 8"), ("4:16", "base 60"), ("1:30.5", "base 60")],
)
def test_a_number_of_another_base_is_refused(tmp_path: Path, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"mine.yaml:2: .*{words}"):
        read_yaml(write(tmp_path, f"a: 1\nb: {value}\n"))


@pytest.mark.parametrize("value", ["0", "0.5", "10", "0x10", "1_000", "'010'", "'4:16'", "0.010"])
def test_an_ordinary_value_passes(tmp_path: Path, value: str) -> None:
    assert set(read_yaml(write(tmp_path, f"b: {value}\n"))) == {"b"}


@pytest.mark.parametrize("value", ["!!int ''", "!!timestamp x", "!!bool x", "!!int x", "!!float x"])
def test_a_tag_that_its_text_does_not_fit_is_a_mistake_in_the_file(
    tmp_path: Path, value: str
) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_yaml(write(tmp_path, f"a: {value}\n"))


def test_aliases_of_aliases_do_not_multiply_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        items = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{items}]")
    assert len(read_yaml(write(tmp_path, "\n".join(lines[:3])))) == 3
    with pytest.raises(ConfigError, match="unfold to more than"):
        read_yaml(write(tmp_path, "\n".join(lines)))


def test_an_alias_of_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="alias of itself"):
        read_yaml(write(tmp_path, "settings: &s\n  priors: *s\n"))


def test_what_is_no_file_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, words in (
        ("folder", "is a folder"),
        ("loop", "no such file"),
        ("pipe", "no regular"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_yaml(tmp_path / f"{name}.yaml")


def test_a_chain_of_extends_is_one_problem_and_not_thirty(tmp_path: Path) -> None:
    write(tmp_path, "extends: two\n", "one.yaml")
    with pytest.raises(ConfigError) as caught:
        load_preset("clones", write(tmp_path, "extends: one\n", "two.yaml"))
    assert "names a file that extends another" in caught.value.message
    assert "problems" not in caught.value.message


def test_a_path_in_extends_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    base = Path(__file__).resolve().parent.parent / "configs" / "clones" / "base.yaml"
    (tmp_path / "own.yaml").write_text(base.read_text())
    assert load_preset("clones", write(tmp_path / "deep", "extends: ../own.yaml\n")).name == "mine"


@pytest.mark.parametrize("line", ["gpu: [t4]", "gpu: t4\ngpus: x", "gpu: {a: 1}", "gpu: 4"])
def test_a_broken_preset_of_the_user_does_not_crash_auto(
    tmp_path: Path, monkeypatch, line: str
) -> None:
    (tmp_path / "clones").mkdir()
    write(tmp_path / "clones", f"extends: base\n{line}\n", "broken.yaml")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(tmp_path))
    try:
        load_preset("clones", "auto", hardware=plan_hardware("t4"))
    except ConfigError as error:
        assert "broken.yaml" in error.message


def test_aliases_that_unfold_without_end_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    rows = [f"  m{n}: &m{n} [{', '.join([f'*m{n - 1}'] * 9)}]" for n in range(1, 9)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(["extends: base", "models:", "  m0: &m0 [1, 1]", *rows, ""]))
    with pytest.raises(ConfigError, match="unfold to more than"):
        load_preset("clones", str(path))
