"""Where instructions come from: the bundled sample, a file, a folder of files, or the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from ..checks import DATASET_PREFIX
from ..errors import DataError
from ..paths import expanded, kind_of
from .bigclonebench import shorten
from .hub import fetch, is_repo_id
from .instruction_files import ENDINGS, read_records
from .instruction_rows import PlacedRow, RowReader
from .pairs import MAIN_SPLITS
from .parquet import find_splits, split_of
from .problems import ProblemLog
from .sources import SMOKE, SMOKE_LICENCE, refuse_lost_path

LOCAL_LICENCE = "not stated (local files)"
OTHER_NAMES = {"val": "valid", "dev": "valid"}  # of the validation split
HUB_FOLDERS = {"google-research-datasets/mbpp": "full"}  # of the forms that stand side by side
RECORDS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_WANTED = (
    "no files of rows (.json, .jsonl, .parquet, .csv)",
    "name another data set, or download it and give a local file.",
)


class Files(NamedTuple):
    """Files of one data set and what is known of it."""

    folder: Path
    names: list[str]  # relative to the folder
    source: str
    revision: str | None
    licence: str


class RawData(NamedTuple):
    """Rows by split as they stand in the files, before anything is held out."""

    splits: dict[str, list[PlacedRow]]
    source: str
    revision: str | None
    licence: str
    note: str = ""


def read_source(source: str, revision: str | None, log: ProblemLog) -> RawData:
    """All usable rows of a data set.

    Raises:
        DataError: Nothing is there, a file cannot be read, or rows are bad and the policy is
            `stop`.
    """
    if source == SMOKE:
        data = _read_smoke(log)
    else:
        files = find_files(source, revision, log)
        splits = read_splits(files, log)
        data = RawData(splits, files.source, files.revision, files.licence)
    log.stop_if_needed()
    for name, rows in data.splits.items():
        if not rows:
            log.add("no_rows_left", name, None, "every row was dropped")
    log.stop_if_needed()
    return data


def find_files(source: str, revision: str | None, log: ProblemLog, *, what: str = "data") -> Files:
    """The files that a source names: one file, those of a folder, or those on the hub.

    Args:
        source: A path, `owner/name`, or `owner/name/folder` for a folder of a data set.
        revision: Branch, tag or commit on the hub.
        log: Gets notes on what was ignored or cached.
        what: Name of the parameter, for errors.

    Raises:
        DataError: Nothing of the kind is there or can be reached.
    """
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise _unknown_source(source, what)
    path = expanded(source, what)
    if not source.startswith(DATASET_PREFIX) and (kind := kind_of(path)):
        if revision is not None:
            log.add("ignored_revision", source, None, f"revision {revision!r}")
        return _local_files(path, kind, source)
    repo_id = source.removeprefix(DATASET_PREFIX)
    parts = repo_id.split("/")
    under = "/".join(parts[2:])
    if repo_id == source and (not under or source.startswith((".", "/", "~"))):
        refuse_lost_path(source, endings=ENDINGS, what="file or folder")
    repo_id = "/".join(parts[:2])
    if not is_repo_id(repo_id) or (under and Path(under).suffix in ENDINGS):
        raise _unknown_source(source, what)
    under = under or HUB_FOLDERS.get(repo_id, "")
    found = fetch(repo_id, revision, log, choose=_chooser(under), wanted=_WANTED)
    name = f"{repo_id}/{under}" if under else repo_id
    return Files(found.folder, list(found.files), name, found.commit, found.licence)


def _local_files(path: Path, kind: str, source: str) -> Files:
    if kind == "forbidden":
        raise DataError(
            f"{source} cannot be looked at: a folder above it may not be searched.",
            fix="make it readable, or copy the data to a folder of your own",
        )
    if kind == "file":
        if path.suffix.lower() not in ENDINGS:
            raise DataError(
                f"{source} cannot be read: its name ends in {path.suffix or 'nothing'}.",
                fix=f"write the rows as one of {', '.join(ENDINGS)}.",
            )
        return Files(path.parent, [path.name], source, None, LOCAL_LICENCE)
    if kind != "folder":
        raise DataError(f"{source} is no plain file.", fix="give a file or a folder")
    try:
        names = [found.relative_to(path).as_posix() for found in _files_under(path)]
        there = sorted(child.name for child in path.iterdir())
    except OSError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}.", fix=f"chmod -R u+rX {source}"
        ) from error
    if not names:
        raise DataError(
            f"The folder {source} holds no file that is read ({', '.join(ENDINGS)}).",
            fix="put train.jsonl there, or name another folder.",
            details=f"it holds: {', '.join(there[:12]) or 'nothing'}",
        )
    return Files(path, names, source, None, LOCAL_LICENCE)


def _files_under(path: Path) -> Iterator[Path]:
    """Data files of a folder and its subfolders; hidden ones and records about data apart."""
    for found in sorted(path.rglob("*")):
        if is_data(found.relative_to(path)) and found.is_file():
            yield found


def is_data(name: PurePath) -> bool:
    """Whether a file is read as rows, by its name: hidden ones and records about data are not."""
    is_hidden = any(part.startswith(".") for part in name.parts)
    return name.suffix.lower() in ENDINGS and not is_hidden and name.name not in RECORDS


def _chooser(under: str) -> Callable[[list[str]], list[str]]:
    """Files of one format: Parquet where there is any, else what is there."""

    def choose(names: list[str]) -> list[str]:
        inside = [n for n in names if is_data(PurePosixPath(n))]
        if under:
            inside = [n for n in inside if n.startswith(f"{under}/")] or inside
        parquet = [n for n in inside if n.endswith(".parquet")]
        return parquet or [n for n in inside if split_name(n) is not None] or inside

    return choose


def split_name(name: str) -> str | None:
    """Split that a file belongs to, by its name or else by its folder's.

    >>> split_name("data/validation-00000-of-00001.parquet"), split_name("dev.json")
    ('valid', 'valid')
    >>> split_name("my_rows.csv") is None
    True
    """
    path = Path(name)
    other = OTHER_NAMES.get(path.stem) or OTHER_NAMES.get(path.parent.name)
    return split_of(path) or other


def sort_files(names: list[str], log: ProblemLog) -> dict[str, list[str]]:
    """Sort files into splits; a single file without a split's name is the training data."""
    if len(names) == 1 and split_name(names[0]) is None:
        return {"train": names}
    if not any(split_name(name) for name in names):
        detail = (
            f"no name says train, valid or test: {', '.join(sorted(names)[:8])}; name one of "
            f"these files as the data, or rename it to train{PurePosixPath(names[0]).suffix}"
        )
        log.add("ambiguous_files", names[0], None, detail)
        return {}
    found = find_splits(names, log, split_of=lambda path: split_name(path.as_posix()))
    for split, files in found.items():
        stems = [file.removesuffix(PurePosixPath(file).suffix) for file in files]
        twice = [file for file, stem in zip(files, stems, strict=True) if stems.count(stem) > 1]
        if twice:
            log.add("ambiguous_files", twice[0], None, f"{split} stands in {', '.join(twice)}")
    if "train" not in found and len(found) > 0:
        detail = f"no train.*; there are {', '.join(sorted(names)[:8])}"
        log.add("missing_file", "train", None, detail)
    return {name: found[name] for name in MAIN_SPLITS if name in found}


