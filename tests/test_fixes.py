"""Promise: what a fix says to type exists, can be typed, and ends the error."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError, JobFailed
from nbhelpers.presets.checks import type_errors, type_problems
from nbhelpers.presets.foreign import NAMES, answer
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.parameters import parse_overrides, parse_value
from nbhelpers.presets.rules import OF_EVERY_JOB, Rule
from nbhelpers.runs.run import Run, open_run

PACKAGE = Path(__file__).resolve().parent.parent / "nbhelpers"
HOLE = "\0"  # what is computed in a text
COMMANDS = typer.main.get_command(app.app).commands
OPTIONS = {
    name: {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for name, command in COMMANDS.items()
}
OTHERS = {"--force-reinstall", "--no-deps", "--local_rank", "--name", "--debug", "--help"}
FIELDS = {name for job in JOBS.values() for name in job.settings.model_fields}

# ------------------------------------------------------------------------------------------------
# Every fix in the source: its commands, options and settings exist, and its values are allowed.


def texts(node: ast.expr) -> list[str]:
    """The texts that an expression may be, with holes for what is computed."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        lefts, rights = (texts(side) or [HOLE] for side in (node.left, node.right))
        return [left + right for left in lefts for right in rights]
    if isinstance(node, ast.BoolOp | ast.Tuple):
        values = node.values if isinstance(node, ast.BoolOp) else node.elts
        return [text for value in values for text in texts(value)]
    return []


def fix_expressions(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """What stands after `fix=`, is assigned to `fix`, or is the last part of a Problem or Rule."""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "fix":
            yield node.value
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {part.id for t in targets for part in ast.walk(t) if isinstance(part, ast.Name)}
            if names & {"fix", "FIX", "_RESUME", "_AGAIN", "again", "hint"}:
                yield node.value
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("Problem", "Rule", "problem"):
                yield node.args[-1]


def source_fixes() -> tuple[list[tuple[str, str]], set[str]]:
    """Return (place, fix) for every fix of the package, and the names of all its arguments."""
    fixes, arguments = [], set()
    for file in sorted(PACKAGE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        arguments |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in fix_expressions(nodes):
            place = f"{file.relative_to(PACKAGE)}:{node.lineno}"
            fixes += [(place, text) for text in texts(node)]
    return fixes, arguments


def faults(text: str, arguments: set[str]) -> Iterator[str]:
    """What a fix names that does not exist, or cannot be typed like that."""
    for match in re.finditer(r"(?<![\w=])nbhelpers ([a-z][a-z-]*)([^;,:()\n]*)", text):
        command, rest = match.groups()
        if command in ("there", "that"):  # the package itself
            continue
        if command not in COMMANDS:
            yield f"no command {command}"
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest):
            if option not in OPTIONS.get(command, ()):
                yield f"{command} has no {option}"
    for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
        if option not in set().union(OTHERS, *OPTIONS.values()):
            yield f"no option {option}"
    for name, value in re.findall(r"(?<![\w.-])([a-z]\w*)=([\w.+\"'-]*)(?![\w\0(])", text):
        jobs = [job for job in JOBS if name in JOBS[job].settings.model_fields]
        if not jobs and name not in arguments | {"source", "generator", "language", "name"}:
            yield f"no setting {name}"
        value = value.strip("\"'.")
        settings = {name: parse_value(value)}
        if (
            jobs
            and value
            and value.islower()
            and all(name in type_errors(j, settings) for j in jobs)
        ):
            yield f"{name} cannot be {value}"


def test_the_commands_options_and_settings_of_every_fix_exist() -> None:
    fixes, arguments = source_fixes()
    fixes = [(place, text) for place, text in fixes if not place.startswith("legacy/")]
    wrong = [f"{place}: {fault}: {t!r}" for place, t in fixes for fault in faults(t, arguments)]
    assert len(fixes) > 400 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "run nbhelpers trian",
        "nbhelpers train --push-to X",
        "add --exakt",
        "set lerning_rate=1",
        "set evaluate=some",
    ],
)
def test_a_fix_that_names_nothing_is_seen(text: str) -> None:
    assert list(faults(text, {"fresh"}))


# ------------------------------------------------------------------------------------------------
# Names of other libraries, rules between settings, and values out of range.

