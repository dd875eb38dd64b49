"""Where simulated budgets are kept, under which key, and a budget between two kept ones."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.budget.formulas import MemoryLine
from nbhelpers.budget.memory import INTERPOLATED, SIMULATION, MemoryBudget
from nbhelpers.common.files import cache_dir, expanded, is_folder, save_in_cache
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.schema import telling

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset


# ------------------------------------------------------------------------------------------------
# Which settings decide the memory of a run, and the name under which its budget is kept.
#
# A setting counts unless it is listed here as one that changes no tensor, so a field that nobody
# thought of makes another key, never a wrong budget.


# What the batch plan says instead.
SPLIT = {"global_batch_size", "per_device_train_batch_size", "num_gpus", "allow_uneven_split"}
# What chooses rows, numbers or moments, and no size: a budget plans for rows of `seq_len` tokens.
ANY_JOB = {"data_revision", "on_bad_rows", "seed", "learning_rate", "lr_schedule"}
ANY_JOB |= {"warmup_ratio", "weight_decay", "adam_epsilon", "max_grad_norm", "logging_steps"}
ANY_JOB |= {"eval_steps", "save_steps", "save_minutes", "save_total_limit", "max_skipped_steps"}
ANY_JOB |= {"track", "bootstrap_samples", "targets"}
# How long a run is: it decides whether blocks are compiled, where that is left open.
LENGTH = {"epochs", "train_fraction", "max_train_samples"}


class Key(NamedTuple):
    """The name of a budget: everything but batch and length is its `family`."""

    job: str
    family: str
    batch: int
    seq_len: int
    card: str

    @property
    def name(self) -> str:
        """The name without the card.

        >>> Key("clones", "0a1b", 8, 512, "t4").name
        '0a1b-8x512'
        """
        return f"{self.family}-{self.batch}x{self.seq_len}"


def budget_key(preset: Preset, plan: BatchPlan, hardware: Hardware) -> Key | None:
    """Return the key of a run's budget; None where no GPU is used."""
    gpu = hardware.gpu
    if gpu is None or not plan.use_gpu:
        return None
    facts = memory_facts(preset, plan, hardware)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return Key(
        job=preset.job,
        family=hashlib.sha256(text.encode()).hexdigest()[:16],
        batch=plan.per_device_train_batch_size,
        seq_len=preset.settings.seq_len,
        card=card_name(gpu),
    )


def card_name(gpu: Gpu) -> str:
    """Return the key of a GPU in `gpus.yaml`, else what is known of it."""
    if gpu.key:
        return gpu.key
    major, minor = gpu.compute_capability
    kind = " MIG" if gpu.is_mig else ""
    return f"{gpu.name}{kind} {major}.{minor} {gpu.memory_total_bytes}"


def memory_facts(preset: Preset, plan: BatchPlan, hardware: Hardware) -> dict[str, Any]:
    """Return what decides the memory of one process, beside batch, length and card."""
    s, spec = preset.settings, JOBS[preset.job]
    left_out = SPLIT | ANY_JOB | spec.memory_neutral | {"seq_len"}
    is_open = "compile_layers" not in left_out and getattr(s, "compile_layers", "off") == "auto"
    left_out |= set() if is_open else LENGTH
    values = telling(type(s), s.model_dump(mode="json"))
    facts = {n: v for n, v in values.items() if n not in left_out}
    if s.model not in spec.models.embedded:  # elsewhere the tokenizer is made from the data
        del facts["data"]
    facts["precision"] = hardware.precision if s.precision == "auto" else s.precision
    facts["dropout"] = None if s.dropout is None else s.dropout > 0
    facts["model"] = model_stamp(s.model)
    facts |= {
        "job": spec.name,
        "world_size": min(plan.world_size, 2),  # each further process holds what the second does
        "num_nodes": plan.num_nodes,
        "accumulates": plan.gradient_accumulation_steps > 1,
    }
    return spec.memory_facts(facts, s, plan) if spec.memory_facts else facts


def model_stamp(model: str) -> Any:
    """Return a name as it is, and of a local folder its configuration and what files it holds."""
    if not is_folder(model):
        return model
    folder = expanded(model)
    files = sorted((p.name, p.stat().st_size) for p in folder.iterdir() if p.is_file())
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""
    return [digest, files]


# ------------------------------------------------------------------------------------------------
# Where simulated budgets are kept: tables of the package, and a folder of the user's cache.
#
# A table holds the shipped presets on every known card (`make budgets`); the folder holds what was
# simulated here. Each budget says with which library versions it was made.


