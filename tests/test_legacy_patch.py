"""patch-legacy repairs what it recognises, byte for byte, and two processes then end well."""

from __future__ import annotations

import runpy
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.legacy import patch_script
from nbhelpers.legacy.source import MAX_SOURCE_BYTES
from tests.legacy_scripts import HAND_WRITTEN, SCRIPT, repaired_by_hand, script, write
from tests.ranks import in_ranks

Layout = Callable[[str], str]
LAYOUTS: dict[str, Layout] = {
    "as it is": lambda text: text,
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "line ends of old Macs": lambda text: text.replace("\n", "\r"),
    "tabs": lambda text: text.replace("    ", "\t"),
    "two blanks": lambda text: text.replace("    ", "  "),
    "no final newline": lambda text: text.rstrip("\n"),
    "form feeds": lambda text: text.replace("\ndef ", "\n\f\ndef "),
    "a byte order mark": lambda text: "\ufeff" + text,
    "a shell's first line": lambda text: "#!/usr/bin/env python\n" + text,
    "other letters": lambda text: text.replace("a tiny pair model", "학습 é 🙂"),
    "comments behind": lambda text: text.replace("parse_args()\n    ", "parse_args()  # all\n    "),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_only_the_repaired_places_change_in_every_layout(tmp_path: Path, layout: Layout) -> None:
    path = write(tmp_path, layout(SCRIPT))
    dry = patch_script(path)
    assert (dry.status, dry.backup) == ("would patch", None)
    assert path.read_bytes() == layout(SCRIPT).encode()
    assert patch_script(path, write=True).status == "patched"
    assert path.read_bytes() == layout(repaired_by_hand()).encode()
    again = patch_script(path, write=True)
    assert (again.status, again.diff, again.backup) == ("already patched", "", None)
    if shutil.which("patch") and b"\r" not in path.read_bytes().replace(b"\r\n", b""):
        path.write_bytes(layout(SCRIPT).encode())
        command = ["patch", "-p1", "--binary", "--silent"]
        subprocess.run(command, input=dry.diff.encode(), cwd=tmp_path, check=True, timeout=30)
        assert path.read_bytes() == layout(repaired_by_hand()).encode()


CLOSED = {
    "without blanks": ("args.local_rank==-1and ", "args.local_rank in [-1, 0]and "),
    "turned round": ("-1 == args.local_rank and ", "args.local_rank in [-1, 0] and "),
    "below zero": ("args.local_rank < 0 and ", "args.local_rank in [-1, 0] and "),
    "not unequal": (
        "not (args.local_rank != -1) and ",
        "not (args.local_rank not in [-1, 0]) and ",
    ),
    "a list of one": ("args.local_rank in [-1] and ", "args.local_rank in [-1, 0] and "),
    "getattr": (
        "getattr(args, 'local_rank', -1) == -1 and ",
        "getattr(args, 'local_rank', -1) in [-1, 0] and ",
    ),
    "open already": ("args.local_rank in (-1, 0) and ", "args.local_rank in (-1, 0) and "),
    "open by another rank": (
        "(args.local_rank == -1 or torch.distributed.get_rank() == 0) and ",
        "(args.local_rank == -1 or torch.distributed.get_rank() == 0) and ",
    ),
}


@pytest.mark.parametrize(("before", "after"), CLOSED.values(), ids=CLOSED.keys())
def test_a_condition_opens_for_rank_0_however_it_is_spelled(
    tmp_path: Path, before: str, after: str
) -> None:
    change = ("args.local_rank == -1 and args.eval", f"{before}args.eval")
    path = write(tmp_path, script(change))
    patch_script(path, write=True)
    assert f"if {after}args.evaluate_during_training:" in path.read_text()


PARSINGS = {
    "known arguments": (
        "args, rest = parser.parse_known_args()\n",
        'args, rest = parser.parse_known_args()\n    if args.local_rank == -1 and "LOCAL_RANK"',
    ),
    "over lines": (
        "args = parser.parse_args(\n        None\n    )\n",
        'None\n    )\n    if args.local_rank == -1 and "LOCAL_RANK"',
    ),
    "read already": (
        "args = parser.parse_args()\n    if 'LOCAL_RANK' in os.environ:\n"
        "        args.local_rank = int(os.environ['LOCAL_RANK'])\n",
        "args.local_rank = int(os.environ['LOCAL_RANK'])\n    if args.local_rank != -1:\n",
    ),
    "only asked": (
        "args = parser.parse_args()\n    print('LOCAL_RANK' in os.environ)\n",
        'parse_args()\n    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:\n',
    ),
    "in a helper": (
        "def get():\n        return parser.parse_args()\n    args = get()\n",
        "        args = parser.parse_args()\n"
        '        if args.local_rank == -1 and "LOCAL_RANK" in os.environ:\n'
        '            args.local_rank = int(os.environ["LOCAL_RANK"])\n        return args\n',
    ),
}


@pytest.mark.parametrize(("parse", "expected"), PARSINGS.values(), ids=PARSINGS.keys())
def test_the_rank_is_read_where_the_arguments_are_parsed(
    tmp_path: Path, parse: str, expected: str
) -> None:
    path = write(tmp_path, script(("args = parser.parse_args()\n    if", f"{parse}    if")))
    patch_script(path, write=True)
    assert expected in path.read_text()


def test_a_default_of_the_option_is_kept_where_no_launcher_speaks(tmp_path: Path) -> None:
    path = write(tmp_path, script(("type=int, default=-1)", "type=int, default=rank())")))
    assert '+    if "LOCAL_RANK" in os.environ:\n' in patch_script(path).diff
    found = patch_script(write(tmp_path, HAND_WRITTEN))
    assert '+if args.local_rank == 0 and "LOCAL_RANK" in os.environ:\n' in found.diff
    assert '+        if test(model.module if hasattr(model, "module") else model, val' in found.diff
    assert (
        '+    torch.distributed.init_process_group("nccl", init_method="env://", timeout'
        in found.diff
    )


def test_a_function_that_only_saves_is_handed_the_wrapper(tmp_path: Path) -> None:
    text = HAND_WRITTEN.replace(
        "parser = argparse",
        "def store(model):\n    torch.save(model.module.state_dict(), 'm.pt')\nparser = argparse",
    ).replace('torch.save(model.state_dict(), "best.pt")', "store(model)")
    assert "+        if test(model.module if" in patch_script(write(tmp_path, text)).diff
    assert "store(model.module" not in patch_script(write(tmp_path, text)).diff


@pytest.mark.parametrize("name", ["makedirs", "mkdir"])
def test_a_folder_that_every_process_makes_may_be_there(tmp_path: Path, name: str) -> None:
    made = f"    if not os.path.isdir(args.output_dir):\n        os.{name}(args.output_dir)\n"
    path = write(tmp_path, script(("    random.seed(3)\n", f"{made}    random.seed(3)\n")))
    assert "+        os.makedirs(args.output_dir, exist_ok=True)\n" in patch_script(path).diff


def test_the_missing_import_stands_behind_docstring_and_future(tmp_path: Path) -> None:
    path = write(tmp_path, script(("import os\n", "import os as system\n")))
    patch_script(path, write=True)
    lines = path.read_text().splitlines()
    assert sorted(lines[2:4]) == ["from datetime import timedelta", "import os"]
    assert lines[1] == "from __future__ import annotations"


STUB = """
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
def get_linear_schedule_with_warmup(optimizer, *_, **__):
    return LambdaLR(optimizer, lambda step: 1.0)
"""


@pytest.mark.slow
def test_two_processes_end_well_and_predict_every_pair_in_order(tmp_path: Path) -> None:
    import torch  # noqa: F401 - once, before this process is copied

    path = write(tmp_path, SCRIPT)
    patch_script(path, write=True)
    (tmp_path / "transformers.py").write_text(STUB)

    def run() -> None:
        """Run the script as a launcher does, with a stub of transformers."""
        sys.modules.pop("transformers", None)
        sys.path.insert(0, str(tmp_path))
        options = ["--evaluate_during_training", "--accumulation_steps", "2", "--epochs", "1"]
        sys.argv = [str(path), "--output_dir", str(tmp_path), *options]
        runpy.run_path(str(path), run_name="__main__")

    in_ranks(2, run)
    lines = (tmp_path / "predictions.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [[f"{n}", f"{n * n}"] for n in range(16)]


def test_the_old_script_is_kept_with_its_mode_and_no_backup_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = write(tmp_path / "real", SCRIPT)
    path.chmod(0o750)
    link = tmp_path / "run.py"
    link.symlink_to(path)
    path.with_name("run.py.bak").write_text("precious")
    path.with_name("run.py.bak2").symlink_to("nowhere")
    found = patch_script(link, write=True)
    assert link.is_symlink() and found.target == path
    assert any("is a link" in note for note in found.notes)
    assert found.backup == path.with_name("run.py.bak3")
    assert found.backup.read_text() == SCRIPT
    assert path.with_name("run.py.bak").read_text() == "precious"
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, found.backup)} == {0o750}


