"""Rank 0 evaluates and saves as a single process does, however the condition is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbhelpers.legacy import patch_script
from tests.legacy_scripts import assert_behaves, repaired, said, script, write

CLOSED = {
    "as usual": "if args.local_rank == -1 and args.evaluate_during_training:",
    "without blanks": "if args.local_rank==-1and args.evaluate_during_training:",
    "turned round": "if -1 == args.local_rank and args.evaluate_during_training:",
    "turned round, without blanks": "if(-1==args.local_rank and args.evaluate_during_training):",
    "order swapped": "if args.evaluate_during_training and args.local_rank == -1:",
    "in brackets": "if (args.local_rank) == (-1) and args.evaluate_during_training:",
    "below zero": "if args.local_rank < 0 and args.evaluate_during_training:",
    "above": "if 0 > args.local_rank and args.evaluate_during_training:",
    "identity": "if args.local_rank is -1 and args.evaluate_during_training:",
    "a list of one": "if args.local_rank in [-1] and args.evaluate_during_training:",
    "not unequal": "if not (args.local_rank != -1) and args.evaluate_during_training:",
    "not from zero": "if not args.local_rank >= 0 and args.evaluate_during_training:",
    "with an or inside": (
        "if args.local_rank == -1 and (args.evaluate_during_training or args is None):"
    ),
    "with a step": ("if args.evaluate_during_training and 6 % 3 == 0 and args.local_rank == -1:"),
    "the call alone": "if args.local_rank == -1:",
    "over lines": (
        "if (\n    args.local_rank == -1 and args.evaluate_during_training\n"
        "):  # Only evaluate when single GPU"
    ),
    "over lines, with comments": (
        "if (args.local_rank  # the rank\n    == -1  # single\n"
        "    and args.evaluate_during_training):"
    ),
    "with a backslash": "if args.local_rank \\\n        == -1 and args.evaluate_during_training:",
    "getattr": "if getattr(args, 'local_rank', -1) == -1 and args.evaluate_during_training:",
    "in a bool": "if bool(args.local_rank == -1) and args.evaluate_during_training:",
    "by a name": "single = args.local_rank == -1\nif single and args.evaluate_during_training:",
    "by a flag": ("do_eval = args.local_rank == -1 and args.evaluate_during_training\nif do_eval:"),
    "nested": (
        "if args.local_rank == -1 and args.evaluate_during_training:\n"
        "    evaluate_me = True\nelse:\n    evaluate_me = False\nif evaluate_me:"
    ),
    "with predictions": (
        "def predict(args):\n    return 1\nif args.local_rank == -1:\n    predict(args)"
    ),
    "in a function inside": (
        "def is_main_process():\n    return args.local_rank == -1\n"
        "if is_main_process() and args.evaluate_during_training:"
    ),
    "else of the others": (
        "if args.local_rank != -1:\n    pass\nelif args.evaluate_during_training:"
    ),
    "the others return": (
        "if args.local_rank != -1:\n    return\nif args.evaluate_during_training:"
    ),
    "two conditions": (
        "if args.local_rank == -1:\n    best = 0\nif args.local_rank == -1 and best == 0 and "
        "args.evaluate_during_training:"
    ),
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("guard", CLOSED.values(), ids=CLOSED.keys())
def test_every_closed_condition_opens_for_rank_0_alone(tmp_path: Path, guard: str) -> None:
    path = write(tmp_path, script(guard=guard))
    found = repaired(path)
    assert found.status == "patched"
    assert any("to be opened" in line for line in found.saves)
    assert_behaves(path)


def test_comments_between_the_parts_stay(tmp_path: Path) -> None:
    path = write(tmp_path, script(guard=CLOSED["over lines, with comments"]))
    repaired(path)
    assert "(args.local_rank  # the rank\n        in [-1, 0]  # single\n" in path.read_text()


EXPRESSIONS = {
    "one line": "if args.local_rank == -1: results = evaluate(args)",
    "an expression": "results = evaluate(args) if args.local_rank == -1 else None",
    "and, as a statement": "args.local_rank == -1 and evaluate(args)",
    "a keyword": "fit(args, evaluate_during_training=args.local_rank == -1)",
    "after a semicolon": "x = 1; results = evaluate(args) if -1 == args.local_rank else None",
}


@pytest.mark.parametrize("code", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_conditions_inside_expressions_open_too(tmp_path: Path, code: str) -> None:
    more = "def fit(args, evaluate_during_training):\n"
    more += "    evaluate_during_training and evaluate(args)\n"
    text = script(guard=f"{code}\nif False:").replace("def train(", f"{more}def train(")
    path = write(tmp_path, text)
    assert repaired(path).status == "patched"
    assert_behaves(path)


OPEN = {
    "a list": "if args.local_rank in [-1, 0] and args.evaluate_during_training:",
    "a tuple": "if args.local_rank in (-1, 0) and args.evaluate_during_training:",
    "a set, without blanks": "if args.local_rank in{0,-1}and args.evaluate_during_training:",
    "up to zero": "if args.local_rank <= 0 and args.evaluate_during_training:",
    "below one": "if args.evaluate_during_training and args.local_rank < 1:",
    "one or the other": (
        "if (args.local_rank == 0 or args.local_rank == -1) and args.evaluate_during_training:"
    ),
    "not the others": "if not args.local_rank > 0 and args.evaluate_during_training:",
    "by the process group": (
        "get_rank = lambda: args.local_rank\n"
        "if args.evaluate_during_training and (args.local_rank == -1 or get_rank() == 0):"
    ),
    "by a helper": (
        "is_main_process = lambda: args.local_rank < 1\n"
        "if is_main_process() and args.evaluate_during_training:"
    ),
    "by a chain": "if -1 <= args.local_rank < 1 and args.evaluate_during_training:",
}


@pytest.mark.parametrize("guard", OPEN.values(), ids=OPEN.keys())
def test_a_condition_that_lets_rank_0_pass_is_left(tmp_path: Path, guard: str) -> None:
    path = write(tmp_path, script(guard=guard))
    found = repaired(path)
    assert not any("to be opened" in line for line in found.saves)
    assert guard.replace("\n", "\n    ") in path.read_text()
    assert_behaves(path)


def test_half_a_repair_is_completed_either_way(tmp_path: Path) -> None:
    parse = "args = parser.parse_args()\nif 'LOCAL_RANK' in os.environ:\n    "
    parse += "args.local_rank = int(os.environ['LOCAL_RANK'])"
    first = write(tmp_path, script(parse), "first.py")
    found = repaired(first)
    assert "there already" in found.reads_rank[0]
    assert "to be opened" in found.saves[0]
    assert_behaves(first)
    second = write(tmp_path, script(guard=OPEN["a list"]), "second.py")
    found = repaired(second)
    assert "to be read" in found.reads_rank[0]
    assert "passes already" in found.saves[0]
    assert_behaves(second)


def test_every_process_may_evaluate_without_a_condition(tmp_path: Path) -> None:
    path = write(tmp_path, script(guard="if args.evaluate_during_training:"))
    found = repaired(path)
    assert any("every process evaluates" in line for line in found.saves)
    assert said(path, "1") == [["rank", "1", "sharded", "evaluated"]]


UNTOUCHED = {
    "what is resumed": (
        "if args.local_rank == -1 and args.checkpoint:\n    load_checkpoint(args.checkpoint)"
    ),
    "a sampler": "s = RandomSampler(d) if args.local_rank == -1 else DistributedSampler(d)",
    "a sampler for evaluation": (
        "if args.local_rank == -1:\n    eval_sampler = SequentialSampler(eval_dataset)\n"
        "else:\n    eval_sampler = DistributedSampler(eval_dataset)"
    ),
    "the device": (
        "if args.local_rank == -1 or args.no_cuda:\n    device = torch.device('cuda')\n"
        "    args.eval_batch_size = 2\nelse:\n    torch.cuda.set_device(args.local_rank)\n"
        "    torch.distributed.init_process_group(backend='nccl')"
    ),
    "the wrapper": ("if args.local_rank != -1:\n    model = DistributedDataParallel(model)"),
    "the number of processes": "n = world_size() if args.local_rank != -1 else 1",
    "a log line": "if args.local_rank == -1:\n    logger.info('evaluate and save')",
    "the state to save": (
        "state = model.state_dict() if args.local_rank == -1 else model.module.state_dict()"
    ),
    "an assertion": "assert args.local_rank == -1, 'evaluate in one process'",
    "the model's mode": "if args.local_rank == -1:\n    model.eval()",
    "a barrier": "if args.local_rank not in [-1, 0]:\n    torch.distributed.barrier()",
    "both branches evaluate": (
        "if args.local_rank == -1:\n    evaluate(args)\nelse:\n    evaluate_together(args)"
    ),
}


@pytest.mark.parametrize("code", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_conditions_of_the_set_up_are_not_touched(tmp_path: Path, code: str) -> None:
    inner = "\n".join(f"    {line}" for line in code.splitlines())
    text = f"import os\ndef train(args):\n{inner}\nargs = parser.parse_args()\n"
    path = write(tmp_path, f"{text}parser.add_argument('--local_rank', default=-1)\n")
    repaired(path)
    assert inner in path.read_text()


KEPT = {
    "the test": (
        "if args.do_test and args.local_rank == -1:\n    test(args)",
        "rank 0 alone would write the predictions of its own share",
    ),
    "a barrier in the other branch": (
        "if args.local_rank == -1:\n    evaluate(args)\nelse:\n    dist.barrier()",
        "rank 0 would miss barrier()",
    ),
    "a sum over all processes": (
        "if args.local_rank == -1:\n    evaluate(args)\n"
        "def evaluate(args):\n    dist.all_reduce(x)",
        "all processes have to take part in all_reduce()",
    ),
    "the other branch evaluates": (
        "if args.local_rank == -1:\n    evaluate(args)\nelse:\n    evaluate_together(args)",
        "its other branch does the work",
    ),
    "the training hangs on it": (
        "if args.local_rank != -1:\n    return\nloss.backward()\nsave_model(model)",
        "the training itself hangs on it",
    ),
    "logic that says more": (
        "if args.local_rank == -1 and args.local_rank != 0 and args.save_all:\n    save_model(m)",
        "beyond this tool",
    ),
}


@pytest.mark.parametrize(("code", "reason"), KEPT.values(), ids=KEPT.keys())
def test_a_condition_that_must_not_open_is_kept_and_told(
    tmp_path: Path, code: str, reason: str
) -> None:
    inner = "\n".join(f"    {line}" for line in code.splitlines())
    text = f"import os\ndef run(args):\n{inner}\nargs = parser.parse_args()\n"
    path = write(tmp_path, f"{text}parser.add_argument('--local_rank', default=-1)\n")
    found = repaired(path)
    assert any(reason in kept.reason and kept.line == 3 for kept in found.kept)
    assert inner in path.read_text()


def test_what_an_opened_block_needs_is_made_for_rank_0_too(tmp_path: Path) -> None:
    guard = (
        "if args.local_rank == -1:\n    writer = print\n"
        "if args.local_rank == -1 and args.evaluate_during_training:\n"
        "    writer('evaluated')\nif 0:"
    )
    path = write(tmp_path, script(guard=guard))
    repaired(path)
    assert path.read_text().count("if args.local_rank in [-1, 0]") == 2
    assert_behaves(path)


def test_a_file_of_functions_is_opened_and_says_what_it_leaves_to_its_caller(
    tmp_path: Path,
) -> None:
    text = (
        "def train(args, model):\n    loss.backward()\n"
        "    if args.local_rank == -1 and args.save_steps > 0:\n        save_model(model)\n"
    )
    path = write(tmp_path, text)
    found = repaired(path)
    assert "in [-1, 0] and args.save_steps" in path.read_text()
    assert "come from the caller" in found.reads_rank[0]
    assert "patch the file that parses" in found.notes[0]


def test_nothing_to_open_is_said(tmp_path: Path) -> None:
    text = "import os\nparser.add_argument('--local_rank')\nargs = parser.parse_args()\n"
    assert "no condition on the rank" in patch_script(write(tmp_path, text)).saves[0]


UNREAD = {
    "match": "match args.local_rank:\n    case -1:\n        evaluate(args)\nif False:",
    "while": "while args.local_rank == -1:\n    evaluate(args)\n    break\nif False:",
    "or": "args.local_rank != -1 or evaluate(args)\nif False:",
    "a comprehension": "[evaluate(args) for _ in range(1) if args.local_rank == -1]\nif False:",
    "another name": "r = args.local_rank\nif r == -1 and args.evaluate_during_training:",
    "arithmetic": "if args.local_rank + 1 == 0 and args.evaluate_during_training:",
    "an f-string": 'print(f"{evaluate(args) if args.local_rank == -1 else 0}")\nif False:',
    "an f-string of lines": (
        'print(f"""\u00e9\n {evaluate(args) if args.local_rank == -1 else 0}""")\nif False:'
    ),
}


@pytest.mark.parametrize("guard", UNREAD.values(), ids=UNREAD.keys())
def test_a_condition_in_another_form_is_left_and_told(tmp_path: Path, guard: str) -> None:
    found = repaired(write(tmp_path, script(guard=guard)))
    assert [kept.reason for kept in found.kept if "by hand" in kept.reason]
    assert "no condition on the rank guards" not in " ".join(found.saves)


def test_a_rank_that_an_f_string_shows_is_not_rewritten(tmp_path: Path) -> None:
    shown = 'f"{args.local_rank == -1 = }"'
    guard = f"if args.local_rank == -1 and {shown} and args.evaluate_during_training:"
    path = write(tmp_path, script(guard=guard))
    repaired(path)
    assert shown in path.read_text()
    assert_behaves(path)