SAMPLES = {
    **dict.fromkeys(("num_train_epochs", "max_steps", "warmup_steps"), (3, 0.5)),
    **dict.fromkeys(("fp16", "bf16", "load_in_4bit", "torch_compile"), (True, False)),
    "activation_checkpointing": (True,),
    "report_to": ("wandb", "all", ["tensorboard"]),
    "lr_scheduler_type": ("cosine", "polynomial"),
    "attn_implementation": ("sdpa", "flash_attention_2"),
    "eval_strategy": ("steps", "epoch"),
    "torch_dtype": ("torch.bfloat16", "auto"),
    **dict.fromkeys(("lr", "init_lr", "peak_lr"), (2e-5,)),
    "model_name_or_path": ("google/gemma-2-2b", "microsoft/codebert-base"),
}
SAME_VALUE = {"lora_target_modules": ["q_proj"], "data": "smoke", "model_revision": "main"}
SAME_VALUE |= {"model": "smoke", "warmup_ratio": 0.1, "adam_epsilon": 1e-8, "max_grad_norm": 1.0}
WANTED = [
    ("num_train_epochs", 3, "epochs=3"),
    ("num_train_epochs", 0.5, "epochs=1 and train_fraction=0.5"),
    ("max_steps", 60, "epochs=1 and max_train_samples=960"),
    ("max_steps", -1, ""),
    ("lr", 2e-4, "learning_rate=0.0002"),
    ("max_length", 512, "seq_len=512"),
    ("max_seq_length", 2048, "seq_len=2048"),
    ("fp16", True, "precision=fp16"),
    ("bf16", True, "precision=bf16"),
    ("bf16", False, ""),
    ("r", 8, "lora_r=8"),
    ("load_in_4bit", True, "method=qlora"),
    ("load_in_4bit", False, "method=lora"),
    ("gradient_accumulation_steps", 8, "global_batch_size=32"),
    ("gradient_accumulation_steps", 1, ""),
    ("output_dir", "out", ""),
    ("report_to", "wandb", "track=wandb"),
    ("report_to", "mlflow", ""),
    ("lr", 0, "learning_rate=VALUE, greater than 0"),
    ("r", -3, "lora_r=VALUE, greater than or equal to 1"),
    ("data_seed", 3, ""),
    ("optim", "paged_adamw_8bit", ""),
    ("push_to_hub", True, ""),
]


@pytest.mark.parametrize(("name", "value", "line"), WANTED)
def test_another_librarys_name_is_answered_with_our_setting_and_value(
    name: str, value: Any, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_preset("finetune", "base", overrides={name: value})
    assert caught.value.fix == f"write {line}" if line else caught.value.fix.startswith("leave it")


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("report_to=none", "write -o track=none"),
        ("bias=none", "leave it out: LoRA"),
        ("lr=none", "leave it out: without a value"),
        ("num_train_epochs=none", "leave it out: without a value"),
        ("seed=none", "leave it out for the preset's own"),
    ],
)
def test_none_is_answered_for_what_it_means_to_another_library(typed: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides("finetune", [typed])
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize("share", [None, 0.2])
def test_a_part_of_an_epoch_is_a_part_of_the_presets_own_share(share: float | None) -> None:
    with pytest.raises(ConfigError) as caught:  # the preset's: 0.1
        load_preset("clones", "base", overrides={"num_train_epochs": 0.5, "train_fraction": share})
    assert caught.value.fix == f"write epochs=1 and train_fraction={(share or 0.1) / 2}"


@pytest.mark.parametrize("job", list(JOBS))
def test_what_is_answered_for_another_librarys_name_can_be_written(job: str) -> None:
    for name in NAMES - JOBS[job].settings.model_fields.keys():
        for value in SAMPLES.get(name, (8,)):
            text = answer(job, name, value, {})
            assert text.startswith(("write ", "leave it out")), (name, text)
            lines = re.findall(r"(?:write|and) (\w+=\S+)", text)
            settings = parse_overrides(job, lines)
            settings |= {key: SAME_VALUE[key] for key in settings.keys() & SAME_VALUE.keys()}
            wrong = set(type_errors(job, settings)) & set(settings)
            assert not wrong and settings.keys() <= JOBS[job].settings.model_fields.keys(), text


# Of each rule between settings: what breaks it, and what its fix says (words of it, and settings).
BROKEN: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "clones",
        {"per_device_train_batch_size": 64, "global_batch_size": 32},
        "set per_device_train_batch_size to 32 or less",
        {"per_device_train_batch_size": 32},
    ),
    ("clones", {"pretrain_steps": 5}, "set pretrain_steps to 0", {"pretrain_steps": 0}),
    ("clones", {"seq_len": 4096}, "set seq_len to 1024 or less", {"seq_len": 1024}),
    ("clones", {"attention": "flex"}, "write auto or sdpa", {"attention": "sdpa"}),
    (
        "clones",
        {"data_flow_length": 8},
        "set model to graphcodebert",
        {"model": "graphcodebert", "seq_len": 256},
    ),
    ("detector", {"pretrain_steps": 5}, "random_weights to true", {"random_weights": True}),
    ("detector", {"seq_len": 4096}, "set seq_len to 512 or less", {"seq_len": 512}),
    ("detector", {"attention": "flex"}, "write auto or sdpa", {"attention": "auto"}),
    ("detector", {"hold_out": "java"}, "language=NAME", {"hold_out": "language=java"}),
    (
        "detector",
        {"objective": "similar", "hold_out": "generator=x"},
        "hold out a source or a language",
        {"hold_out": "source=x"},
    ),
    ("detector", {"augment": ["rename"] * 2}, "keep one of each", {"augment": ["rename"]}),
    ("detector", {"languages": ["java"] * 2}, "keep one of each", {"languages": ["java"]}),
    ("detector", {"prevalences": [0.1, 0.1]}, "keep one of each", {"prevalences": [0.1]}),
    (
        "detector",
        {"augment": [], "augment_share": 0.5},
        "set augment_share to 0.0",
        {"augment_share": 0.0},
    ),
    ("detector", {"languages": ["Java"]}, "in lower case", {"languages": ["java"]}),
    ("detector", {"contrastive_weight": 0.0}, "such as 0.5", {"contrastive_weight": 0.5}),
    (
        "detector",
        {"members_per_task": 64, "global_batch_size": 32},
        "set members_per_task to 32 or less",
        {"members_per_task": 32},
    ),
    (
        "detector",
        {"valid_share": 0.45, "test_share": 0.4},
        "leave at least a fifth for training",
        {"test_share": 0.3},
    ),
    ("finetune", {"pretrain_steps": 5}, "set pretrain_steps to 0", {"pretrain_steps": 0}),
    (
        "finetune",
        {"engine": "trl", "loss": "chunked"},
        "set engine=nbhelpers",
        {"engine": "nbhelpers"},
    ),
    ("finetune", {"attention": "sdpa"}, "write auto, eager or flex", {"attention": "eager"}),
    ("finetune", {"padding": "fixed"}, "padding: dynamic", {"padding": "dynamic"}),
    (
        "finetune",
        {"allow_uneven_split": True},
        "leave allow_uneven_split at false",
        {"allow_uneven_split": False},
    ),
    ("finetune", {"template": "x"}, "alpaca", {"template": "alpaca"}),
    (
        "finetune",
        {"lora_target_modules": ["all-linear", "q_proj"]},
        "keep all-linear alone",
        {"lora_target_modules": ["all-linear"]},
    ),
    (
        "finetune",
        {"lora_target_modules": ["q_proj", "lm_head"]},
        "leave out embed_tokens and lm_head",
        {"lora_target_modules": ["q_proj"]},
    ),
    (
        "finetune",
        {"lora_target_modules": ["q_proj"] * 2},
        "keep one of each",
        {"lora_target_modules": ["q_proj"]},
    ),
    (
        "finetune",
        {"lora_target_modules": [".*_proj"]},
        "such as q_proj",
        {"lora_target_modules": ["q_proj"]},
    ),
]


