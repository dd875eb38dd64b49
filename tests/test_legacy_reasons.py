"""patch-legacy refuses what it cannot prove, for the true reason, and calls no false fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError
from nbhelpers.legacy import patch_script, reasons
from nbhelpers.presets.loading import list_presets
from tests.legacy_scripts import HAND_WRITTEN, SCRIPT, script, write

OPTION = (
    "import argparse, os, torch, torch.distributed as dist\n"
    "parser = argparse.ArgumentParser()\n"
    'parser.add_argument("--local_rank", type=int, default=-1)\n'
    "args = parser.parse_args()\n"
)
TAB = " " * 20
TESTED_BY_ALL = (
    "    if args.local_rank in [-1, 0]:\n        model.load",
    "    if 1:\n        model.load",
)

# Kinds that strangers' scripts showed: what they hold, and the reason.
REFUSED = {
    "data split by rank": (
        OPTION + "rank, n = (0, 1) if args.local_rank == -1 else (dist.get_rank(), 2)\n"
        "found = [i for i in range(10) if i % n == rank]\nopen('out', 'w').write(str(found))\n",
        "the data is split by rank inside the script (line 6)",
    ),
    "a slice by rank": (
        script(("self.pairs = [(", "self.pairs = list(range(9))[args.local_rank::2] or [(")),
        "the data is split by rank inside the script",
    ),
    "a sampler without the wrapper": (
        script(("model = DistributedDataParallel(model)", "pass")),
        "each process would train alone on its share",
    ),
    "a name of rank 0, used by all": (
        script(("if args.local_rank in [-1, 0] and global", "if global")),
        "results is bound on rank 0 only (line 50), and line 51 asks it on all",
    ),
    "a name of one block, used by all": (
        OPTION + "if args.local_rank in [-1, 0]:\n    log = open('x')\nprint(log)\n",
        "log is bound on rank 0 only (line 6), and line 7 asks it on all",
    ),
    "a barrier that rank 0 never reaches": (
        script(("    if args.local_rank == 0:\n        torch.distributed.barrier()\n", "")),
        "barrier() is reached by the other ranks, never by rank 0, so it waits for ever",
    ),
    "a barrier of rank 0 alone, in what it calls alone": (
        script(("    model.eval()\n    with", "    torch.distributed.barrier()\n    with")),
        "barrier() is reached by rank 0 alone",
    ),
    "barriers under other conditions": (
        script(("if args.local_rank == 0:\n", "if args.local_rank == 0 and args.size:\n")),
        "so it waits for ever",
    ),
    "an option that is never read": (
        OPTION + "model = torch.nn.DataParallel(model)\n",
        "the option of line 3 is never read",
    ),
    "a branch that needs apex": (
        OPTION + "if args.local_rank != -1:\n    from apex.parallel import "
        "DistributedDataParallel as DDP\n    model = DDP(model)\n",
        "its distributed branch needs NVIDIA's apex",
    ),
    "a group with an address of its own": (
        script(('backend="gloo"', 'backend="gloo", init_method="tcp://10.0.0.1:99"')),
        "the processes meet at an address of the script's own",
    ),
    "a group with a rank of its own": (
        script(('backend="gloo"', 'backend="gloo", rank=args.node, world_size=args.nodes')),
        "takes its rank from args.node, which nothing passes",
    ),
    "shares that all evaluate": (
        script(TESTED_BY_ALL),
        "each process evaluates a share of its own (line 75)",
    ),
    "a file that all write": (
        script(
            TESTED_BY_ALL,
            (
                "        sampler = DistributedSampler(data)\n    model",
                "        sampler = None\n    model",
            ),
        ),
        "no condition keeps every process from writing the same file",
    ),
    "a training past the wrapper": (
        HAND_WRITTEN.replace("model(x).sum().backward()", "model.module(x).sum().backward()"),
        "no pass of the training is seen to go through DistributedDataParallel",
    ),
    "files that all remove": (
        script(("    train(args, Pairs(args", "    os.remove('old')\n    train(args, Pairs(args")),
        "no condition keeps every process from writing the same file",
    ),
    "an evaluation in another file": (
        script(("evaluate(args, model)\n", "validate(args, model)\n")),
        "rank 0 evaluates alone, through DistributedDataParallel, by validate()",
    ),
    "the wrapper passed by rank 0": (
        script(
            ("if args.local_rank == -1 and args.evaluate_during_training:  # single", "if 1:"),
            ("results = evaluate(args, model)\n", 'results = {"score": model(x).sum()}\n'),
        ),
        "rank 0 passes through DistributedDataParallel alone, by model()",
    ),
    "an evaluation of one process in another form": (
        script(
            (
                "        for step, (x,",
                "        once = args.local_rank == -1\n        for step, (x,",
            ),
            (
                "if args.local_rank == -1 and args.evaluate_during_training:  # single\n",
                "if once:\n",
            ),
        ),
        "only a single process reaches evaluate()",
    ),
    "a condition that is not read": (
        script(("if args.local_rank in [-1, 0] and global", "if odd(args.local_rank) and global")),
        "a condition of line 48 that the ranks may find different decides",
    ),
    "a training that is handed on": (
        script(
            ("    train(args, Pairs", "    list(map(train, [args], [Pairs"),
            ('(args, "train"), model)', '(args, "train")], [model]))'),
        ),
        "its calls are not followed here",
    ),
    "a training loop that rank 0 leaves alone": (
        script(
            (
                "                    if results",
                "                    if step > 3: break\n" + TAB + "if results",
            )
        ),
        "one rank may leave the training loop alone",
    ),
    "early stopping that rank 0 alone decides": (
        script(
            ("    global_step, best = 0, -1.0\n", "    global_step, best, stop = 0, -1.0, False\n"),
            ("    best = results", "    stop, best = True, results"),
            (
                "            model.train()\n",
                "            if stop: break\n            model.train()\n",
            ),
        ),
        "one rank may leave the training loop alone",
    ),
    "training data that all draw whole": (
        script(
            ("RandomSampler(data) if args.local_rank == -1 else Distributed", "Random"),
        ),
        "DistributedSampler() is not seen to run on every process, for the training",
    ),
    "a save in another file": (
        script(
            ("    train(args, Pairs(args", "    save_results(args)\n    train(args, Pairs(args")
        ),
        "no condition keeps every process from writing the same file",
    ),
    "a wrapper by another name": (
        script(
            ("import DistributedDataParallel\n", "import DistributedDataParallel as Wrapper\n"),
            ("model = DistributedDataParallel(", "model = Wrapper("),
        ),
        "DistributedDataParallel() is not seen to run on every process",
    ),
    "a wrapped model that a function takes from the module": (
        HAND_WRITTEN.replace("test(model, ", "test(").replace("test(model, valid", "test(valid"),
        "rank 0 passes through DistributedDataParallel alone, by model()",
    ),
    "a function that needs the wrapper and passes through it": (
        HAND_WRITTEN.replace("    model.eval()\n", "    model.module.eval()\n"),
        "model.module is asked of the model that rank 0 evaluates",
    ),
    "a required option": (
        script(("default=-1)", "required=True)")),
        "is required, and accelerate passes none",
    ),
    "no backward": (OPTION + "if args.local_rank == 0:\n    pass\n", "this file calls no backward"),
    "arguments in another form": (
        script(("args = parser.parse_args()\n    if", "args = [parser.parse_args()][0]\n    if")),
        "no statement parses --local_rank in a form that is known here",
    ),
    "arguments of another file": (
        script(
            ('    parser.add_argument("--local_rank", type=int, default=-1)', "    add(parser)")
        ),
        "asks args.local_rank, and no option of this file fills it",
    ),
    "no rank at all": (
        "import torch\nmodel = torch.nn.DataParallel(model)\n",
        "it has no option --local_rank, DataParallel in line 2",
    ),
    "Horovod": (f"import horovod.torch as hvd\n{OPTION}", "it is written for Horovod (line 1)"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_proven_is_refused_for_the_true_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match="Nothing was changed") as caught:
        patch_script(path, write=True)
    assert reason in caught.value.message
    assert caught.value.fix
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["mp.spawn(work, nprocs=2)", "spawn(work)"])
def test_own_processes_are_the_only_reason(tmp_path: Path, call: str) -> None:
    text = f"import torch.multiprocessing as mp\ndef work(rank):\n    DDP(model)\n{call}\n"
    with pytest.raises(ConfigError) as caught:
        patch_script(write(tmp_path, text))
    assert "it starts its own processes (line 4" in caught.value.message
    assert ";" not in caught.value.message


NOTHING_TO_DO = {
    "transformers": (
        "parser = HfArgumentParser(TrainingArguments)\n(args,) = parser.parse()\n",
        "transformers' TrainingArguments reads LOCAL_RANK itself",
    ),
    "accelerate": ("accelerator = Accelerator()\n", "accelerate's Accelerator reads LOCAL_RANK"),
    "a rank without an option": (
        "rank = int(os.environ['LOCAL_RANK'])\ndist.init_process_group()\nmodel = DDP(model)\n",
        "LOCAL_RANK is read, and there is no option",
    ),
}


@pytest.mark.parametrize(("text", "words"), NOTHING_TO_DO.values(), ids=NOTHING_TO_DO.keys())
def test_what_reads_its_rank_elsewhere_needs_no_repair(
    tmp_path: Path, text: str, words: str
) -> None:
    found = patch_script(write(tmp_path, text))
    assert found.status == "already patched"
    assert words in found.repairs[0]


# ------------------------------------------------------------------------------------------------
# What is wrong besides.


def test_names_that_transformers_no_longer_has_are_told_with_the_line(tmp_path: Path) -> None:
    note = patch_script(write(tmp_path, SCRIPT)).notes[0]
    assert note.startswith("line 9: transformers 5 has no AdamW, so the script cannot start")
    assert "from torch.optim import AdamW" in note
    refused = write(tmp_path, "from transformers import (X,\n  AdamW)\n")
    with pytest.raises(ConfigError, match="Also: line 2: transformers 5 has no AdamW"):
        patch_script(refused)
    guarded = "try:\n    from transformers import AdamW\nexcept ImportError:\n    pass\n"
    with pytest.raises(ConfigError) as caught:
        patch_script(write(tmp_path, guarded))
    assert "AdamW" not in caught.value.message


def test_each_such_name_is_gone_from_the_transformers_that_is_here() -> None:
    import transformers

    listed = reasons.GONE.pattern
    names = listed.replace("glue_(compute_metrics|", "glue_compute_metrics|").replace(")", "")
    assert [name for name in names.split("|") if hasattr(transformers, name)] == []


MARKS = {
    "sampled": "each evaluation draws other pairs",
    "half": "the threshold on test is 0.5",
    "group": "the last partial group of micro-steps makes no step",
    "clip": "gradients are clipped before they are complete",
    "epoch": "no set_epoch",
}


def _faults(folder: Path, text: str) -> dict[str, tuple[int, ...]]:
    return {fault.name: fault.lines for fault in patch_script(write(folder, text)).faults}


def test_each_fault_is_seen_in_exactly_its_line(tmp_path: Path) -> None:
    lines = SCRIPT.splitlines()
    marked = {
        name: tuple(n for n, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
        for mark, name in MARKS.items()
    }
    assert all(marked.values())
    assert _faults(tmp_path, SCRIPT) == marked


# What strangers' scripts do, and what was called a fault there.
MENDED = {
    "a cache": (
        "sampled",
        ("self.pairs = random.sample(self.pairs, ", "CACHE[name] = random.sample(self.pairs, "),
    ),
    "a seed": ("sampled", ('if name != "test":', 'random.seed(1)\n        if name != "test":')),
    "the training data": ("sampled", ('if name != "test":', 'if name == "train":')),
    "another 0.5": ("half", ("threshold=0.5)", "dropout=0.5)")),
    "a last group": (
        "group",
        ("steps == 0:  # group", "steps == 0 or step + 1 == len(batches):  # group"),
    ),
    "set_epoch": ("epoch", ("    for step,", "    sampler.set_epoch(epoch)\n        for step,")),
}


@pytest.mark.parametrize(("mark", "change"), MENDED.values(), ids=MENDED.keys())
def test_what_is_no_fault_is_not_called_one(
    tmp_path: Path, mark: str, change: tuple[str, str]
) -> None:
    found = _faults(tmp_path, script(change))
    assert MARKS[mark] not in found
    assert len(found) == len(MARKS) - 1


def test_an_interval_that_is_met_is_left_as_it_is(tmp_path: Path) -> None:
    path = write(
        tmp_path, script(("args.save_steps = len(batches)", "args.save_steps = len(batches) // 10"))
    )
    assert "save_steps" not in "".join(patch_script(path).repairs)


# ------------------------------------------------------------------------------------------------
# The command.


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["nbhelpers", *map(str, arguments)])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_shows_the_diff_the_faults_and_our_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(("return torch", "tokens = self.bos_token, self.eos_token\n        return torch"))
    path = write(tmp_path, text)
    assert _run(monkeypatch, "patch-legacy", path) == 0
    told = capsys.readouterr().out
    assert f"{path}: would patch (nothing is written without --write)" in told
    assert "line 50: opened for rank 0" in told
    assert '+    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:' in told
    assert "What the repair leaves in run.py:\n" in told
    assert "seed-2x-rtx6000ada" in list_presets("clones")
    assert "nbhelpers train clones --preset seed-2x-rtx6000ada -o data=FOLDER" in told
    assert "nbhelpers evaluate clones --checkpoint OUTPUT_DIR/" in told
    other = write(tmp_path, text.replace("url1", "left"))
    assert _run(monkeypatch, "patch-legacy", other) == 0
    assert "train clones" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "model"),
    [
        ("data_flow_length", "graphcodebert"),
        ("bos_token eos_token", "codegpt"),
        ("cls_token sep_token", "codebert"),
        ("token", ""),
    ],
)
def test_the_model_is_named_only_where_the_script_shows_it(
    tmp_path: Path, names: str, model: str
) -> None:
    used = "; ".join(f"args.{name}" for name in names.split())
    text = script(("    random.seed(3)\n", f"    random.seed(3)\n    {used}\n"))
    assert patch_script(write(tmp_path, text)).hints.model == model


def test_all_files_are_treated_and_the_worst_code_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = write(tmp_path, SCRIPT, "good.py"), write(tmp_path, SCRIPT, "other.py")
    bad = write(tmp_path, "print 'x'\n", "bad.py")
    arguments = ("patch-legacy", good, bad, tmp_path / "missing.py", other, "--write")
    assert _run(monkeypatch, *arguments) == 2
    told = capsys.readouterr()
    assert told.out.count(": patched; the old script is ") == 2
    assert "Missing parentheses" in told.err
    assert "missing.py: does not exist" in told.err
    assert _run(monkeypatch, "patch-legacy", good, other, "--write") == 0
    assert capsys.readouterr().out.count(": already patched") == 2
