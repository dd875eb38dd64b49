"""The system calls that a generated program may make: an allow-list as a kernel filter.

What is not listed fails with "Operation not permitted". There is no call in the list that starts
a process or a program, opens a socket, signals another process, changes an owner or a mode,
removes a file, mounts, traces or talks to the key ring. The filter needs no privilege.

Source: seccomp(2), the BPF encoding of linux/filter.h, and the call numbers of asm/unistd_64.h
(x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import ctypes
import os
import struct

# Each call with its number on x86_64 and on aarch64; "-": that machine has no such call.
_ALLOWED = """
read 0 63, write 1 64, close 3 57, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65,
writev 20 66, sendfile 40 71, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78,
getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166, fsync 74 82,
fdatasync 75 83, ftruncate 77 46, statfs 137 43, fstatfs 138 44, dup 32 23, dup2 33 -, dup3 292 24,
close_range 436 436,
pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19,
recvfrom 45 207, sendto 44 206, shutdown 48 210, getsockopt 55 209, getsockname 51 204,
getpeername 52 205,
mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, msync 26 227,
mincore 27 232, brk 12 214, membarrier 324 283,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -,
getitimer 36 102, setitimer 38 103, restart_syscall 219 128,
futex 202 98, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, arch_prctl 158 -,
sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168, exit 60 93, exit_group 231 94,
wait4 61 260, waitid 247 95,
nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169, time 201 -, times 100 153,
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155,
getpgrp 111 -, getsid 124 156, getrlimit 97 163, getrusage 98 165, uname 63 160, sysinfo 99 179,
getrandom 318 278
"""
# Calls whose arguments decide.
_CHECKED = """
open 2 -, openat 257 56, kill 62 129, tgkill 234 131, ioctl 16 29, fcntl 72 25, clone 56 220,
clone3 435 435, prlimit64 302 261, socketpair 53 199
"""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
_X32_BIT = 0x40000000  # the third set of numbers of an x86_64 kernel

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOTTY, _ENOSYS = 1, 25, 38
_O_CREAT, _O_TRUNC, _O_TMPFILE, _O_ACCMODE = 0o100, 0o1000, 0x400000, 3
_CLONE_THREAD = 0x00010000
_CLONE_FORBIDDEN = 0x7E022000  # all new namespaces, and tracing
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN and F_SETSIG: with
# these the kernel sends any signal, to any process of the same user.
_FCNTL = (0, 1, 2, 3, 4, 1030)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Not TIOCSTI: it types for the user.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Code = list[tuple[int, int, int, int]]  # operation, jump if true, jump if false, value


def numbers(table: str, machine: str) -> dict[str, int]:
    """The calls of a table that this machine has, by name.

    >>> numbers(_CHECKED, "aarch64")["openat"]
    56
    """
    column = _MACHINES[machine][0]
    rows = (entry.split() for entry in table.replace("\n", " ").split(","))
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def _give(value: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, value)


def _load(argument: int, high: bool = False) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * argument + 4 * high)  # both machines are little-endian


_REFUSE = _give(_ERROR | _EPERM)


def _one_of(argument: int, values: tuple[int, ...], otherwise: int = _EPERM) -> Code:
    code = [_load(argument)]
    for value in values:
        code += [(_IF_EQUAL, 0, 1, value), _give(_ALLOW)]
    return [*code, _give(_ERROR | otherwise)]


def _opening(argument: int, writable: bool) -> Code:
    """Flags of `open`; they are an int, so the kernel too reads the low word alone.

    A file without a name (O_TMPFILE) could not be counted. O_TRUNC on a file opened for reading
    empties it, and Landlock before its third version does not look at that.
    """
    if not writable:
        writing = _O_ACCMODE | _O_CREAT | _O_TRUNC | _O_TMPFILE
        return [_load(argument), (_IF_ANY_BIT, 0, 1, writing), _REFUSE, _give(_ALLOW)]
    return [
        _load(argument),
        (_IF_ANY_BIT, 0, 1, _O_TMPFILE),
        _REFUSE,
        (_AND, 0, 0, _O_ACCMODE | _O_TRUNC),
        (_IF_EQUAL, 0, 1, _O_TRUNC),
        _REFUSE,
        _give(_ALLOW),
    ]


def _limits(pid: int) -> Code:
    """Read a limit of this process: no new value (third argument), and nobody else's."""
    own = [_load(0), (_IF_EQUAL, 2, 0, 0), (_IF_EQUAL, 1, 0, pid), _REFUSE]
    reads = [_load(2), (_IF_EQUAL, 1, 0, 0), _REFUSE, _load(2, high=True), (_IF_EQUAL, 1, 0, 0)]
    return [*own, *reads, _REFUSE, _give(_ALLOW)]


def _checks(pid: int, writable: bool) -> dict[str, Code]:
    thread = [
        _load(0),
        (_IF_ANY_BIT, 0, 1, _CLONE_FORBIDDEN),
        _REFUSE,
        (_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
        _REFUSE,
        _give(_ALLOW),
    ]
    # AF_UNIX, SOCK_STREAM: what asyncio wakes itself with. A datagram pair could send elsewhere.
    pair = [_load(0), (_IF_EQUAL, 1, 0, 1), _REFUSE, _load(1), (_AND, 0, 0, 0xF)]
    pair += [(_IF_EQUAL, 1, 0, 1), _REFUSE, _give(_ALLOW)]
    return {
        "open": _opening(1, writable),
        "openat": _opening(2, writable),
        "kill": _one_of(0, (pid,)),
        "tgkill": _one_of(0, (pid,)),
        "ioctl": _one_of(1, _IOCTL, _ENOTTY),
        "fcntl": _one_of(1, _FCNTL),
        "clone": thread,
        "clone3": [_give(_ERROR | _ENOSYS)],  # its flags lie in memory; the C library then clones
        "prlimit64": _limits(pid),
        "socketpair": pair,
    }


def build_filter(machine: str, pid: int, *, writable: bool) -> bytes:
    """The filter for a process, as the kernel reads it.

    Args:
        machine: `x86_64` or `aarch64`.
        pid: The process that may signal itself.
        writable: False refuses to open any file for writing.
    """
    code: Code = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _MACHINES[machine][1]), _give(_KILL_PROCESS)]
    code += [(_LOAD, 0, 0, 0), (_IF_AT_LEAST, 0, 1, _X32_BIT), _REFUSE]
    for number in numbers(_ALLOWED, machine).values():
        code += [(_IF_EQUAL, 0, 1, number), _give(_ALLOW)]
    checks = _checks(pid, writable)
    for name, number in numbers(_CHECKED, machine).items():
        code += [(_IF_EQUAL, 0, len(checks[name]), number), *checks[name]]
    code.append(_REFUSE)
    return b"".join(struct.pack("<HBBI", *row) for row in code)


def is_known(machine: str) -> bool:
    """Whether there is a table for this machine (as `os.uname().machine` names it)."""
    return machine in _MACHINES


def install(pid: int, *, writable: bool) -> None:
    """Put the filter on this process for good; new threads inherit it.

    Raises:
        OSError: The kernel takes no filter; `no_new_privs` must have been set before.
    """
    code = build_filter(os.uname().machine, pid, writable=writable)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    header = ctypes.create_string_buffer(head, len(head))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    address = ctypes.c_void_p(ctypes.addressof(header))
    if prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), address, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")
