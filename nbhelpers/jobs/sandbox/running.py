"""Run generated programs where they can do no harm: one process each, caged by the kernel.

A program gets a fresh interpreter with the standard library, an empty environment, and a folder
of its own. It cannot start processes, open sockets, signal others or write elsewhere; its time,
memory, threads, output and files are limited. As root it runs as a user that has no account.
`describe` tries all that on this machine and tells what holds; `may_run` decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.common.processes import available_cpus
from nbhelpers.errors import ConfigError, LaunchError, Stopped
from nbhelpers.jobs.sandbox import host, seccomp

STATUSES = (
    *("passed", "failed", "error", "syntax", "exited"),
    *("timeout", "memory", "output", "killed"),
)
# Of one program: wall time, and the CPU's as well; address space, interpreter included; what it may
# print; what it may write into its folder, in all.
LIMITS = {
    "timeout_s": 10.0,
    "memory_bytes": 2**30,
    "output_bytes": 2**20,
    "file_bytes": 16 * 2**20,
}
_GRACE_S = 30.0
_CHILD = Path(__file__).with_name("child.py")
_PROBE = Path(__file__).with_name("probe.py")
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_FOLDER = "nbhelpers-sandbox-"
_FIELDS = ("status", "detail", "seconds")  # of an outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended.

    Attributes:
        status: `passed` its last line has run; `failed` an assertion; `error` another exception,
            its kind in `detail`; `syntax` it does not compile; `exited` it left before its last
            line; `timeout`, `memory`, `output` (printed or written too much) a limit;
            `killed` a signal, such as a crash of the interpreter.
        detail: Short text; "" when passed.
        seconds: Wall time of the program alone.
    """

    status: str
    detail: str
    seconds: float


def run_programs(
    sources: Sequence[str],
    *,
    report: Callable[[int, int], object] | None = None,
    stop: Callable[[], bool] | None = None,
    limits: Mapping[str, float] = LIMITS,
) -> list[Outcome]:
    """Run programs to their ends or to a limit, a few at a time; outcomes in the sources' order.

    Args:
        sources: Programs with their tests; one passes when its last line has run.
        report: Called in this thread with (done, total), after each program.
        stop: Asked some times a second; True ends the running programs.
        limits: As `LIMITS` has them.

    Raises:
        Stopped: `stop` said so. Whatever ends this call, no program is left running.
        LaunchError: This machine cannot cage a program; see `describe`.
    """
    cancel = threading.Event()
    with _ready(), ThreadPoolExecutor(min(4, available_cpus())) as pool:
        try:
            jobs = [pool.submit(_run, source, limits, cancel) for source in sources]
            _follow(jobs, report, stop)
        except BaseException:
            cancel.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    replies = [job.result() for job in jobs]
    return [Outcome(**{name: reply[name] for name in _FIELDS}) for reply in replies]


def _follow(
    jobs: list[Future[dict[str, Any]]],
    report: Callable[[int, int], object] | None,
    stop: Callable[[], bool] | None,
) -> None:
    waiting, total = set(jobs), len(jobs)
    while waiting:
        ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        for job in ended:
            job.result()  # a refusal ends the whole call
        if stop is not None and stop():
            raise Stopped(
                f"Stopped on request after {total - len(waiting)} of {total} programs.",
                fix="launch again to go on",
            )
        if ended and report is not None:
            report(total - len(waiting), total)


@contextlib.contextmanager
def _ready() -> Iterator[None]:
    """Refuse where the sandbox does not hold; hide this process where nothing else does.

    A process that is not dumpable keeps its environment from others of the same user.
    """
    facts = describe()
    if not facts["usable"]:
        raise LaunchError(f"Generated programs cannot be run: {facts['reason']}.", fix=_NEVER)
    if host.SEE_ENVIRONMENTS not in facts["passed"]:
        yield
        return
    before = _prctl(_PR_GET_DUMPABLE)
    _prctl(_PR_SET_DUMPABLE, 0)
    try:
        yield
    finally:
        _prctl(_PR_SET_DUMPABLE, before)


def _prctl(option: int, value: int = 0) -> int:
    return int(ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))))


def _run(
    source: str, limits: Mapping[str, float], cancel: threading.Event, without: Sequence[str] = ()
) -> dict[str, Any]:
    """Start a supervisor for one program, and read its answer.

    Args:
        source: The program.
        limits: By name, in seconds and bytes.
        cancel: Set by another thread to end the program.
        without: Protections left out: `user`, `landlock`, `namespaces` (tests of the others).
    """
    raw = source.encode("utf-8", "surrogatepass")
    folder = tempfile.mkdtemp(prefix=_FOLDER)
    request = {"folder": folder, "worker": os.getpid(), "without": list(without), **limits}
    line = json.dumps({**request, "source_bytes": len(raw)}).encode() + b"\n"
    try:
        reply = _converse(folder, line + raw, limits["timeout_s"] + _GRACE_S, cancel)
    finally:
        _remove(folder)
    if "refused" in reply:
        raise LaunchError(f"The sandbox could not be set up: {reply['refused']}", fix=_NEVER)
    return reply


