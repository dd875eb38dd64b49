"""patch-legacy says what its repairs do not mend, with the lines, and claims nothing unseen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nbhelpers.cli import app
from nbhelpers.legacy import patch_script
from nbhelpers.presets.loading import list_presets
from tests.legacy_scripts import script, write

# A clone script with every known fault, written for this test; `# n` counts the marked lines.
FAULTY = """\
import argparse, os, random
def load(lines, texts, name):
    pairs = []
    for line in lines:
        url1, url2, label = line.split()
        if url1 not in texts or url2 not in texts:  # dropped
            continue
        if label == "0":  # label
            label = 0
        else:
            label = 1
        pairs.append((url1, url2, label))
    if "test" not in name:
        pairs = random.sample(pairs, len(pairs) // 10)  # sampled
    return pairs
def tokens(tokenizer, words):
    return [tokenizer.bos_token, *words, tokenizer.eos_token]
def train(args, train_set, model):
    sampler = RandomSampler(train_set)
    if args.local_rank != -1:
        sampler = DistributedSampler(train_set)  # epoch
    batches = DataLoader(train_set, sampler=sampler)
    args.max_steps = args.epoch * len(batches)  # schedule
    args.save_steps = len(batches)  # never
    args.warmup_steps = len(batches)  # schedule
    if args.local_rank != -1:
        model = DistributedDataParallel(model)
    last = os.path.join(args.output_dir, "checkpoint-last")  # resume
    global_step = 0
    best_f1 = 0  # zero
    set_seed(args.seed)  # seed
    for step, batch in enumerate(batches):
        model(batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
        if (step + 1) % args.gradient_accumulation_steps == 0:  # group
            optimizer.step()
            scheduler.step()
            global_step += 1  # never
            if args.local_rank in [-1, 0] and global_step % args.save_steps == 0:  # never nodes
                if args.local_rank == -1 and args.evaluate_during_training:  # nodes
                    results = evaluate(args, model)  # alone waits
                if results["eval_f1"] > best_f1:  # unbound
                    torch.save(model.state_dict(), "model.bin")
def evaluate(args, model):
    eval_set = load(args.lines, args.texts, "valid")
    is_single = args.local_rank == -1
    sampler = Sequential(eval_set) if is_single else DistributedSampler(eval_set)  # shared
    return {"eval_f1": score(model, sampler)}
def test(args, model, best_threshold=0):
    eval_set = load(args.lines, args.texts, "test")
    sampler = Sequential(eval_set) if one(args) else DistributedSampler(eval_set)  # order shared
    predictions = [logit > best_threshold for logit in predict(model, sampler)]
    with open(os.path.join(args.output_dir, "predictions.txt"), "w") as file:
        for example, prediction in zip(eval_set.examples, predictions):  # order
            file.write(f"{example.url1}\\t{example.url2}\\t{int(prediction)}\\n")
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--save_total_limit", type=int)  # limit
    args = parser.parse_args()
    if args.local_rank != -1:
        torch.distributed.init_process_group("nccl")  # waits
    train(args, load(args.lines, args.texts, "train"), model)
    if args.do_test and args.local_rank in [-1, 0]:  # nodes
        weights = os.path.join(args.output_dir, "checkpoint-best-f1/model.bin")
        model.load_state_dict(torch.load(weights))
        test(args, model, best_threshold=0.5)  # half
main()
"""
MARKS = {
    "order": "test predictions are sharded and out of order",
    "shared": "scores come from one share of the data",
    "unbound": "results may be unbound",
    "zero": "a best score of 0 saves nothing",
    "sampled": "each evaluation draws other validation pairs",
    "half": "the threshold on test is 0.5",
    "label": 'any label but "0" counts as a clone',
    "dropped": "pairs with an unknown id are dropped in silence",
    "never": "nothing is saved with gradient accumulation",
    "schedule": "the learning rate's schedule counts batches",
    "group": "the last partial group of micro-steps makes no step",
    "clip": "gradients are clipped before they are complete",
    "epoch": "no set_epoch",
    "seed": "one dropout seed on all ranks",
    "resume": "a stopped run does not resume",
    "limit": "save_total_limit does nothing",
    "nodes": "each node's rank 0 writes",
    "alone": "rank 0 evaluates alone, through DistributedDataParallel",
    "waits": "the other processes wait for rank 0",
}


def _faults(folder: Path, text: str) -> dict[str, tuple[int, ...]]:
    return {fault.name: fault.lines for fault in patch_script(write(folder, text)).faults}


@pytest.mark.parametrize(("mark", "name"), MARKS.items())
def test_each_fault_is_seen_in_exactly_its_lines(tmp_path: Path, mark: str, name: str) -> None:
    lines = FAULTY.splitlines()
    marked = [n for n, line in enumerate(lines, 1) if mark in line.partition("  # ")[2].split()]
    assert marked
    assert _faults(tmp_path, FAULTY)[name] == tuple(marked)


def test_the_lines_follow_the_repaired_file(tmp_path: Path) -> None:
    path = write(tmp_path, FAULTY)
    dry = {fault.name: fault.lines for fault in patch_script(path).faults}
    written = {fault.name: fault.lines for fault in patch_script(path, write=True).faults}
    half = "the threshold on test is 0.5"
    assert written[half][0] == dry[half][0] + 2
    assert "best_threshold=0.5" in path.read_text().splitlines()[written[half][0] - 1]


MENDED = {
    "order": ("DistributedSampler(eval_set)  # order", "Sequential(eval_set)  # order"),
    "unbound": ("    global_step = 0\n", "    global_step = 0\n    results = {}\n"),
    "zero": ("best_f1 = 0", "best_f1 = -1"),
    "sampled": ('if "test" not in name:', 'if "train" in name:'),
    "half": ("best_threshold=0.5", "best_threshold=args.threshold"),
    "label": ('if label == "0":', "if label == zero:"),
    "dropped": ("            continue\n", "            raise KeyError(url1)\n"),
    "never": ("args.save_steps = len(batches)", "args.save_steps = 500"),
    "group": (
        "if (step + 1) % args.gradient_accumulation_steps == 0:",
        "if (step + 1) % args.gradient_accumulation_steps == 0 or step + 1 == len(batches):",
    ),
    "epoch": ("    for step,", "    sampler.set_epoch(0)\n    for step,"),
    "seed": ("set_seed(args.seed)", "set_seed(args.seed + args.local_rank)"),
    "limit": ("global_step = 0", "global_step = args.save_total_limit"),
    "waits": ('init_process_group("nccl")', 'init_process_group("nccl", timeout=hours)'),
}


@pytest.mark.parametrize("mark", MENDED)
def test_a_fault_that_is_mended_is_not_seen(tmp_path: Path, mark: str) -> None:
    before, after = MENDED[mark]
    assert before in FAULTY
    assert _faults(tmp_path, FAULTY.replace(before, after))[MARKS[mark]] == ()


def test_a_script_without_data_or_loop_shows_none_of_their_faults(tmp_path: Path) -> None:
    text = "import os\nparser.add_argument('--local_rank')\nargs = parser.parse_args()\n"
    assert not any(_faults(tmp_path, text).values())


def test_shared_data_without_the_wrapper_is_a_fault(tmp_path: Path) -> None:
    text = FAULTY.replace("model = DistributedDataParallel(model)", "pass")
    assert len(_faults(tmp_path, text)["gradients are not shared"]) == 1
    assert _faults(tmp_path, FAULTY)["gradients are not shared"] == ()


def test_a_rank_without_the_wrapper_is_a_fault_without_a_sampler_too(tmp_path: Path) -> None:
    text = FAULTY.replace("model = DistributedDataParallel(model)", "pass")
    text = text.replace("DistributedSampler(", "RandomSampler(")
    number = next(n for n, x in enumerate(text.splitlines(), 1) if ".backward()" in x)
    assert _faults(tmp_path, text)["gradients are not shared"] == (number,)


def test_a_save_by_every_process_is_a_fault(tmp_path: Path) -> None:
    text = FAULTY.replace("if args.local_rank in [-1, 0] and global", "if global")
    number = next(n for n, x in enumerate(text.splitlines(), 1) if "torch.save" in x)
    assert _faults(tmp_path, text)["every process saves"] == (number,)
    assert _faults(tmp_path, FAULTY)["every process saves"] == ()


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
    path = write(tmp_path, FAULTY)
    assert _run(monkeypatch, "patch-legacy", path) == 0
    said = capsys.readouterr().out
    assert f"{path}: would patch (nothing is written without --write)" in said
    assert '+    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:' in said
    assert "-                if args.local_rank == -1 and args.evaluate_during_training:" in said
    assert "What these two repairs do not mend in run.py:" in said
    assert "Not seen in this file: every process saves; gradients are not shared." in said
    assert "nbhelpers train clones --preset seed-2x-rtx6000ada -o data=FOLDER" in said
    assert (
        "nbhelpers evaluate clones --checkpoint OUTPUT_DIR/checkpoint-best-f1/model.bin "
        "--model codegpt --data FOLDER"
    ) in said
    assert path.read_text() == FAULTY


def test_the_preset_that_is_offered_exists() -> None:
    assert "seed-2x-rtx6000ada" in list_presets("clones")


def test_the_model_is_named_only_where_the_script_shows_it(tmp_path: Path) -> None:
    def model(text: str) -> str:
        return patch_script(write(tmp_path, text)).hints.model

    assert model(FAULTY) == "codegpt"
    assert model(FAULTY.replace("args.output_dir", "args.data_flow_length")) == "graphcodebert"
    tokens = FAULTY.replace("bos_token", "cls_token").replace("eos_token", "sep_token")
    assert model(tokens) == "codebert"
    assert model(FAULTY.replace("bos_token", "token")) == ""
    assert model(tokens.replace("[tokenizer.cls_token,", "['<encoder-only>', t.cls_token,")) == ""


def test_a_script_of_another_task_is_not_offered_our_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "patch-legacy", write(tmp_path, script())) == 0
    said = capsys.readouterr().out
    assert "does not look like clone detection" in said
    assert "train clones" not in said


def test_all_files_are_treated_and_the_worst_code_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = write(tmp_path, script(), "good.py"), write(tmp_path, script(), "other.py")
    bad = write(tmp_path, "print 'x'\n", "bad.py")
    arguments = ("patch-legacy", good, bad, tmp_path / "missing.py", other, "--write")
    assert _run(monkeypatch, *arguments) == 2
    told = capsys.readouterr()
    assert told.out.count(": patched; the old script is ") == 2
    assert "is written for Python 2" in told.err
    assert "missing.py: does not exist" in told.err
    assert _run(monkeypatch, "patch-legacy", good, other, "--write") == 0
    assert capsys.readouterr().out.count(": already patched") == 2