TABLES = Path(__file__).parent / "tables"
SCHEMA = 1
MOST_KEPT = 2000  # files of the user's cache; the oldest go first
# Folders and modules whose code a simulation runs.
SIMULATED_CODE = ("simulate", "jobs", "budget/formulas.py", "budget/shapes.py")


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


def family(key: Key) -> list[Point]:
    """Return every kept budget that differs from a key in batch and length alone."""
    return [*of_the_user(key), *of_the_package(key)]


def is_current(
    job: str, versions: Mapping[str, str], here: Mapping[str, str] | None = None
) -> bool:
    """Whether a budget was made with the library versions that are here."""
    here = installed_versions() if here is None else here
    return all(public(versions.get(name)) == public(here.get(name)) for name in JOBS[job].libraries)


def version_note(
    job: str, versions: Mapping[str, str], here: Mapping[str, str] | None = None
) -> str:
    """Say with which other versions a budget was made, else nothing.

    >>> version_note("clones", {"torch": "2.11.0", "transformers": "5.17.0"},
    ...              {"torch": "2.13.0", "transformers": "5.24.1"})
    'simulated with torch 2.11, transformers 5.17; your 2.13, 5.24 may need more or less'
    """
    here = installed_versions() if here is None else here
    odd = [n for n in JOBS[job].libraries if public(versions.get(n)) != public(here.get(n))]
    if not odd:
        return ""
    pairs = [_told(versions.get(name), here.get(name)) for name in odd]
    made_with = ", ".join(f"{name} {old}" for name, (old, _) in zip(odd, pairs, strict=True))
    if not any(here.get(name) for name in odd):
        return f"simulated with {made_with}; none of them is installed here"
    yours = ", ".join(new for _, new in pairs)
    return f"simulated with {made_with}; your {yours} may need more or less"


def _told(budget_version: str | None, here: str | None) -> tuple[str, str]:
    """Two versions, as short as they can be told apart."""
    old, new = public(budget_version) or "unknown", public(here) or "none"
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
    versions = {}
    for name in dict.fromkeys(name for spec in JOBS.values() for name in spec.libraries):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def code_stamp() -> str:
    """Return a stamp of the code that a simulation runs: a budget of other code is not used.

    Docstrings, comments and line numbers do not count.
    """
    digest = hashlib.sha256()
    for path in _simulated_files():
        source = path.read_text(encoding="utf-8")
        for part in _compiled_parts(compile(source, "", "exec", dont_inherit=True, optimize=2)):
            digest.update(part)
    return digest.hexdigest()[:12]


@functools.cache
def source_stamp() -> str:
    """Return a stamp of the same code's files as they are: found at once, changed by any edit."""
    digest = hashlib.sha256()
    for path in _simulated_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _simulated_files() -> Iterator[Path]:
    """Yield the files of `SIMULATED_CODE` in a fixed order."""
    for name in SIMULATED_CODE:
        place = Path(__file__).parents[1] / name
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _compiled_parts(code: types.CodeType) -> Iterator[bytes]:
    """Yield the instructions, names and constants of compiled code, nested functions included."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _compiled_parts(constant)
        else:
            ordered = sorted(constant, key=repr) if isinstance(constant, frozenset) else constant
            yield repr(ordered).encode()


def user_folder() -> Path:
    """Return the folder of budgets that were simulated on this machine: `NBHELPERS_BUDGETS`."""
    named = os.environ.get("NBHELPERS_BUDGETS")
    return Path(named) if named else cache_dir() / "budgets"


def keep(key: Key, budget: MemoryBudget) -> None:
    """Keep a simulated budget in the user's cache."""
    origin = json.dumps([key.card, sorted(budget.versions.items())])
    stamp = hashlib.sha256(origin.encode()).hexdigest()[:8]
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


def of_the_user(key: Key) -> Iterator[Point]:
    """Give every budget of the family of a key that was simulated here with today's code."""
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
    family_budgets = table.get("budgets", {}).get(group, {}).get(key.family, {})
    for facts in family_budgets.values():
        yield _point(key.job, facts, table["versions"], table["strings"])