def test_what_cannot_be_written_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, SCRIPT)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.copy2", refuse)
    with pytest.raises(ConfigError, match=r"\(Permission denied\)\. Nothing was changed"):
        patch_script(path, write=True)
    assert path.read_text() == SCRIPT
    assert list(tmp_path.iterdir()) == [path]


UNREADABLE = {
    "empty": (b"\xef\xbb\xbf \n\n", "is empty"),
    "binary": (b"\x7fELF\0\0", "holds zero bytes"),
    "not UTF-8": (b"import os\nname = '\xe9'\n", "is not valid UTF-8 in line 2"),
    "Python 2": (b"import os\nprint 'rank'\n", "line 2: Missing parentheses in call to 'print'"),
    "a syntax error": (b"import os\nif x\n    y\n", "does not parse: line 2"),
    "broken by sed": (
        b"args = parser.parse_args()\n"
        b"    if args.local_rank == -1 and 'LOCAL_RANK' in os.environ:\n"
        b"        args.local_rank = int(os.environ['LOCAL_RANK'])\n",
        "the two lines that `sed` inserts",
    ),
    "return outside": (b"import os\nreturn\n", "does not parse: line 2: 'return' outside function"),
    "huge": (b"#" * (MAX_SOURCE_BYTES + 1), "is larger than 1 MiB"),
    "deep": (b"x = " + b"(" * 5000 + b")" * 5000, "pars"),
}


@pytest.mark.parametrize(("content", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_script_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        patch_script(path, write=True)
    assert reason in caught.value.message
    assert "Nothing was changed" in caught.value.message
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"), [("missing.py", "does not exist"), (".", "is a folder")]
)
def test_paths_that_are_no_files_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        patch_script(tmp_path / name)
