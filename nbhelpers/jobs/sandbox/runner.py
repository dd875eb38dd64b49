"""Run one program and tell how it ended; the last thing that a sandboxed process does."""

from __future__ import annotations

import builtins
import errno
import json
import os
import sys
import types
from typing import Any, NoReturn

NAME, FILE = "solution", "<program>"
_DETAIL = 300  # characters


def run(source: bytes, report: int, secret: int) -> NoReturn:
    """Execute a program, report its end and leave this process.

    A passed program is told by the secret alone. It lies in a pipe that is read after the last
    line has run: a program that prints, exits early or leaves threads behind cannot name it.

    Args:
        source: The program, UTF-8; surrogates may stand alone, so that it is the compiler who
            refuses them.
        report: Where to write the end, once.
        secret: Where the secret can be read, once.
    """
    read, write, leave = os.read, os.write, os._exit
    try:
        verdict = _verdict(source)
        write(report, read(secret, 64) if verdict is None else _line(*verdict))
    finally:
        leave(0)


def _line(status: str, detail: str) -> bytes:
    return json.dumps([status, detail]).encode() + b"\n"


def _verdict(source: bytes) -> tuple[str, str] | None:
    """None: the last line has run. Else how the program ended, and why."""
    try:
        text = source.decode("utf-8", "surrogatepass")
        code = compile(text, FILE, "exec", dont_inherit=True)
    except MemoryError:
        return "memory", "MemoryError while the program was compiled"
    except BaseException as error:
        return "syntax", _describe(error)
    try:
        exec(code, _namespace())
    except AssertionError as error:
        return "failed", _describe(error)
    except SystemExit as error:
        return "exited", _describe(error)
    except MemoryError as error:
        return "memory", _describe(error)
    except BaseException as error:
        is_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
        return "memory" if is_memory else "error", _describe(error)
    return None


def _namespace() -> dict[str, Any]:
    """The program's globals: a module of its own, and `exit` as Python has it without `-S`.

    It is not `__main__`: the test problems are scored on functions, and a block for the shell
    would wait for input.
    """
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, ""))
    for name in [name for name in sys.modules if name.startswith("nbhelpers_sandbox")]:
        del sys.modules[name]
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    sys.argv = [FILE]
    return module.__dict__


def _describe(error: BaseException) -> str:
    """Kind, message and line of an error; what a program's own exception class says is data."""
    try:
        text = str(error)
    except BaseException:
        text = "(no message)"
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    if isinstance(error, SyntaxError):
        text = str(error.msg)
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == FILE:
            line = step.tb_lineno
        step = step.tb_next
    kind = type(error).__name__
    words = " ".join(f"{kind}: {text[:_DETAIL]}".split()) if text else kind
    return words[:_DETAIL] + (f" (line {line})" if line else "")
