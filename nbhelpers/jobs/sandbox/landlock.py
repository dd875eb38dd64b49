"""Files that a generated program may reach: Landlock, a fence that a process puts up for itself.

Source: landlock(7) and linux/landlock.h, versions 1 (kernel 5.13) to 6 (kernel 6.12).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_ASK_VERSION, _RULE_PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _MAKE_REG, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 8, 1 << 14
# How many rights of files each version knows; a version's rights that no rule grants are denied.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NET_RIGHTS, _SCOPES = 0b11, 0b11  # bind and connect TCP; abstract sockets and signals


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result


def version() -> int:
    """Landlock's version in this kernel; 0 when it has none or a container forbids it."""
    with contextlib.suppress(OSError):
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    return 0


def prepare(*, readable: list[str], devices: list[str], folder: str) -> int | None:
    """Rules as a descriptor for `restrict`; None without Landlock.

    Must be called while the paths can still be reached, before the user is changed.

    Args:
        readable: Folders and files to read; those that do not exist are left out.
        devices: Files to read and write.
        folder: The one folder in which plain files may be made and written; nothing can be
            removed there, so what a program wrote can be counted.
    """
    known = version()
    if known == 0:
        return None
    handled = (1 << _FILE_RIGHTS[min(known, 5)]) - 1
    fields = [handled] + [_NET_RIGHTS] * (known >= 4) + [_SCOPES] * (known >= 6)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    read = _READ_FILE | _READ_DIR
    write = read | _WRITE_FILE | _MAKE_REG | _TRUNCATE
    for path in readable:
        _allow(rules, path, read & handled)
    for path in devices:
        _allow(rules, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled)
    _allow(rules, folder, write & handled)
    return rules


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= ~(_READ_DIR | _MAKE_REG)
        rule = struct.pack("=Qi", rights, target)
        _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_RULE_PATH_BENEATH), rule, 0)
    finally:
        os.close(target)


def restrict(rules: int) -> None:
    """Put the rules on this process for good; `no_new_privs` must have been set before."""
    _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)