@functools.cache
def shipped(job: str) -> dict[str, Any]:
    """Return the table of a job that comes with the package; empty where there is none.

    `cards` names the group of each card: cards of a group differ in size only, which `predict`
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

    def text(value: str | int) -> str:
        return strings[value] if isinstance(value, int) else value

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
        source=SIMULATION,
        reserved_bytes=plain["reserved_bytes"],
        phases=phases,
        opaque=tuple(map(text, plain["opaque"])),
        notes=tuple(map(text, plain["notes"])),
        versions=dict(versions),
    )


# ------------------------------------------------------------------------------------------------
# A budget between kept ones: of the same run in all but batch and length.
#
# Memory is the largest of sums that are linear in the batch and convex in the length, so a value
# between kept ones is at most too large.


def interpolate(points: Sequence[Point], batch: int, seq_len: int) -> MemoryBudget | None:
    """Return the budget of a batch and length from the nearest kept ones around them.

    Returns:
        The budget, whose `source` is "interpolated"; None where the kept ones do not surround it:
        nothing is extrapolated.

    Source: bilinear interpolation in batch and length, line by line.
    """
    known = {(p.batch, p.seq_len): p.budget for p in reversed(points)}  # the first of equal ones
    corners = _corners(list(known), batch, seq_len)
    if corners is None:
        return None
    (low, high), (short, long) = corners
    x, y = _share(batch, low, high), _share(seq_len, short, long)
    weights: dict[tuple[int, int], float] = {}
    for (b, wb), (n, wn) in product(((low, 1 - x), (high, x)), ((short, 1 - y), (long, y))):
        weights[b, n] = weights.get((b, n), 0.0) + wb * wn
    return _mixed([(known[at], weight) for at, weight in weights.items()], sorted(weights))


Range = tuple[int, int]


def _corners(known: list[tuple[int, int]], batch: int, seq_len: int) -> tuple[Range, Range] | None:
    """The smallest rectangle of kept points around one; equal ends where a value is kept itself."""
    have, best = set(known), None
    batches, lengths = sorted({b for b, _ in known}), sorted({n for _, n in known})
    for low, high in _around(batches, batch):
        for short, long in _around(lengths, seq_len):
            if not {(b, n) for b in (low, high) for n in (short, long)} <= have:
                continue
            size = (high / low) * (long / short)
            if best is None or size < best[0]:
                best = (size, ((low, high), (short, long)))
    return best[1] if best else None


def _around(values: list[int], value: int) -> list[Range]:
    below, above = [v for v in values if v <= value], [v for v in values if v >= value]
    return [(low, high) for low in below for high in above if value not in (low, high)] + (
        [(value, value)] if value in values else []
    )


def _share(value: int, low: int, high: int) -> float:
    return 0.0 if low == high else (value - low) / (high - low)


def _mixed(parts: list[tuple[MemoryBudget, float]], at: list[tuple[int, int]]) -> MemoryBudget:
    first = parts[0][0]
    reserved = [budget.reserved_bytes for budget, _ in parts]
    simulated = ", ".join(f"{batch} x {seq_len:,}" for batch, seq_len in at)
    notes = dict.fromkeys(note for budget, _ in parts for note in budget.notes)
    lines = _mixed_lines([(budget.lines, weight) for budget, weight in parts])
    return MemoryBudget(
        lines=lines,
        total_bytes=sum(line.size_bytes for line in lines),
        capacity_bytes=None,
        verdict="",
        advice=(),
        source=INTERPOLATED,
        reserved_bytes=None
        if None in reserved
        else round(sum(budget.reserved_bytes * weight for budget, weight in parts)),
        phases=_mixed_lines([(budget.phases, weight) for budget, weight in parts]),
        opaque=tuple(dict.fromkeys(name for budget, _ in parts for name in budget.opaque)),
        notes=(f"interpolated between simulated batch x tokens: {simulated}", *notes),
        versions=dict(first.versions),
    )


def _mixed_lines(parts: list[tuple[tuple[MemoryLine, ...], float]]) -> tuple[MemoryLine, ...]:
    """Lines of the same name mixed; a line that a part lacks is nothing there."""
    names = dict.fromkeys(line.name for lines, _ in parts for line in lines)
    mixed = []
    for name in names:
        size, note = 0.0, ""
        for lines, weight in parts:
            size += weight * sum(line.size_bytes for line in lines if line.name == name)
        notes = {line.note for lines, _ in parts for line in lines if line.name == name}
        note = notes.pop() if len(notes) == 1 else "interpolated"
        mixed.append(MemoryLine(name=name, size_bytes=round(size), note=note))
    return tuple(mixed)
