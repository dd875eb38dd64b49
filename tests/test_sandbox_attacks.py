"""Whatever a generated program tries, it reaches nothing and nobody else notices."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import sandbox_bench
from sandbox_bench import MIB, SECRET, TIGHT, bare, run_program

from nbhelpers.jobs.sandbox import host, running, seccomp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(running.unusable() is not None, reason="no sandbox on this system"),
]


@pytest.fixture(autouse=True)
def workplace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from sandbox_bench.workplace(monkeypatch)


# Each must raise PermissionError or fail with EPERM: then the program passes.
FORBIDDEN = {
    "fork": "os.fork()",
    "vfork": "subprocess.run(['/bin/true'])",
    "shell": "os.system('true') and denied()",
    "exec": "os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    "pty": "os.forkpty()",
    "multiprocessing": "multiprocessing.get_context('fork').Process(target=int).start()",
    "tcp": "socket.socket()",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "tcp6": "socket.socket(socket.AF_INET6)",
    "raw": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "unix": "socket.socket(socket.AF_UNIX)",
    "datagram pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "kill parent": "os.kill(os.getppid(), 9)",
    "kill all": "os.kill(-1, 9)",
    "kill group": "os.killpg(0, 9)",
    "kill init": "os.kill(1, 9)",
    "own group": "os.kill(0, 9)",
    "signal by file": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "signal choice": "fcntl.fcntl(0, 10, 9)",
    "type for the user": "fcntl.ioctl(0, termios.TIOCSTI, b'x')",
    "session": "os.setsid()",
    "root": "os.setuid(0)",
    "nice": "os.nice(-5)",
    "chmod": "os.chmod('.', 0o777)",
    "chown": "os.chown('.', 0, 0)",
    "chroot": "os.chroot('.')",
    "mkdir": "os.mkdir('a')",
    "symlink": "os.symlink('/etc/passwd', 'a')",
    "hard link": "os.link('/etc/hostname', 'a')",
    "fifo": "os.mkfifo('a')",
    "rename": "os.rename('/tmp', '/tmp2')",
    "remove": "os.unlink('/etc/hostname')",
    "truncate": "os.truncate(TARGET, 0)",
    "empty by reading": "os.open(TARGET, os.O_RDONLY | os.O_TRUNC)",
    "times": "os.utime(TARGET)",
    "nameless file": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "memory file": "os.memfd_create('a')",
    "affinity": "os.sched_setaffinity(0, [0])",
    "limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "parent's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "pidfd": "os.pidfd_open(os.getppid())",
}
IMPORTS = "import fcntl, multiprocessing, os, resource, socket, subprocess, sys, termios\n"


TRY_ALL = """
def denied(): raise PermissionError(1, "")
worked = []
for name, call in CALLS.items():
    try:
        exec(call)
        worked.append(name)
    except OSError as e:
        if e.errno not in (1, 13, 25): worked.append((name, e))
    except ValueError as e:
        if "not allowed" not in str(e): worked.append((name, e))
assert worked == [], worked
"""


@pytest.mark.parametrize("run", [run_program, bare])
def test_each_forbidden_call_is_refused(run, workplace: Path) -> None:
    target = workplace / "target"
    target.write_text("kept")
    target.chmod(0o666)
    names = f"TARGET, CALLS = {str(target)!r}, {FORBIDDEN!r}\n"
    outcome = run(IMPORTS + names + TRY_ALL, **TIGHT)
    assert outcome.status == "passed", outcome
    assert target.read_text() == "kept"


def test_every_call_that_is_not_listed_is_refused_by_number() -> None:
    tables = (seccomp._ALLOWED, seccomp._CHECKED)
    machine = os.uname().machine
    listed = {n for t in tables for n in seccomp.numbers(t, machine).values()}
    listed |= {335, 336} if machine == "x86_64" else set()  # probes: kill whoever calls them
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in [n for n in range(600) if n not in {listed!r}]:
    done = libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
    assert (done, ctypes.get_errno()) == (-1, 1), (number, done, ctypes.get_errno())
    done = libc.syscall(ctypes.c_long(number | 1 << 30), 0, 0, 0, 0, 0, 0)
    assert (done, ctypes.get_errno()) == (-1, 1), (number, done, ctypes.get_errno())
"""
    assert run_program(source, **TIGHT).status == "passed"
    assert bare(source).status == "passed"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86_64 alone has a second door")
def test_the_32_bit_entry_to_the_kernel_kills() -> None:
    source = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    outcome = run_program(source, **TIGHT)
    assert (outcome.status, "signal 31" in outcome.detail) == ("killed", True), outcome


