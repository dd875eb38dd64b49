"""Numbers as text: seconds, bytes, shares, counts, intervals; one function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

NOT_MEASURED = "not measured"
GB, GIB, MIB = 10**9, 2**30, 2**20


def duration(seconds: float | None) -> str:
    """Write a time span in two or three digits: tenths below ten seconds, two units from a minute.

    >>> duration(3.25), duration(9.96), duration(59.6), duration(192), duration(7260)
    ('3.2 s', '10 s', '1 min 00 s', '3 min 12 s', '2 h 01 min')
    >>> duration(200_000), duration(None)
    ('2 d 07 h', 'not measured')
    """
    if seconds is None:
        return NOT_MEASURED
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole > 48 * 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(size_bytes: float | None, *, least_gib: float = 1.0) -> str:
    """Write measured bytes as GiB with two decimals, fewer than `least_gib` as MiB.

    >>> size(3 * 2**30), size(5 * 2**20), size(2**29, least_gib=0.1), size(None)
    ('3.00 GiB', '5.0 MiB', '0.50 GiB', 'not measured')
    """
    if size_bytes is None:
        return NOT_MEASURED
    if abs(size_bytes) >= least_gib * GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / MIB:.1f} MiB"


def rounded_size(size_bytes: float) -> str:
    """Write predicted bytes as GiB with one decimal, below one GiB as MiB.

    >>> rounded_size(3 * 2**30), rounded_size(300 * 2**20), rounded_size(2**20 // 2)
    ('3.0 GiB', '300 MiB', '0.5 MiB')
    """
    if size_bytes >= GIB:
        return gib(size_bytes)
    mib = size_bytes / MIB
    return f"{mib:.1f} MiB" if 0 < mib < 10 else f"{mib:.0f} MiB"


def gib(size_bytes: float) -> str:
    """Write bytes as GiB with one decimal, however few.

    >>> gib(3 * 2**30), gib(2**27)
    ('3.0 GiB', '0.1 GiB')
    """
    return f"{size_bytes / GIB:.1f} GiB"


def gb(size_bytes: float) -> str:
    """Write bytes of a disk as GB of 10**9.

    >>> gb(3_210_000_000), gb(321_000_000)
    ('3.2 GB', '0.32 GB')
    """
    return f"{size_bytes / GB:.2f} GB" if size_bytes < GB else f"{size_bytes / GB:.1f} GB"


def share(value: float | None) -> str:
    """Write a measured fraction in per cent, with one decimal.

    >>> share(0.0123), share(None)
    ('1.2 %', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{100 * value:.1f} %"


def percent(value: float) -> str:
    """Write a fraction as a percentage with at most two decimals, without its sign.

    >>> percent(0.0123), percent(0.0)
    ('1.23', '0')
    """
    return f"{100 * value:.2f}".rstrip("0").rstrip(".")


def count(value: float | None) -> str:
    """Write a whole number with separators.

    >>> count(12345), count(None)
    ('12,345', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{value:,.0f}"


def number(n: int, noun: str) -> str:
    """Write how many there are of something.

    >>> number(1, "file"), number(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def signed(value: float) -> str:
    """Write the error of a prediction, which is in per cent, with its sign.

    >>> signed(3.46), signed(-0.04)
    ('+3.5 %', '-0.0 %')
    """
    return f"{value:+.1f} %"


def listed(names: Sequence[str]) -> str:
    """Write names as a person lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


FORMATS: dict[str, Callable[[Any], str]] = {
    "size": size,
    "duration": duration,
    "share": share,
    "count": count,
    "error": signed,
}


def written(value: Any, form: str = "") -> str:
    """Write a value as the cell of a table; None is empty.

    Args:
        value: A number, text or truth value, or several in a list.
        form: A name of `FORMATS`, else a format specification such as `.3f`, or a whole text with
            one, such as `{:.0f} W`. Empty: whole and large numbers as counts, others in four
            digits.

    >>> written(0.12345, ".3f"), written(92, "{:.0f} W"), written(2**30, "size"), written(None)
    ('0.123', '92 W', '1.00 GiB', '')
    >>> written(12345), written(0.12345), written(True), written(["a", 1])
    ('12,345', '0.1235', 'yes', 'a, 1')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    if form in FORMATS:
        return FORMATS[form](value)
    if form:
        return form.format(value) if "{" in form else format(value, form)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value))
    if not isinstance(value, int | float):
        return str(value)
    is_count = isinstance(value, int) or value.is_integer() or abs(value) >= 1000
    return count(value) if is_count else f"{value:.4g}"


def digits_apart(limit: float, values: Iterable[float], least: int = 4) -> int:
    """Return the decimals with which every value stands on its side of a limit.

    >>> digits_apart(0.9946, [0.9948, 0.9944]), digits_apart(0.99482, [0.99484, 0.9947])
    (4, 5)
    """
    numbers = list(values)
    for digits in range(least, 12):
        edge = round(limit, digits)
        if all((round(each, digits) > edge) == (each > limit) for each in numbers):
            return digits
    return 12


def interval(edges: Sequence[float | None] | None, form: str = ".3f") -> str:
    """Write an interval, or nothing where an edge is unknown.

    >>> interval([0.9312, 0.962]), interval([12.04, 17.4], ".1f"), interval([None, 1])
    ('0.931 to 0.962', '12.0 to 17.4', '')
    """
    if edges is None or len(edges) != 2:
        return ""
    low, high = (written(edge, form) for edge in edges)
    return f"{low} to {high}" if low and high else ""
