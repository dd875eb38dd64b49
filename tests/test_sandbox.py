"""A generated program ends as it should, is told apart by its end, and leaves nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sandbox_bench
from fake_launch import wait_for
from sandbox_bench import TIGHT, run_program

from nbhelpers.errors import Stopped
from nbhelpers.jobs.sandbox import host, running
from nbhelpers.jobs.sandbox.running import LIMITS, run_programs

LONG = LIMITS | {"timeout_s": 300.0}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(running.unusable() is not None, reason="no sandbox on this system"),
]


@pytest.fixture(autouse=True)
def workplace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from sandbox_bench.workplace(monkeypatch)


# What a program is, and how it must end.
ENDINGS = {
    "passes": ("def f(x):\n    return x + 1\nassert f(1) == 2", "passed", ""),
    "empty": ("", "passed", ""),
    "prints and passes": ("print('hello')", "passed", ""),
    "failed": ("x = 1\nassert x == 2, 'not two'", "failed", "AssertionError: not two (line 2)"),
    "error": ("1 / 0", "error", "ZeroDivisionError: division by zero (line 1)"),
    "name": (
        "def f():\n    return g()\nf()",
        "error",
        "NameError: name 'g' is not defined (line 2)",
    ),
    "input": ("input()", "error", "EOFError"),
    "syntax": ("def f(:\n    pass", "syntax", "SyntaxError: invalid syntax (line 1)"),
    "nul": ("x = '\0'", "syntax", "null byte"),
    "surrogate": ("x = '\ud800'", "syntax", "surrogates not allowed"),
    "import": ("import torch", "error", "ModuleNotFoundError"),
    "own error": ("class Odd(Exception): pass\nraise Odd('a\\n b')", "error", "Odd: a b (line 2)"),
    "recursion": ("def f(): f()\nf()", "error", "RecursionError"),
    "deep": (
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        "error killed memory",
        "",
    ),
    "exit": ("import sys\nsys.exit(0)", "exited", "SystemExit: 0"),
    "exit by name": ("exit()", "exited", "SystemExit"),
    "system exit": ("raise SystemExit", "exited", "SystemExit"),
    "hard exit": ("import os\nos._exit(0)\nassert False", "exited", "exit code 0"),
    "hard exit 3": ("import os\nos._exit(3)", "exited", "exit code 3"),
    "interrupt": ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "lying str": (
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "error",
        "E: (no message) (line 3)",
    ),
    "crash": ("import ctypes\nctypes.string_at(1)", "killed", "signal 11"),
    "abort": ("import os\nos.abort()", "killed", "signal 6"),
    "suicide": ("import os\nos.kill(os.getpid(), 9)", "killed", "signal 9"),
    "asyncio": (
        "import asyncio\nasync def f(): return 3\nassert asyncio.run(f()) == 3",
        "passed",
        "",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "with P(4) as p: assert sum(p.map(abs, range(9))) == 36",
        "passed",
        "",
    ),
    "file": ("open('a', 'w').write('b')\nassert open('a').read() == 'b'", "passed", ""),
    "hash": (
        "import hashlib\nassert hashlib.md5(b'').hexdigest().startswith('d41d8')\n"
        "assert hashlib.sha256(b'').digest()[0] == 0xe3",
        "passed",
        "",
    ),
    "time zone": ("import zoneinfo, datetime\nzoneinfo.available_timezones()", "passed", ""),
    "main block": ("if __name__ == '__main__': input()", "passed", ""),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nassert A(1).x == 1",
        "passed",
        "",
    ),
    "invalid output": (
        "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe' * 99)\nsys.stdout.flush()",
        "passed",
        "",
    ),
}

# Ways to look like a success, or to make the runner believe in one.
PRETENCES = {
    "printing": (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'passed\\n')\n"
        "    except OSError: pass\nassert False"
    ),
    "exit in atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\nassert False",
    "exit in a thread": (
        "import threading, os, time\nthreading.Thread(target=os._exit, args=[0]).start()\n"
        "time.sleep(9)"
    ),
    "no exit": "import os, sys\nos._exit = sys.exit = lambda *a: None\nassert False",
    "hooks": "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: None\nassert False",
    "new assertion": "import builtins\nbuiltins.AssertionError = ValueError\nassert False",
    "no types": (
        "import builtins\nbuiltins.isinstance = builtins.getattr = builtins.str = None\n"
        "assert False"
    ),
    "no json": (
        "import json, os\njson.dumps = lambda *a: 'passed'\nos.write = os.read = print\n"
        "assert False"
    ),
    "closed": "import os\nos.closerange(0, 200)\nassert False",
    "closed and passed": "import os\nos.closerange(0, 200)",
    "replaced": "import sys\nsys.modules['os'] = sys.modules['json'] = None\nassert False",
    "debug": "import sys\nsys.flags = None\n__debug__\nassert False",
    "folder": "import os\nos.rmdir(os.getcwd())",
    "other exit": "import ctypes\nctypes.CDLL(None).exit(0)",
    "alarm": (
        "import signal, os\nsignal.signal(14, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\nwhile True: pass"
    ),
    "alarm's error": (
        "import signal\ndef ring(*a): raise KeyError\nsignal.signal(14, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\nwhile True: pass"
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_as_it_should(name: str) -> None:
    source, statuses, detail = ENDINGS[name]
    outcome = run_program(source, **TIGHT | {"timeout_s": 8.0})
    assert outcome.status in statuses.split(), outcome
    assert detail in outcome.detail
    assert 0 < outcome.seconds < 8


@pytest.mark.parametrize("name", PRETENCES)
def test_no_pretence_of_success_passes(name: str) -> None:
    outcome = run_program(PRETENCES[name], **TIGHT)
    assert outcome.status in ("failed", "error", "exited", "killed"), outcome


def test_order_is_kept_and_progress_told() -> None:
    seen: list[tuple[int, int]] = []
    sources = ["import time\ntime.sleep(0.2)", "assert False", "x = 1", "1 / 0", "f("]
    outcomes = run_programs(sources, report=lambda a, b: seen.append((a, b)), limits=TIGHT)
    assert [o.status for o in outcomes] == ["passed", "failed", "passed", "error", "syntax"]
    assert seen[-1] == (5, 5) and [a for a, _ in seen] == sorted(a for a, _ in seen)
    assert run_programs([]) == []


def living(workplace: Path) -> list[int]:
    """Supervisors and programs of this test that still live; the supervisor comes first."""
    found, home = [], f"HOME={workplace}/".encode()
    for entry in Path("/proc").iterdir():
        try:
            is_ours = b"sandbox/child.py" in (entry / "cmdline").read_bytes()
            if is_ours and home in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def await_end(workplace: Path) -> None:
    wait_for(lambda: not living(workplace), 10)


def test_a_stop_ends_the_running_programs_and_leaves_nothing(workplace: Path) -> None:
    started = time.monotonic()
    with pytest.raises(Stopped, match="after 0 of 9 programs"):
        run_programs(["while True: pass"] * 9, stop=lambda: True, limits=LONG)
    assert time.monotonic() - started < 100
    await_end(workplace)


def test_an_error_in_the_report_ends_the_programs_too(workplace: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_programs(["x = 1", "while True: pass"], report=lambda a, b: 1 / 0, limits=LONG)
    await_end(workplace)


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_when_its_worker_or_supervisor_is_killed_the_program_ends(
    victim: str, workplace: Path
) -> None:
    code = (
        "import tempfile; from nbhelpers.jobs.sandbox.running import LIMITS, run_programs\n"
        f"tempfile.tempdir = {str(workplace)!r}\n"
        'program = \'open("here", "w").close()\\nwhile True: pass\'\n'
        "limits = LIMITS | {'timeout_s': 300}\n"
        "print(run_programs([program], limits=limits)[0].status)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: list(workplace.glob("nbhelpers-*/here")))  # it runs
    os.kill(process.pid if victim == "worker" else living(workplace)[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=100)
    assert out.strip() == ("" if victim == "worker" else "killed")
    await_end(workplace)


def cpu_s() -> float:
    """Processor time of all ended children: unlike the clock it does not count the neighbours."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_small_programs_take_little_time() -> None:
    source = "from typing import List\nimport math, heapq, itertools\nassert math.sqrt(4) == 2"
    before = cpu_s()
    outcomes = run_programs([source] * 20)
    assert {o.status for o in outcomes} == {"passed"}
    assert (cpu_s() - before) / 20 < 0.15


def test_what_set_order_gives_is_the_same_each_time() -> None:
    source = "print(list({'a', 'b', 'c', 'd', 'e'}), flush=True)"
    heads = {running._run(source, dict(TIGHT), threading.Event())["head"] for _ in range(3)}
    assert len(heads) == 1


def test_describe_tells_what_was_tried() -> None:
    facts = running.describe()
    assert facts["usable"] and facts["reason"] == ""
    assert set(host.ESSENTIAL) <= set(facts["held"])
    assert "fault of the operating system" in facts["warning"]
    json.dumps(facts)


def test_the_probe_notices_what_a_missing_fence_lets_through() -> None:
    tried = json.loads(running._probe(("landlock", "user", "namespaces"))["head"])
    open_doors = {name for name, done in tried.items() if done}
    assert host.READ_PUBLIC in open_doors
    assert host.SEE_ENVIRONMENTS in open_doors or os.geteuid() == 0
    assert not open_doors & set(host.ESSENTIAL)