@pytest.mark.parametrize(("job", "settings", "words", "repair"), BROKEN)
def test_the_fix_of_a_rule_ends_its_error(
    job: str, settings: dict[str, Any], words: str, repair: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_preset(job, "base", overrides=settings)
    assert words in caught.value.fix
    load_preset(job, "base", overrides=settings | repair)


def test_every_rule_between_settings_has_its_fix_followed() -> None:
    """`save_minutes` alone cannot be emptied by an override; a file can."""
    rules: list[Rule] = [*OF_EVERY_JOB, *(rule for job in JOBS.values() for rule in job.rules)]
    followed = {(name, job) for job, settings, *_ in BROKEN for name in settings}
    names = {name for name, _ in followed} | {"save_minutes"}
    assert {rule.setting for rule in rules} <= names
    assert len(BROKEN) >= len({(rule.setting, rule.text) for rule in rules}) - 1


WRONG = ("text", "", "3", "0.5", True, -1, 0, 10**15, 1e9, -0.5, float("nan"), [], {}, ["x"])
KINDS: dict[str, Any] = {
    "an integer": 64,
    "a number": 0.3,
    "a finite number": 0.3,
    "a string": "smoke",
    "a list": ["q_proj"],
}
KINDS |= {"a text that is not empty": "smoke", "a list of at least 1": ["q_proj"]}
KINDS |= {"a dictionary": {}, "true": True}


def followed(fix: str) -> Any:
    """The value that the fix of a value of the wrong type or size says to write."""
    if match := re.search(r"without quotes: (\S+)", fix):
        return parse_value(match[1])
    if match := re.search(r"set \S+ to (more than|less than)? ?(\S+)", fix):
        bound = parse_value(match[2])
        step = {"more than": 1, "less than": -1}.get(match[1], 0) * abs(bound or 1) / 4
        return bound + step if step else bound
    if match := re.search(r'quote it, `\w+: "(\w+)"', fix):
        return match[1]
    if match := re.search(r"=(\[.*\])$", fix):
        return parse_value(match[1])
    if match := re.search(r"write `\S+` as (.*)", fix):
        if " each item " in fix:
            return [followed(fix.replace("a list, each item ", ""))]
        first = re.search(r"'(\w+)'", match[1])
        wanted = match[1].partition(" (")[0].partition(" or ")[0]
        if not first:
            return next((KINDS[kind] for kind in KINDS if wanted.startswith(kind)), None)
        return first[1]
    raise AssertionError(fix)


@pytest.mark.parametrize("job", list(JOBS))
def test_the_fix_of_a_wrong_value_ends_its_error(job: str) -> None:
    for name in JOBS[job].settings.model_fields:
        for value in WRONG:
            for problem in type_problems(job, {name: value}, {name: "here"}):
                if problem.where == "here":
                    repair = followed(problem.fix.replace("[0]", ""))
                    repair = [repair] if f"{name}[0]" in problem.fix else repair
                    repair = 100 if name == "bootstrap_samples" and repair == 64 else repair
                    assert name not in type_errors(job, {name: repair}), (problem, repair)


# ------------------------------------------------------------------------------------------------
# Commands: what is typed, words of the fix, and what is typed instead.

COMMAND_LINES = [
    ("plan clones --count 2", "--gpu t4", "plan clones --count 2 --gpu t4"),
    ("plan clone", "`clones`", "plan clones"),
    ("plan clones --preset t5", "t4", "plan clones --preset t4 --gpu t4"),
    ("plan clones --gpu t44", "did you mean t4", "plan clones --gpu t4"),
    ("plan clones --gpu t4 -o epoch=1", "`epochs`", "plan clones --gpu t4 -o epochs=1"),
    ("plan clones -o seq_len=none", "leave it out", "plan clones"),
    ("plan clones --gpu t4 -o epochs", "-o epochs=1", "plan clones --gpu t4 -o epochs=1"),
    ("plan clones --gpu t4 --epochs 1", "-o epochs=1", "plan clones --gpu t4 -o epochs=1"),
    ("plan clones --gpu t4 --lr=1e-5", "-o learning_rate", "plan clones -o learning_rate=1e-5"),
    ("plan clones --gpu t4 --price 0", "--price 3", "plan clones --gpu t4 --price 3"),
    ("plan clones --gpu t4 -o precision=bf16", '"auto" or "fp16"', "plan clones -o precision=auto"),
    ("audit nothing --html x.htm", "name another ending", "audit nothing --html x.html"),
    ("audit nothing --html no/x.html", "folder that exists", "audit nothing --html x.html"),
    ("budget --plot x.png", "--history", "budget --history --plot x.png"),
    ("budget --method lora -o method=base", "budget clones", "budget finetune --method lora"),
    ("study --gpu t4", "--plan-only", "study --gpu t4 --plan-only"),
    ("evaluate clones", "--run", "evaluate clones --run nothing"),
    ("export-launcher clones", "--gpu h100", "export-launcher clones --gpu h100"),
    (
        "export-launcher clones --gpu h100 --time abc",
        "--time 04:00:00",
        "export-launcher clones --gpu h100 --time 04:00:00",
    ),
    (
        "export-launcher clones --gpu h100 --main-address host:1",
        "--port",
        "export-launcher clones --gpu h100 --main-address host --port 1",
    ),
]


@pytest.mark.parametrize(("typed", "words", "then"), COMMAND_LINES)
def test_following_the_fix_of_a_command_ends_its_error(
    typed: str, words: str, then: str, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    def text_of(line: str) -> str:
        monkeypatch.setattr("sys.argv", ["nbhelpers", *line.split()])
        with contextlib.suppress(SystemExit):
            app.main()
        return capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    error = text_of(typed)
    assert words in error.partition("Fix: ")[2], error
    first = error.splitlines()[0]
    assert first not in text_of(then)


@pytest.mark.parametrize("folder", ["runs", "my runs"])
def test_a_run_is_named_as_a_shell_finds_it(folder: str, monkeypatch: Any, tmp_path: Path) -> None:
    """By its id in the usual folder, else by its path; and its command says where it lies."""
    monkeypatch.chdir(tmp_path)
    run = Run(Path(folder) / "clones-x")
    run.path.mkdir(parents=True)
    run.record_path.write_text('{"run_id": "clones-x", "command": "nbhelpers train clones"}')
    with pytest.raises(JobFailed) as caught:
        run.result()
    words = shlex.split(caught.value.fix.partition(": ")[2])
    assert words[:3] == ["nbhelpers", "train", "clones"]
    place = words[words.index("--run-dir") + 1] if "--run-dir" in words else "runs"
    assert open_run("clones-x", place) == open_run(shlex.split(run.typed)[0]) == run
