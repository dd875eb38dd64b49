"""Whatever way a script parses its arguments, the repaired one knows its rank under a launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.legacy import patch_script
from tests.legacy_scripts import assert_behaves, repaired, said, script, write

PARSINGS = {
    "as usual": "args = parser.parse_args()",
    "without blanks": "args=parser.parse_args()",
    "with an argument": "import sys\nargs = parser.parse_args(sys.argv[1:])",
    "known arguments": "args, unknown = parser.parse_known_args()",
    "known arguments in brackets": "(args, _) = parser.parse_known_args()",
    "known arguments, picked": "args = parser.parse_known_args()[0]",
    "annotated": "args: argparse.Namespace = parser.parse_args()",
    "walrus statement": "(args := parser.parse_args())",
    "walrus in a condition": "if (args := parser.parse_args()).local_rank != -5:\n    pass",
    "two names": "config = args = parser.parse_args()",
    "over several lines": "args = parser.parse_args(\n    None,  # the command line\n)",
    "with a comment": "args = parser.parse_args()  # not args.local_rank",
    "before a semicolon": "args = parser.parse_args(); print('parsed')",
    "after a semicolon": "print('first'); args = parser.parse_args()  # both",
    "on the line of an if": "if parser: args = parser.parse_args()",
    "in both branches": (
        "if parser:\n    args = parser.parse_args()\nelse:\n    args = parser.parse_args([])"
    ),
    "as an expression with branches": (
        "args = parser.parse_args() if parser else parser.parse_args([])"
    ),
    "in a try": "try:\n    args = parser.parse_args()\nexcept SystemExit:\n    raise",
    "into a given namespace": "args = argparse.Namespace()\nparser.parse_args(namespace=args)",
    "in a helper": ("def get_args():\n    return parser.parse_args()\nargs = get_args()"),
    "in a helper of one line": "def get_args(): return parser.parse_args()\nargs = get_args()",
    "in a helper with a comment": (
        "def get_args():\n    return parser.parse_args()  # all\nargs = get_args()"
    ),
    "through a dict": "args = argparse.Namespace(**vars(parser.parse_args()))",
    "two parsers": (
        "first = argparse.ArgumentParser(add_help=False)\nfirst.add_argument('--config')\n"
        "known, rest = first.parse_known_args()\nargs = parser.parse_args(rest)"
    ),
    "a group of options": (
        "parser = argparse.ArgumentParser()\ngroup = parser.add_argument_group('ranks')\n"
        "group.add_argument('--local_rank', type=int, default=-1)\n"
        "parser.add_argument('--evaluate_during_training', action='store_true')\n"
        "args = parser.parse_args()"
    ),
    "os shadowed": "os = 'linux'\nargs = parser.parse_args()",
    "os imported later": "args = parser.parse_args()\nimport os",
}


@pytest.mark.parametrize("parse", PARSINGS.values(), ids=PARSINGS.keys())
def test_every_way_to_parse_ends_in_a_script_that_behaves(tmp_path: Path, parse: str) -> None:
    path = write(tmp_path, script(parse))
    assert "LOCAL_RANK" not in path.read_text()
    assert repaired(path).status == "patched"
    assert_behaves(path)


@pytest.mark.parametrize(
    "imports",
    ["", "import os.path as osp", "from os import path", "import os.path", "import os as system"],
)
def test_os_is_imported_where_it_is_missing(tmp_path: Path, imports: str) -> None:
    path = write(tmp_path, script(imports=imports))
    repaired(path)
    assert_behaves(path)


def test_the_import_stands_behind_docstring_and_future(tmp_path: Path) -> None:
    path = write(tmp_path, script(imports=""))
    repaired(path)
    lines = path.read_text().splitlines()
    assert lines[1:4] == ["from __future__ import annotations", "import os", "import argparse"]


FORMS = {
    "of a module": """\
        import argparse
        opt_parser = argparse.ArgumentParser()
        opt_parser.add_argument("--local-rank", default=-1, type=int)
        opt_parser.add_argument("--evaluate_during_training", action="store_true")
        hparams = opt_parser.parse_args()
        print("rank", hparams.local_rank)
        if hparams.local_rank < 0 and hparams.evaluate_during_training:
            print("evaluated")
        """,
    "of a class": """\
        import argparse
        class Trainer:
            def __init__(self):
                parser = argparse.ArgumentParser()
                parser.add_argument("--local_rank", type=int, default=-1)
                parser.add_argument("--evaluate_during_training", action="store_true")
                self.opt = parser.parse_args()
            def run(self):
                print("rank", self.opt.local_rank)
                if self.opt.evaluate_during_training and self.opt.local_rank == -1:
                    print("evaluated")
        Trainer().run()
        """,
    "with another destination": """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", dest="gpu_rank", type=int, default=-1)
        parser.add_argument("--evaluate_during_training", action="store_true")
        config = parser.parse_args()
        print("rank", config.gpu_rank)
        if config.gpu_rank == -1 and config.evaluate_during_training:
            print("evaluated")
        """,
    "with a default that is text": """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default="-1")
        parser.add_argument("--evaluate_during_training", action="store_true")
        args = parser.parse_args()
        print("rank", args.local_rank)
        if args.local_rank == -1 and args.evaluate_during_training:
            print("evaluated")
        """,
    "handed on at once": """\
        import argparse
        def main(args):
            print("rank", args.local_rank)
            if args.local_rank == -1 and args.evaluate_during_training:
                print("evaluated")
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        parser.add_argument("--evaluate_during_training", action="store_true")
        if __name__ == "__main__": main(parser.parse_args())
        """,
    "as keys of a dict": """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        parser.add_argument("--evaluate_during_training", action="store_true")
        args = vars(parser.parse_args())
        print("rank", args["local_rank"])
        if args["local_rank"] == -1 and args["evaluate_during_training"]:
            print("evaluated")
        """,
    "parsed in another file": """\
        from types import SimpleNamespace
        def add_args(parser):
            return SimpleNamespace(local_rank=parser, evaluate_during_training=True)
        args = add_args(-1)
        print("rank", args.local_rank)
        if args.local_rank == -1 and args.evaluate_during_training:
            print("evaluated")
        """,
    "with subcommands": """\
        import argparse
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers(dest="command")
        trains = commands.add_parser("train")
        trains.add_argument("--local_rank", type=int, default=-1)
        trains.add_argument("--evaluate_during_training", action="store_true")
        commands.add_parser("show")
        args = parser.parse_args(["train", "--evaluate_during_training"])
        shown = parser.parse_args(["show"])
        print("rank", args.local_rank)
        if args.local_rank == -1 and args.evaluate_during_training:
            print("evaluated")
        """,
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_other_forms_of_scripts_behave_too(tmp_path: Path, text: str) -> None:
    lines = text.splitlines()
    path = write(tmp_path, "\n".join(line[8:] for line in lines) + "\n")
    assert repaired(path).status == "patched"
    single, first, second = said(path, "", "0", "1")
    assert single == ["rank", "-1", "evaluated"]
    assert first == ["rank", "0", "evaluated"]
    assert second == ["rank", "1"]


def test_hf_argument_parser_with_a_class_of_its_own(tmp_path: Path) -> None:
    text = (
        "class HfArgumentParser:\n"
        "    def parse_args_into_dataclasses(self):\n"
        "        return ModelArguments(), RunArguments()\n"
        "class ModelArguments:\n    name: str = 'x'\n"
        "class RunArguments:\n    local_rank: int = -1\n"
        "model_args, run_args = HfArgumentParser().parse_args_into_dataclasses()\n"
        "print('rank', run_args.local_rank)\n"
    )
    path = write(tmp_path, text)
    repaired(path)
    assert said(path, "", "3") == [["rank", "-1"], ["rank", "3"]]


def test_a_default_of_none_is_asked_for_by_is(tmp_path: Path) -> None:
    text = script().replace("type=int, default=-1", "type=int").replace("== -1", "is None")
    path = write(tmp_path, text)
    repaired(path)
    assert "if args.local_rank is None and" in path.read_text()
    assert said(path, "", "1")[1][:2] == ["rank", "1"]


def test_a_rank_on_the_command_line_wins(tmp_path: Path) -> None:
    path = write(tmp_path, script())
    repaired(path)
    assert said(path, "1", options=("--local_rank", "2"))[0][:2] == ["rank", "2"]


PRESENT = {
    "the seeds' own": (
        "args = parser.parse_args()\n"
        "if args.local_rank == -1 and 'LOCAL_RANK' in os.environ:\n"
        "    args.local_rank = int(os.environ['LOCAL_RANK'])"
    ),
    "unconditional": (
        "args = parser.parse_args()\n"
        "if 'LOCAL_RANK' in os.environ: args.local_rank = int(os.environ['LOCAL_RANK'])"
    ),
    "environ.get": (
        "args = parser.parse_args()\n"
        'args.local_rank = int(os.environ.get("LOCAL_RANK", args.local_rank))'
    ),
    "getenv": (
        "args = parser.parse_args()\nif args.local_rank < 0:\n"
        '    args.local_rank = int(os.getenv("LOCAL_RANK", "-1"))'
    ),
    "by way of a name": (
        "args = parser.parse_args()\nenv_rank = int(os.environ.get('LOCAL_RANK', -1))\n"
        "if env_rank != -1 and env_rank != args.local_rank:\n    args.local_rank = env_rank"
    ),
    "setattr": (
        "args = parser.parse_args()\n"
        "setattr(args, 'local_rank', int(os.environ.get('LOCAL_RANK', -1)))"
    ),
    "set_defaults": (
        "parser.set_defaults(local_rank=int(os.environ.get('LOCAL_RANK', -1)))\n"
        "args = parser.parse_args()"
    ),
    "the default of the option": (
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int,"
        " default=int(os.environ.get('LOCAL_RANK', -1)))\n"
        "parser.add_argument('--evaluate_during_training', action='store_true')\n"
        "args = parser.parse_args()"
    ),
    "sed twice": (
        "args = parser.parse_args()\n"
        "if args.local_rank == -1 and 'LOCAL_RANK' in os.environ:\n"
        "    args.local_rank = int(os.environ['LOCAL_RANK'])\n"
        "if args.local_rank == -1 and 'LOCAL_RANK' in os.environ:\n"
        "    args.local_rank = int(os.environ['LOCAL_RANK'])"
    ),
}


@pytest.mark.parametrize("parse", PRESENT.values(), ids=PRESENT.keys())
def test_a_repair_made_by_hand_is_recognised(tmp_path: Path, parse: str) -> None:
    guard = "if args.local_rank in [-1, 0] and args.evaluate_during_training:"
    path = write(tmp_path, script(parse, guard))
    found = patch_script(path)
    assert found.status == "already patched"
    assert found.diff == ""
    assert_behaves(path)


def test_sed_twice_is_told(tmp_path: Path) -> None:
    assert "more than once" in patch_script(write(tmp_path, script(PRESENT["sed twice"]))).notes[0]


NOT_PRESENT = {
    "only asked": "args = parser.parse_args()\nis_distributed = 'LOCAL_RANK' in os.environ",
    "only printed": "args = parser.parse_args()\nprint(os.environ.get('LOCAL_RANK', 'none'))",
    "written, not read": (
        "args = parser.parse_args()\nif args.local_rank > 5:\n"
        "    os.environ['LOCAL_RANK'] = str(args.local_rank)"
    ),
    "in a comment": "args = parser.parse_args()  # os.environ['LOCAL_RANK'] -> args.local_rank",
    "in a text": (
        "args = parser.parse_args()\nnote = \"args.local_rank = os.environ['LOCAL_RANK']\""
    ),
    "in a name that nobody asks": (
        "args = parser.parse_args()\nunused = int(os.environ.get('LOCAL_RANK', -1))"
    ),
    "too late": (
        "args = parser.parse_args()\nif args.local_rank == -1:\n    print('device-any')\n"
        "if 'LOCAL_RANK' in os.environ:\n    args.local_rank = int(os.environ['LOCAL_RANK'])"
    ),
}


@pytest.mark.parametrize("parse", NOT_PRESENT.values(), ids=NOT_PRESENT.keys())
def test_what_only_looks_like_the_repair_is_repaired(tmp_path: Path, parse: str) -> None:
    path = write(tmp_path, script(parse))
    assert repaired(path).status == "patched"
    assert_behaves(path)


def test_a_late_reading_is_named_with_both_lines(tmp_path: Path) -> None:
    found = patch_script(write(tmp_path, script(NOT_PRESENT["too late"])))
    assert any("too late" in note and "asks before" in note for note in found.notes)


LIBRARIES = {
    "transformers": (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "parser = HfArgumentParser((DataTrainingArguments, TrainingArguments))\n"
        "data_args, training_args = parser.parse_args_into_dataclasses()\n"
        "print(training_args.local_rank)\n"
    ),
    "accelerate": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "if accelerator.is_main_process:\n    evaluate()\n"
    ),
    "torch.distributed": (
        "import torch.distributed as dist\nargs = add_args(parser)\ndist.init_process_group()\n"
        "args.local_rank = dist.get_rank() % 8\nif args.local_rank == 0:\n    save_model()\n"
    ),
    "a plain name": (
        "import os\nlocal_rank = int(os.environ.get('LOCAL_RANK', -1))\n"
        "if local_rank in (-1, 0):\n    evaluate()\n"
    ),
}


@pytest.mark.parametrize("text", LIBRARIES.values(), ids=LIBRARIES.keys())
def test_a_rank_that_comes_from_elsewhere_needs_no_repair(tmp_path: Path, text: str) -> None:
    assert patch_script(write(tmp_path, text)).status == "already patched"


REFUSED = {
    "no rank at all": (
        "import torch\nmodel = torch.nn.DataParallel(model)\nargs = parser.parse_args()\n",
        "it has no local_rank, DataParallel in line 2",
    ),
    "rank only in a text": ("'''--local_rank'''\nargs = parser.parse_args()\n", "no local_rank"),
    "own processes": (
        "import torch.multiprocessing as mp\ndef work(local_rank, args):\n"
        "    args.local_rank = local_rank\nargs = parser.parse_args()\nmp.spawn(work)\n",
        "starts its own processes",
    ),
    "flags of another library": (
        "from absl import flags\nFLAGS = flags.FLAGS\nif FLAGS.local_rank == -1:\n    evaluate()\n",
        "no statement here parses arguments",
    ),
    "inside a lambda": (
        "parser.add_argument('--local_rank', default=-1)\nget = lambda: parser.parse_args()\n",
        "leaves no place behind it",
    ),
    "a parser of its own statement": (
        script("args = [p.parse_args() for p in [parser]][0]"),
        "leaves no place behind it",
    ),
    "a parser of its own condition": (
        script("if (p := parser) and (args := p.parse_args()):\n    pass"),
        "leaves no place behind it",
    ),
    "a required option": (
        script().replace("default=-1", "required=True"),
        "option is required=True (line 25)",
    ),
    "in an unnamed tuple of classes": (
        "class A:\n    local_rank: int = -1\nfound = parser.parse_args_into_dataclasses()\n",
        "leaves no place behind it",
    ),
}


def test_a_clone_script_without_a_rank_is_shown_our_job_for_its_model(tmp_path: Path) -> None:
    text = "args = parser.parse_args()\nload(url1, url2, args.data_flow_length)\n"
    with pytest.raises(ConfigError) as caught:
        patch_script(write(tmp_path, text))
    assert "train clones -o model=graphcodebert -o data=FOLDER" in caught.value.fix


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_with_its_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match="Nothing was changed") as caught:
        patch_script(path, write=True)
    assert reason in caught.value.message
    assert caught.value.fix
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]
