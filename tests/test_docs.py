"""README, QUICK_START and the guide tell the truth: commands parse, paths and targets exist."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer.main

import nbhelpers
from nbhelpers import errors, load_preset
from nbhelpers.cli import app as cli
from nbhelpers.cli.app import app
from nbhelpers.legacy import passed_options, recipe_of
from nbhelpers.presets.jobs import CLONES, JOBS
from nbhelpers.presets.parameters import parse_assignments
from tests.legacy_scripts import script, write

ROOT = Path(__file__).resolve().parent.parent
GUIDE = "docs/GUIDE.md"
DOCS = ("README.md", "QUICK_START.md", GUIDE)
WORKFLOW = "docs/ci-example.yml"


def _shell_lines() -> list[str]:
    lines = []
    for name in DOCS:
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
            whole = block.replace("\\\n", " ")
            lines += [line.partition(" #")[0].strip() for line in whole.splitlines()]
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


STARTING_NOTHING = ("gpu", "presets", "plan", "budget")


@pytest.mark.parametrize(
    "line",
    [each for each in COMMANDS if each.split()[1] in STARTING_NOTHING or "--plan-only" in each],
)
def test_a_documented_command_that_starts_nothing_runs(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", shlex.split(line))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert capsys.readouterr().out


def _starting(*names: str) -> list[str]:
    return [line for line in COMMANDS if line.split()[1] in names]


@pytest.mark.parametrize("line", _starting("export-launcher", "patch-legacy", "legacy-launcher"))
def test_a_documented_command_that_writes_files_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "graphcodebert" if "graphcodebert" in line else "codegpt"
    options = [f'parser.add_argument("--{name}")' for name in passed_options(recipe_of(model))]
    parsed = "    args = parser.parse_args()\n"
    write(tmp_path, script((parsed, "".join(f"    {each}\n" for each in options) + parsed)))
    words = shlex.split(line.replace("/shared/runs", str(tmp_path / "runs")))
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    out = capsys.readouterr().out
    assert not end.value.code, out
    named = words[words.index("--write") + 1 :] if "legacy-launcher" in words else []
    named += words[words.index("--slurm") + 1 :][:1] if "--slurm" in words else []
    for name in named:
        assert (tmp_path / name).stat().st_size > 500 and name in out
    if "patch-legacy" in words:
        assert (tmp_path / "run.py.bak").exists() == ("--write" in words)
    if "export-launcher" in words:
        assert len(list((tmp_path / "runs").glob("*/run.json"))) == 1


def test_the_table_of_the_guide_is_what_plan_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / GUIDE).read_text(), re.DOTALL)
    command = "nbhelpers plan clones --preset seed-graphcodebert --gpu rtx6000ada --count 2"
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().out.splitlines()
    for row in block.splitlines():
        assert any(line.startswith(row.rstrip("…")) for line in printed), row


def test_the_models_of_the_guide_read_what_the_presets_say() -> None:
    text = (ROOT / GUIDE).read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (\d+|none).* \|$", text, re.MULTILINE)
    assert {name for name, *_ in rows} == set(CLONES.models.aliases)
    for name, tokens, nodes in rows:
        s = load_preset("clones", "base", overrides={"model": name}).settings
        assert s.seq_len == int(tokens.replace(",", ""))
        assert s.data_flow_length == (None if nodes == "none" else int(nodes))


def test_the_preset_of_ones_own_in_the_guide_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / GUIDE).read_text(), re.DOTALL)
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(block))
    for job in JOBS:
        assert load_preset(job, str(tmp_path / "mine.yaml")).settings.epochs == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_documented_make_target_exists(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", DOCS)
def test_a_relative_link_leads_to_a_file(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text())
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_tree_of_the_readme_exists() -> None:
    section = (ROOT / "README.md").read_text().partition("## The tree")[2]
    names = [line.split()[0] for line in section.split("```")[1].splitlines() if line.strip()]
    assert len(names) > 8
    assert [name for name in names if name != "runs/" and not (ROOT / name).exists()] == []


def test_the_table_of_exit_codes_is_that_of_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", (ROOT / GUIDE).read_text(), re.MULTILINE)
    assert len(rows) == 11
    for code, kind in rows:
        assert getattr(errors, kind).exit_code == int(code)


def test_the_documents_say_which_python_was_run() -> None:
    assert "Tests ran on Python 3.11, 3.12 and 3.13." in (ROOT / "README.md").read_text()
    log = (ROOT / "docs/log/house.md").read_text()
    assert all(re.search(rf"{version}\.\d+ [\d,]+ passed", log) for version in ("3.12", "3.13"))


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog")
    heads = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert heads[0] == ("Unreleased", "") and heads[1][0] == nbhelpers.__version__
    assert all(date for name, date in heads[1:])
    assert set(re.findall(r"^### (\w+)", text, re.MULTILINE)) <= {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }
