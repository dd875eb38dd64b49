"""README and QUICK_START tell the truth: their commands parse, their paths and targets exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from nbhelpers import cli, errors
from nbhelpers.cli import app
from nbhelpers.parameters import parse_assignments

ROOT = Path(__file__).resolve().parent.parent
DOCS = ("README.md", "QUICK_START.md")
WORKFLOW = "docs/ci-example.yml"


def _shell_lines() -> list[str]:
    lines = []
    for name in DOCS:
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
            lines += [line.partition(" #")[0].strip() for line in block.splitlines()]
    lines += re.findall(r"run: (make \S+)", _workflow())
    return [line for line in lines if line]


def _workflow() -> str:
    return (ROOT / WORKFLOW).read_text()


COMMANDS = [line for line in _shell_lines() if line.startswith("nbhelpers ")]
TARGETS = sorted({line.split()[1] for line in _shell_lines() if line.startswith("make ")})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_documented_command_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    group = typer.main.get_command(app)
    command = group.commands[words[0]]
    context = command.make_context(words[0], words[1:])
    parse_assignments(context.params.get("parameter") or [], "-p")
    parse_assignments(context.params.get("override") or [], "-o")


def test_the_nightly_command_of_the_sample_workflow_parses() -> None:
    found = re.search(r"nbhelpers (run .*?)\n\s+- uses", _workflow(), re.DOTALL)
    assert found
    words = shlex.split(found[1])
    context = typer.main.get_command(app).commands["run"].make_context("run", words[1:])
    assert context.params["require"] == ["f1>=0.9"] or context.params["require"] == ("f1>=0.9",)


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS if line.split()[1] in ("gpu", "presets", "plan", "budget")]
)
def test_a_documented_command_that_starts_nothing_runs(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", shlex.split(line))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert capsys.readouterr().out


@pytest.mark.parametrize("target", TARGETS)
def test_a_documented_make_target_exists(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", DOCS)
def test_a_relative_link_leads_to_a_file(name: str) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", (ROOT / name).read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_tree_of_the_readme_exists() -> None:
    section = (ROOT / "README.md").read_text().partition("## The tree")[2]
    names = [line.split()[0] for line in section.split("```")[1].splitlines() if line.strip()]
    assert len(names) > 8
    assert [name for name in names if name != "runs/" and not (ROOT / name).exists()] == []


def test_the_table_of_exit_codes_is_that_of_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 11
    for code, kind in rows:
        assert getattr(errors, kind).exit_code == int(code)


def test_the_documents_say_which_python_was_run() -> None:
    assert "Tests ran on Python 3.11; on 3.12 and 3.13 they have not run yet." in (
        (ROOT / "README.md").read_text()
    )


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog")
    assert "## [Unreleased]" in text
    assert set(re.findall(r"^### (\w+)", text, re.MULTILINE)) <= {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }
