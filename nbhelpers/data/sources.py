"""Where clone data comes from: the bundled sample, a local folder, or the hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..checks import DATASET_PREFIX
from ..errors import ConfigError, DataError
from ..paths import expanded, is_folder, kind_of
from .bigclonebench import FUNCTIONS_FILE, read_folder, shorten, split_files
from .checks import assemble
from .hub import fetch, is_repo_id
from .pairs import MAIN_SPLITS, CloneData, FunctionTable, raw_split, subsample
from .parquet import read_parquet
from .problems import Policy, ProblemLog

SMOKE = "smoke"
SMOKE_LICENCE = "Apache-2.0"
LOCAL_LICENCE = "not stated (a local folder)"


def load_clone_data(
    source: str,
    *,
    revision: str | None = None,
    on_bad_rows: Policy = "stop",
    train_fraction: float = 1.0,
    max_train_samples: int | None = None,
    seed: int = 0,
    require: tuple[str, ...] = MAIN_SPLITS,
) -> CloneData:
    """Load function pairs, distinct functions once, with one report of everything found.

    Args:
        source: `smoke`, a local folder (CodeXGLUE layout, or Parquet files with the hub's
            columns), or a data set on the hub as `owner/name`.
        revision: Branch, tag or commit on the hub; the commit it stood for is recorded.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows
            and records it.
        train_fraction: Share of the train pairs to use.
        max_train_samples: Upper limit on the train pairs, applied after the fraction.
        seed: Of the draw of train pairs (and of the pairs of the bundled sample).
        require: Splits that must exist.

    Raises:
        DataError: The data cannot be found, reached or read, or rows are bad and the policy is
            `stop`.
        ConfigError: An argument is out of range.
    """
    _check_arguments(on_bad_rows, train_fraction, max_train_samples, seed)
    data = _load(source, revision, ProblemLog(on_bad_rows, source), require, seed)
    if "train" not in data.splits:
        return data
    train = subsample(
        data.splits["train"], fraction=train_fraction, max_samples=max_train_samples, seed=seed
    )
    return dataclasses.replace(data, splits=data.splits | {"train": train})


def check_choice(on_bad_rows: object, train_fraction: object) -> None:
    """Refuse an unknown policy for bad rows, and a share of the rows that is none.

    Raises:
        ConfigError: Names the argument and what it may be.
    """
    if on_bad_rows not in ("stop", "drop"):
        raise ConfigError(f"on_bad_rows={on_bad_rows!r} is not known.", fix='use "stop" or "drop".')
    is_number = type(train_fraction) in (int, float)
    if not is_number or not 0 < train_fraction <= 1:  # type: ignore[operator]
        raise ConfigError(
            f"train_fraction={train_fraction!r} is not in (0, 1].", fix="0.1 takes a tenth."
        )


def _check_arguments(
    on_bad_rows: object, train_fraction: object, max_train_samples: object, seed: object
) -> None:
    check_choice(on_bad_rows, train_fraction)
    for name, value, low in (("max_train_samples", max_train_samples, 1), ("seed", seed, 0)):
        if value is None and name != "seed":
            continue
        if type(value) is not int or value < low:
            fix = f"give a whole number from {low} up" + (", or None." if low else ".")
            raise ConfigError(f"{name}={value!r} is no whole number from {low} up.", fix=fix)


def _load(
    source: str, revision: str | None, log: ProblemLog, require: tuple[str, ...], seed: int
) -> CloneData:
    if source == SMOKE:
        return _load_smoke(log, seed)
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise _unknown_source(source)
    path = expanded(source, "data")
    if not source.startswith(DATASET_PREFIX) and kind_of(path):
        if revision is not None:
            log.add("ignored_revision", source, None, f"revision {revision!r}")
        return _load_folder(path, log, require, source)
    repo_id = source.removeprefix(DATASET_PREFIX)
    if repo_id == source:
        refuse_lost_path(source)
    if not is_repo_id(repo_id):
        raise _unknown_source(source)
    found = fetch(repo_id, revision, log)
    functions = next((name for name in found.files if Path(name).name == FUNCTIONS_FILE), None)
    facts = {"source": repo_id, "revision": found.commit, "licence": found.licence}
    if functions is not None:
        return read_folder((found.folder / functions).parent, log, require=require, **facts)
    return read_parquet(found.folder, list(found.files), log, require=require, **facts)


def _load_folder(path: Path, log: ProblemLog, require: tuple[str, ...], source: str) -> CloneData:
    if kind_of(path) == "forbidden":
        raise DataError(
            f"{source} cannot be looked at: a folder above it may not be searched.",
            fix="make it readable, or copy the data to a folder of your own",
        )
    if not is_folder(path):
        raise DataError(
            f"{source} is a file, not a folder.",
            fix=f"name the folder that holds it: {path.parent}",
        )
    try:
        if kind_of(path / FUNCTIONS_FILE) or split_files(path):
            return read_folder(path, log, require=require, source=source, licence=LOCAL_LICENCE)
        names = [found.relative_to(path).as_posix() for found in path.rglob("*.parquet")]
        if names:
            return read_parquet(
                path, names, log, require=require, source=source, licence=LOCAL_LICENCE
            )
        return read_folder(path, log, require=require, source=source, licence=LOCAL_LICENCE)
    except PermissionError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}.", fix=f"chmod -R u+rX {source}"
        ) from error


def refuse_lost_path(
    source: str,
    *,
    endings: tuple[str, ...] = (".jsonl", ".txt", ".parquet"),
    what: str = "folder",
) -> None:
    """Stop at once where a text is meant as a path and nothing is there; the hub is not asked.

    Raises:
        DataError: It is a path, by its form, its ending or its first folder.
    """
    path = expanded(source, "data")
    first = path.parts[0] if path.parts else ""
    is_path = (
        source.startswith((".", "/", "~", "\\"))
        or source.endswith(("/", *endings))
        or "\\" in source
        or source.count("/") > 1
        or (len(path.parts) > 1 and is_folder(first))
    )
    if not is_path or "://" in source:
        return
    parent = next((p for p in path.parents if is_folder(p)), Path())
    try:
        there = sorted(p.name for p in parent.iterdir())[:12]
    except OSError:
        there = ["what may not be listed"]
    raise DataError(
        f"There is no {what} {source}.",
        fix=f"correct the path (for a data set on the hub write {DATASET_PREFIX}owner/name).",
        details=f"{parent} holds: {', '.join(there) or 'nothing'}",
    )


def _unknown_source(source: object) -> DataError:
    return DataError(
        f"data={shorten(source)} is neither `{SMOKE}`, nor a folder here, nor a data set on the "
        "hub (owner/name).",
        fix="write `smoke`, ./folder or owner/name; a revision goes into data_revision.",
    )


def _load_smoke(log: ProblemLog, seed: int) -> CloneData:
    from .. import samples

    table = FunctionTable(log, rows_are_functions=True)
    for line, function in enumerate(samples.load_functions(), 1):
        table.add(function.id, function.code, "samples", line)
    raw = {
        name: raw_split(
            name,
            left=[table.index[left] for left, _, _ in rows],
            right=[table.index[right] for _, right, _ in rows],
            label=[label for *_, label in rows],
            lines=range(1, len(rows) + 1),
        )
        for name, rows in samples.sample_pairs(seed).items()
    }
    return assemble(
        table,
        raw,
        log,
        source=SMOKE,
        revision=None,
        licence=SMOKE_LICENCE,
        note=samples.SAMPLE_NOTE,
    )