_NEVER = "set run_generated_code=never; everything but pass@1 is scored without running programs"


def _converse(folder: str, request: bytes, limit_s: float, cancel: threading.Event) -> dict:
    command = [sys.executable, "-S", "-s", "-P", str(_CHILD)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(folder),
        cwd="/",
        start_new_session=True,  # a Ctrl-C at the keyboard is the worker's, not the program's
    )
    assert process.stdin is not None and process.stdout is not None
    answer, deadline = b"", time.monotonic() + limit_s
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
        while not cancel.is_set() and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.1)[0]:
                chunk = os.read(process.stdout.fileno(), 65_536)
                answer += chunk
                if not chunk:
                    break
    finally:
        _end(process)
    return _parse(answer, process.returncode)


def _environment(folder: str) -> dict[str, str]:
    """All that the child sees of ours: nothing, but where a module system keeps libraries."""
    library_path = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return library_path | {
        "HOME": folder,
        "TMPDIR": folder,
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the order of sets is part of a program's result
        "MALLOC_ARENA_MAX": "2",  # each further one reserves 64 MiB of address space
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the supervisor's input, which ends the program; kill what does not follow."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()  # and the kernel kills the program with it
        process.wait()
    process.stdout.close()


def _parse(answer: bytes, code: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        return json.loads(answer)
    text = answer.decode(errors="replace").strip()
    if code > 0 and text:
        return {"refused": text[-500:]}
    return {"status": "killed", "detail": f"its supervisor ended with code {code}", "seconds": 0.0}


def _remove(folder: str) -> None:
    """Remove what a killed supervisor left."""
    with contextlib.suppress(OSError):
        for path in Path(folder).iterdir():
            path.unlink()
        Path(folder).rmdir()


def unusable() -> str | None:
    """Why no program can be run on this system at all; None when nothing is known against it."""
    if sys.platform != "linux":
        return f"the sandbox is made of Linux's kernel features, and this is {sys.platform}"
    if not seccomp.is_known(os.uname().machine):
        return f"there is no list of system calls for {os.uname().machine} (x86_64 and aarch64)"
    if not sys.executable:
        return "this Python does not know its own executable (sys.executable is empty)"
    return None


@functools.cache
def describe() -> dict[str, Any]:
    """Which protections hold on this machine: a program in the sandbox has tried to pass them.

    Returns:
        `usable`; `reason` when not; `held` and `passed`, lists of what the program could not and
        could do; `facts` (user, landlock version, namespaces, whether its folder is writable);
        `container`, what was seen of one; `warning`, what is not protected, in sentences.
    """
    container = host.container()
    base = {"container": container, "held": [], "passed": [], "facts": {}}
    if (reason := unusable()) is not None:
        return {**base, "usable": False, "reason": reason, "warning": ""}
    try:
        reply = _probe()
    except LaunchError as error:
        return {**base, "usable": False, "reason": error.message, "warning": ""}
    if reply["status"] != "passed":
        reason = f"the sandbox's own test ended as {reply['status']}: {reply['detail']}"
        return {**base, "usable": False, "reason": reason, "warning": ""}
    tried: dict[str, bool] = json.loads(reply["head"])
    base["held"] = [name for name, done in tried.items() if not done]
    base["passed"] = [name for name, done in tried.items() if done]
    base["facts"] = reply["applied"]
    broken = [name for name in base["passed"] if name in host.ESSENTIAL]
    reason = f"a program in the sandbox could {', '.join(broken)}" if broken else ""
    warning = host.warning(base["passed"])
    return {**base, "usable": not broken, "reason": reason, "warning": warning}


def _probe(without: Sequence[str] = ()) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    files = {"public": 0o644, "own": 0o600, "open": 0o666}
    try:
        folder.chmod(0o755)
        for name, mode in files.items():
            (folder / name).touch()
            (folder / name).chmod(mode)
        call = ", ".join(repr(str(folder / name)) for name in files)
        source = f"{_PROBE.read_text(encoding='utf-8')}\nprobe({call})\n"
        return _run(source, LIMITS, threading.Event(), without)
    finally:
        _remove(str(folder))


def may_run(policy: str) -> tuple[bool, str]:
    """Whether generated programs may be run here, and why.

    Args:
        policy: `in_container`, `anywhere` or `never` (the setting `run_generated_code`).
    """
    if policy == "never":
        return False, "run_generated_code is never."
    facts = describe()
    if not facts["usable"]:
        return False, f"Generated programs cannot be run here: {facts['reason']}."
    if policy == "anywhere":
        return True, f"run_generated_code is anywhere. {facts['warning']}"
    if policy != "in_container":
        raise ConfigError(f"run_generated_code is in_container, anywhere or never, not {policy!r}.")
    if facts["container"]:
        return True, f"In a container: {facts['container']}. {facts['warning']}"
    lent = host.sharing()
    why = f"{lent} shares your home folder" if lent else "no sign of a container was found"
    return False, (
        f"Generated programs are run in containers only, and {why}. They would run in a sandbox; "
        f"run_generated_code=anywhere allows it. {facts['warning']}"
    )