def read_splits(files: Files, log: ProblemLog) -> dict[str, list[PlacedRow]]:
    """Rows of every split; a form that differs between splits is a finding too."""
    sorted_files = sort_files(files.names, log)
    if log.has_any("missing_file", "missing_shard", "ambiguous_files"):
        log.stop_if_needed()
    splits, kinds = {}, {}
    for split, names in sorted_files.items():
        reader = RowReader(log)
        for name in names:
            for line, record in read_records(files.folder / name, name, log):
                reader.add(record, name, line)
        reader.finish(names[0])
        splits[split] = reader.rows
        kinds |= {form.kind: f"{form.kind} in {names[0]}" for form in reader.forms}
    if len(kinds) > 1 and not log.has_any("mixed_columns"):
        log.add("mixed_columns", files.source, None, ", ".join(kinds.values()))
    return splits


def _read_smoke(log: ProblemLog) -> RawData:
    from ..samples import instructions as sample

    splits: dict[str, list[PlacedRow]] = {}
    for split, rows in sample.load_instruction_rows().items():
        reader = RowReader(log)
        for line, record in enumerate(rows, 1):
            reader.add(record, f"samples/{split}", line)
        reader.finish(f"samples/{split}")
        log.read(f"samples/{split}", len(rows))
        splits[split] = reader.rows
    return RawData(splits, SMOKE, None, SMOKE_LICENCE, sample.SAMPLE_NOTE)


def _unknown_source(source: Any, what: str) -> DataError:
    is_data = what == "data"
    sample = f"`{SMOKE}`, nor " if is_data else ""
    return DataError(
        f"{what}={shorten(source)} is neither {sample}a file or folder here, nor a data set on the "
        "hub (owner/name).",
        fix=f"write `{SMOKE}`, ./file.jsonl, ./folder or owner/name; a revision goes into "
        "data_revision."
        if is_data
        else "write ./file.jsonl, ./folder or owner/name.",
    )
