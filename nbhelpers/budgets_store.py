"""Where simulated budgets are kept: tables of the package, and a folder of the user's cache.

A table holds the shipped presets on every known card (`make budgets`); the folder holds what was
simulated here. Each budget says with which library versions it was made.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nbhelpers.budgets_key import Key
from nbhelpers.cache import cache_dir, save_in_cache
from nbhelpers.job_specs import JOBS
from nbhelpers.ledger import MemoryLine
from nbhelpers.memory import MemoryBudget

TABLES = Path(__file__).parent / "budget_tables"
SCHEMA = 1
MOST_KEPT = 2000  # files of the user's cache; the oldest go first
SIMULATED_CODE = ("simulate", "models", "jobs")  # folders whose code a simulation runs


class Point(NamedTuple):
    """A kept budget: without verdict and advice, which depend on the card's free size."""

    batch: int
    seq_len: int
    budget: MemoryBudget
    is_current: bool  # made with the versions that are here


def kept(key: Key) -> MemoryBudget | None:
    """Return the kept budget of a key, one made with the versions here first."""
    points = [p for p in family(key) if (p.batch, p.seq_len) == (key.batch, key.seq_len)]
    points.sort(key=lambda point: not point.is_current)  # stable: the user's own come first
    return points[0].budget if points else None


def simulated_here(key: Key) -> MemoryBudget | None:
    """Return what was simulated on this machine, with today's code and libraries."""
    for point in _of_the_user(key):
        if (point.batch, point.seq_len) == (key.batch, key.seq_len) and point.is_current:
            return point.budget
    return None


def family(key: Key) -> list[Point]:
    """Return every kept budget that differs from a key in batch and length alone."""
    return [*_of_the_user(key), *of_the_package(key)]


def is_current(job: str, made: Mapping[str, str], here: Mapping[str, str] | None = None) -> bool:
    """Whether a budget was made with the library versions that are here."""
    here = installed_versions() if here is None else here
    return all(public(made.get(name)) == public(here.get(name)) for name in JOBS[job].libraries)


def version_note(job: str, made: Mapping[str, str], here: Mapping[str, str] | None = None) -> str:
    """Say with which other versions a budget was made, else nothing.

    >>> version_note("clones", {"torch": "2.11.0", "transformers": "5.17.0"},
    ...              {"torch": "2.13.0", "transformers": "5.24.1"})
    'made with torch 2.11, transformers 5.17; here 2.13, 5.24'
    """
    here = installed_versions() if here is None else here
    odd = [n for n in JOBS[job].libraries if public(made.get(n)) != public(here.get(n))]
    if not odd:
        return ""
    pairs = [_told(made.get(name), here.get(name)) for name in odd]
    said = ", ".join(f"{name} {old}" for name, (old, _) in zip(odd, pairs, strict=True))
    if not any(here.get(name) for name in odd):
        return f"made with {said}; here none of them is installed"
    return f"made with {said}; here {', '.join(new for _, new in pairs)}"


def _told(made: str | None, here: str | None) -> tuple[str, str]:
    """Two versions, as short as they can be told apart."""
    old, new = public(made) or "unknown", public(here) or "none"
    short = tuple(".".join(each.split(".")[:2]) for each in (old, new))
    return short if short[0] != short[1] else (old, new)


def public(version: str | None) -> str:
    """Return a version without what a build adds to it.

    >>> public("2.13.0+cpu"), public(None)
    ('2.13.0', '')
    """
    return (version or "").partition("+")[0]


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed, none of them imported."""
    found = {}
    for name in dict.fromkeys(name for spec in JOBS.values() for name in spec.libraries):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def code_stamp() -> str:
    """Return a stamp of the code that a simulation runs: a budget of other code is not used."""
    digest, home = hashlib.sha256(), Path(__file__).parent
    for name in SIMULATED_CODE:
        for path in sorted((home / name).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def user_folder() -> Path:
    """Return the folder of budgets that were simulated on this machine: `NBHELPERS_BUDGETS`."""
    named = os.environ.get("NBHELPERS_BUDGETS")
    return Path(named) if named else cache_dir() / "budgets"


def keep(key: Key, budget: MemoryBudget) -> None:
    """Keep a simulated budget in the user's cache."""
    made = json.dumps([key.card, sorted(budget.versions.items())])
    stamp = hashlib.sha256(made.encode()).hexdigest()[:8]
    path = user_folder() / key.job / f"{key.name}-{stamp}.json"
    facts = {"schema": SCHEMA, "card": key.card, "code": code_stamp()}
    facts |= {"batch": key.batch, "seq_len": key.seq_len, "versions": budget.versions}
    text = json.dumps(facts | {"budget": packed(budget)})
    save_in_cache(path, lambda part: _write(part, text))
    _names.cache_clear()
    _forget_oldest(path.parent)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _forget_oldest(folder: Path) -> None:
    try:
        files = list(folder.glob("*.json"))
        if len(files) > MOST_KEPT:
            files.sort(key=lambda path: path.stat().st_mtime)
            for path in files[: len(files) - MOST_KEPT]:
                path.unlink(missing_ok=True)
    except OSError:  # another process clears up, or the disk is read-only
        return


