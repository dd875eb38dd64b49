"""Small stand-ins for legacy training scripts, and a way to run them as a launcher would."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from pathlib import Path

from nbhelpers.legacy import ScriptPatch, patch_script

# Runs scripts, each once per rank, and prints what they said; "" is a start without a launcher.
_DRIVER = """
import contextlib, io, json, os, runpy, sys, traceback
def run(path, rank, options):
    os.environ.pop("LOCAL_RANK", None)
    if rank:
        os.environ["LOCAL_RANK"] = rank
    sys.argv, out = [path, *options], io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(path, run_name="__main__")
    return out.getvalue().split()
for line in sys.stdin:
    path, ranks, options = json.loads(line)
    try:
        answer = [run(path, rank, options) for rank in ranks]
    except BaseException:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)
"""


@functools.cache
def _child() -> subprocess.Popen[str]:
    """One process for all scripts, because starting Python takes longer than any of them."""
    command = [sys.executable, "-W", "ignore", "-c", _DRIVER]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(child.kill)
    return child


PARSE = "args = parser.parse_args()"
GUARD = "if args.local_rank == -1 and args.evaluate_during_training:"

# What every stand-in does: it says its rank, the sampler it chose, and whether it evaluated.
TEMPLATE = '''\
"""Trains a model; args = parser.parse_args() stands in this text too."""
from __future__ import annotations
import argparse
{imports}

def evaluate(args):
    print("evaluated")
    return {{"f1": 0.5}}


def backward():
    """The training step."""


def train(args):
    sampler = "random" if args.local_rank == -1 else "sharded"
    print(sampler)
    backward()
    {guard}
        results = evaluate(args)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)  # args.local_rank == -1
    parser.add_argument("--evaluate_during_training", action="store_true")
    {parse}
    if args.local_rank == -1 or False:
        print("device-any")
    print("rank", args.local_rank)
    train(args)


if __name__ == "__main__":
    main()
'''


def script(parse: str = PARSE, guard: str = GUARD, imports: str = "import os") -> str:
    """Return a stand-in with these spellings; a line break in one is indented as the rest."""
    return TEMPLATE.format(
        imports=imports,
        parse=parse.replace("\n", "\n    "),
        guard=guard.replace("\n", "\n    "),
    )


def said(path: Path, *ranks: str, options: tuple[str, ...] = ()) -> list[list[str]]:
    """Run a script once per rank in another process and return the words that each run printed."""
    child = _child()
    assert child.stdin is not None and child.stdout is not None
    request = [str(path), ranks, options or ("--evaluate_during_training",)]
    child.stdin.write(json.dumps(request) + "\n")
    child.stdin.flush()
    answer = json.loads(child.stdout.readline())
    assert isinstance(answer, list), answer
    return answer


def write(folder: Path, text: str | bytes, name: str = "run.py") -> Path:
    """Write a script byte for byte."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def repaired(path: Path) -> ScriptPatch:
    """Patch a script on the disk; a second run must find nothing to do and change nothing."""
    found = patch_script(path, write=True)
    after = path.read_bytes()
    again = patch_script(path, write=True)
    assert again.status == "already patched"
    assert again.diff == "" and again.backup is None
    assert path.read_bytes() == after
    return found


def assert_behaves(path: Path, options: tuple[str, ...] = ()) -> None:
    """Each rank knows itself and takes its share; a single process and rank 0 evaluate."""
    single, first, second = said(path, "", "0", "1", options=options)
    assert single[-4:] == ["rank", "-1", "random", "evaluated"]
    assert first[-4:] == ["rank", "0", "sharded", "evaluated"]
    assert second[-3:] == ["rank", "1", "sharded"]
    assert "device-any" in single
    assert "device-any" not in first