# Floods and traps: statuses allowed. Where a program can catch the refusal it may go on until
# the time limit.
FLOODS = {
    "fork bomb": ("import os\nwhile True: os.fork()", "error"),
    "patient fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "timeout",
    ),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(200): threading.Thread(target=time.sleep, args=[9]).start()\ntime.sleep(9)",
        "error killed",
    ),
    "endless": ("while True: pass", "timeout"),
    "deaf": (
        "import signal\nfor n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(0, range(1, 65))\nwhile True: pass",
        "timeout",
    ),
    "asleep": ("import time\ntime.sleep(99)", "timeout"),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "stubborn": ("while True:\n    try:\n        while True: pass\n    except: pass", "timeout"),
    "closed and endless": ("import os\nos.closerange(0, 99)\nwhile True: pass", "timeout"),
    "list": ("x = [0] * 10**10", "memory"),
    "growing": ("x = []\nwhile True: x.append(bytearray(10**7))", "memory"),
    "bytearray": ("x = bytearray(10 * 2**30)", "memory"),
    "mmap": ("import mmap\nx = mmap.mmap(-1, 10 * 2**30)", "memory"),
    "shared": (
        "import mmap\nx = [mmap.mmap(-1, 2**24, flags=mmap.MAP_SHARED) for _ in range(640)]",
        "memory",
    ),
    "big int": ("x = 1 << 10**11", "memory"),
    "10 GB of output": ("while True: print('x' * 10**6)", "output"),
    "output on stderr": ("import os\nwhile True: os.write(2, b'x' * 65536)", "output"),
    "private channel": (
        "import os\nwhile True:\n    for fd in range(3, 20):\n"
        "        try: os.write(fd, b'x' * 999)\n        except OSError: pass",
        "exited",
    ),
    "10 GB file": ("f = open('a', 'wb')\nfor _ in range(10**4): f.write(bytes(10**6))", "error"),
    "sparse file": ("import os\nf = open('a', 'wb')\nos.ftruncate(f.fileno(), 10**10)", "error"),
    "many files": ("for i in range(10**6): open(str(i), 'w').close()", "output"),
    "many big files": (
        "for i in range(99):\n    with open(str(i), 'wb') as f: f.write(bytes(4 * 10**6))",
        "output error",
    ),
    "10 MB source": ("x = 1\n" * 1_700_000, "memory"),
    "10 MB string": (f"x = {'y' * 10_000_000!r}\nassert len(x) == 10**7", "passed"),
    "nested source": ("(" * 100_000 + ")" * 100_000, "syntax memory killed"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_contained(name: str) -> None:
    source, statuses = FLOODS[name]
    before = shutil.disk_usage("/tmp").free
    limit_s = 0.6 if "timeout" in statuses else 8.0
    outcome = run_program(source, **TIGHT | {"timeout_s": limit_s})
    assert outcome.status in statuses.split(), outcome
    assert outcome.seconds < limit_s + 1
    assert shutil.disk_usage("/tmp").free > before - 200 * MIB


# What a program finds of others. Each passes only when it finds nothing.
SPIES = {
    "environment": "import os\nassert TOKEN not in str(os.environ)",
    "own environ": "assert hidden('/proc/self/environ')",
    "parent's environ": "import os\nassert hidden(f'/proc/{os.getppid()}/environ')",
    "worker's environ": "assert hidden(f'/proc/{WORKER}/environ')",
    "all environs": "import glob\nassert all(map(hidden, glob.glob('/proc/[0-9]*/environ')))",
    "worker's memory": "assert hidden(f'/proc/{WORKER}/mem') and hidden(f'/proc/{WORKER}/maps')",
    "worker's command": "assert hidden(f'/proc/{WORKER}/cmdline')",
    "inherited descriptors": (
        "import os, stat\nkinds = []\nfor fd in range(3, 64):\n"
        "    try: kinds.append(os.fstat(fd).st_mode)\n    except OSError: continue\n"
        "assert sum(map(stat.S_ISREG, kinds)) == 0 and sum(map(stat.S_ISSOCK, kinds)) == 0"
    ),
    "another's folder": "import os\ntry: os.listdir(OTHER)\nexcept OSError: pass\nelse: raise 1",
    "another's file": "assert hidden(f'{OTHER}/a') and hidden('../other/a')",
    "home": (
        "import os\nassert not os.listdir(os.path.expanduser('~'))\n"
        f"assert hidden({str(Path.home() / '.bashrc')!r})"
    ),
    "users": "assert hidden('/etc/passwd') and hidden('/etc/shadow')",
    "a way up": "import os\nos.chdir('..')\nassert hidden('other/a') and hidden('target')",
    "the package": f"assert hidden({running.__file__!r})",
}
FOUND = """
def hidden(path):
    try:
        with open(path, 'rb') as f: text = f.read()
    except OSError:
        return True
    return False
"""


@pytest.mark.skipif(
    not running.describe()["facts"].get("landlock"), reason="this kernel has no Landlock"
)
@pytest.mark.parametrize("name", SPIES)
def test_a_program_sees_nothing_of_others(name: str, workplace: Path) -> None:
    (workplace / "other").mkdir(mode=0o755)
    for path in (workplace / "other" / "a", workplace / "target"):
        path.write_text(SECRET)
    names = f"WORKER, OTHER, TOKEN = {os.getpid()}, {str(workplace / 'other')!r}, {SECRET!r}\n"
    outcome = run_program(names + FOUND + SPIES[name], **TIGHT)
    assert outcome.status == "passed", outcome


@pytest.mark.skipif(
    not running.describe()["facts"].get("user"), reason="the user cannot be changed here"
)
def test_without_landlock_it_is_the_other_user_who_cannot_see_an_environment() -> None:
    places = ["self", "{os.getppid()}", str(os.getpid())]
    tests = [f"assert hidden(f'/proc/{place}/environ')\n" for place in places]
    source = FOUND + "import os\n" + "".join(tests) + "assert not hidden('/etc/passwd')"
    reply = running._run(source, dict(TIGHT), threading.Event(), ("landlock", "namespaces"))
    assert reply["status"] == "passed", reply
    assert reply["applied"]["user"] > 60_000 and not reply["applied"]["folder_writable"]


WRITES = [
    "/tmp/x",
    "/dev/shm/x",
    "/var/tmp/x",
    str(Path.home() / "x"),
    "../x",
    "~/../x",
    "/dev/tty",
    "/dev/kmsg",
]
WRITES += ["/proc/self/oom_score_adj", "/proc/self/cwd/../target", "../target", "/proc/self/mem"]


@pytest.mark.parametrize("run", [run_program, bare])
def test_nothing_is_written_outside_its_folder(run, workplace: Path) -> None:
    target = workplace / "target"
    target.write_text("kept")
    target.chmod(0o666)
    source = f"""
import os
worked = []
for path in {[*WRITES, str(target)]!r}:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_APPEND):
        try:
            os.open(os.path.expanduser(path), flags)
            worked.append((path, flags))
        except OSError:
            continue
assert worked == [], worked
"""
    outcome = run(source, **TIGHT)
    assert outcome.status == "passed", outcome
    assert target.read_text() == "kept"
    assert [path.name for path in workplace.iterdir()] == ["target"]


def test_a_listening_socket_of_the_worker_is_not_reached(workplace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(workplace / "door"))
        server.listen()
        source = f"""
import socket
a, b = socket.socketpair()
for call in (lambda: a.connect({str(workplace / "door")!r}), lambda: a.sendto(b"x", "door")):
    try: call()
    except OSError: continue
    raise RuntimeError
"""
        assert run_program(source, **TIGHT).status == "passed"


COMMON_USER = """
import json, sys, threading
from nbhelpers.jobs.sandbox import running
limits = {limits!r}
replies = []
for without in ((), ("landlock",), ("namespaces",), ("landlock", "namespaces")):
    tried = json.loads(running._probe(without)["head"])
    write = running._run("open('a', 'w').write('b')", limits, threading.Event(), without)
    replies.append([list(without), tried, write["status"], write["applied"]])
statuses = [o.status for o in running.run_programs(["x = 1", "import os; os.fork()"])]
json.dump([replies, statuses, sorted(sys.modules)], sys.stdout)
"""


def python_for_all() -> str | None:
    """An interpreter that a user without rights can start."""
    for path in (sys.executable, "/usr/bin/python3"):
        check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            if subprocess.run(check, cwd="/", env={}, check=False, **user).returncode == 0:
                return path
        except OSError:
            continue
    return None


def test_a_common_user_is_protected_too_and_psutil_is_enough(workplace: Path) -> None:
    if (python := python_for_all()) is None:
        pytest.skip("no Python here that another user may start")
    source, package = Path(running.__file__).parents[2], workplace / "nbhelpers"
    for name in ("__init__.py", "jobs/__init__.py", "common/__init__.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    for name in ("errors.py", "common/processes.py"):
        shutil.copy(source / name, package / name)
    shutil.copytree(Path(psutil.__file__).parent, workplace / "psutil")
    shutil.copytree(source / "jobs" / "sandbox", package / "jobs" / "sandbox")
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    environ = {"PYTHONPATH": str(workplace), "TMPDIR": str(workplace), "HF_TOKEN": SECRET}
    command = [python, "-B", "-c", COMMON_USER.format(limits=TIGHT)]
    done = subprocess.run(
        command, cwd="/", env=environ, capture_output=True, text=True, check=False, **user
    )
    assert done.returncode == 0, done.stderr
    replies, statuses, modules = json.loads(done.stdout)
    assert statuses == ["passed", "error"]
    assert not {"torch", "numpy", "pydantic"} & set(modules)
    for without, tried, write, applied in replies:
        open_doors = {name for name, could in tried.items() if could}
        assert not open_doors & set(host.ESSENTIAL), (without, tried)
        assert applied["user"] is None
        assert write == ("passed" if applied["landlock"] else "error")
        if applied["landlock"]:
            assert open_doors == set()
        elif applied["namespaces"]:
            assert host.SEE_ENVIRONMENTS not in open_doors


def test_a_worker_hides_its_environment_where_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {**running.describe(), "passed": [host.SEE_ENVIRONMENTS]}
    monkeypatch.setattr(running, "describe", lambda: facts)
    before = running._prctl(3)
    with running._ready():
        assert running._prctl(3) == 0
    assert running._prctl(3) == before == 1