def _of_the_user(key: Key) -> Iterator[Point]:
    folder = user_folder() / key.job
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return
    for name in _names(folder, changed):
        if not name.startswith(f"{key.family}-"):
            continue
        try:
            facts = json.loads((folder / name).read_text(encoding="utf-8"))
            if (facts["schema"], facts["card"]) != (SCHEMA, key.card):
                continue
            if facts["code"] == code_stamp():
                yield _point(key.job, facts, facts["versions"])
        except (OSError, ValueError, KeyError, TypeError):  # a cache may be damaged
            continue


@functools.lru_cache(maxsize=8)
def _names(folder: Path, changed: int) -> tuple[str, ...]:
    """The files of a folder, read again when it has changed."""
    return tuple(sorted(path.name for path in folder.glob("*.json")))


def of_the_package(key: Key) -> Iterator[Point]:
    """Give every shipped budget of the family of a key, whatever code or libraries are here."""
    table = shipped(key.job)
    group = table.get("cards", {}).get(key.card)
    found = table.get("budgets", {}).get(group, {}).get(key.family, {})
    for facts in found.values():
        yield _point(key.job, facts, table["versions"], table["strings"])


@functools.cache
def shipped(job: str) -> dict[str, Any]:
    """Return the table of a job that comes with the package; empty where there is none.

    `cards` names the group of each card: cards of a group differ in size only, which `budgets`
    (group, family, `Key.name`) leaves open. `presets` says the key's name, or why there is none, of
    each preset on each card. `strings` holds the texts, `versions` the libraries' versions.
    """
    try:
        table = json.loads((TABLES / f"{job}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) and table.get("schema") == SCHEMA else {}


def _point(
    job: str, facts: Mapping[str, Any], versions: Mapping[str, str], strings: Sequence[str] = ()
) -> Point:
    budget = unpacked(facts["budget"], versions, strings)
    return Point(facts["batch"], facts["seq_len"], budget, is_current(job, versions))


def packed(budget: MemoryBudget) -> dict[str, Any]:
    """Return what does not depend on the size of the card, in few words."""
    return {
        "lines": [[line.name, line.size_bytes, line.note] for line in budget.lines],
        "total_bytes": budget.total_bytes,
        "reserved_bytes": budget.reserved_bytes,
        "phases": [[line.name, line.size_bytes, line.note] for line in budget.phases],
        "opaque": list(budget.opaque),
        "notes": list(budget.notes),
    }


def unpacked(
    plain: Mapping[str, Any], versions: Mapping[str, str], strings: Sequence[str] = ()
) -> MemoryBudget:
    """Return a budget from what `packed` wrote; verdict and advice are not known yet.

    Args:
        plain: What was written; a number in the place of a text is its index in `strings`.
        versions: Of the libraries that it was made with.
        strings: The texts of a table, each once.
    """

    def text(told: str | int) -> str:
        return strings[told] if isinstance(told, int) else told

    lines, phases = (
        tuple(MemoryLine(name=text(n), size_bytes=x, note=text(note)) for n, x, note in plain[part])
        for part in ("lines", "phases")
    )
    return MemoryBudget(
        lines=lines,
        total_bytes=plain["total_bytes"],
        capacity_bytes=None,
        verdict="",
        advice=(),
        source="simulation",
        reserved_bytes=plain["reserved_bytes"],
        phases=phases,
        opaque=tuple(map(text, plain["opaque"])),
        notes=tuple(map(text, plain["notes"])),
        versions=dict(versions),
    )
