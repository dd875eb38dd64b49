"""Which files a source names, and which split each of them is.

Plain local files are read strictly and by line (`files`), a zip or tar of them as its folder. Data
sets of the hub, folders of `save_to_disk` and Arrow files come through `datasets` (`tables`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from nbhelpers.common.files import cache_dir, expanded, is_folder, kind_of
from nbhelpers.data import tables
from nbhelpers.data.files import (
    CSV_ENDINGS,
    ENDINGS,
    JSON_ENDINGS,
    LOCAL_LICENCE,
    MAIN_SPLITS,
    SMOKE,
    csv_head,
    ending_of,
    is_one_object,
    plain_name,
    read_records,
    shorten,
)
from nbhelpers.data.findings import Findings
from nbhelpers.data.hub import CARD, CARD_LOST, Files, fetch, is_repo_id
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.checks import ARCHIVES, DATASET_PREFIX

USUAL = {"google-research-datasets/mbpp": "full"}  # of the configurations that stand side by side
RECORDS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def find_files(
    source: str,
    revision: str | None,
    findings: Findings,
    *,
    what: str = "data",
    endings: tuple[str, ...] = ENDINGS,
    layout: Callable[[list[str]], list[str]] | None = None,
    lack: str = f"no files of rows ({', '.join((*JSON_ENDINGS, '.parquet', '.csv'))})",
    needed: str = "train.jsonl",
    look: bool = False,
) -> Files:
    """The files that a source names: one file, those of a folder, or those on the hub.

    Args:
        source: A path, or a data set on the hub: `owner/name`, `owner/name:configuration`,
            `owner/name:configuration:split` or `owner/name::split`.
        revision: Branch, tag or commit on the hub.
        findings: Gets notes on what was ignored or cached.
        what: Name of the parameter, for errors.
        endings: Of local files.
        layout: Which of a hub data set's files are read as they stand there, if any are.
        lack: What the hub's data set has not where nothing is chosen.
        needed: What a folder without such files needs.
        look: Only ask the hub whether they may be had.

    Raises:
        DataError: Nothing of the kind is there or can be reached, or it is not clear what is meant.
    """
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise _unknown_source(source, what)
    path = expanded(source, what)
    if not source.startswith(DATASET_PREFIX) and (kind := kind_of(path)):
        if revision is not None:
            findings.add("ignored_revision", source, None, f"revision {revision!r}")
        files = _local_files(path, kind, source, endings, needed)
        empty = [name for name, table in files.tables.items() if not len(table)]
        for name in empty:  # missed only where it is needed
            findings.add("ignored_file", name, None, "it has no rows")
        return files._replace(names=[name for name in files.names if name not in empty])
    place, _, choice = source.removeprefix(DATASET_PREFIX).partition(":")
    configuration, _, split = choice.partition(":")
    owner, name, *folders = [*place.split("/"), ""]
    repo_id, configuration = f"{owner}/{name}", configuration or "/".join(folders).strip("/")
    if not source.startswith(DATASET_PREFIX):
        _refuse_lost_path(source, endings)
    if not is_repo_id(repo_id):
        raise _unknown_source(source, what)
    asked, splits, others = configuration, dict[str, str](), list[str]()
    card_used, packed = dict[str, Any](), list[str]()  # as `choose` met them last

    def choose(names: list[str], card: Mapping[str, Any]) -> list[str]:
        nonlocal card_used, packed
        splits.clear()
        if layout and (own := layout(names)):
            return own
        try:
            _configurations(card)
        except (AttributeError, TypeError):  # what it says of files has not the hub's form
            findings.add("ignored_file", CARD, None, CARD_LOST)
            card = {}
        card_used, packed = dict(card), [name for name in names if _is_packed(name)]
        if packed and not any(is_data(PurePosixPath(name)) for name in names):
            folder = "" if card.get("configs") else asked  # its archives are enough
            return [n for n in packed if _is_in(f"{_unpacked_name(n)}/", folder)] or packed
        return select(names)

    def select(names: list[str], inside: Mapping[str, str] | None = None) -> list[str]:
        nonlocal configuration, others
        configuration, chosen, others = _of_configuration(
            repo_id, asked, split, names, card_used, inside
        )
        names = list(chosen)
        if split:
            names = _of_split(f"{repo_id}:{configuration}:", split, chosen)
        folders = {_configuration(name) for name in names} - {""}
        if split and not configuration and len(folders) > 1:
            state = f"{repo_id} has several configurations"
            raise _which(state, f"{repo_id}:", folders, f":{split}")
        splits.update((name, "train" if split else chosen[name]) for name in names)
        return names

    files = fetch(repo_id, revision, findings, choose=choose, lack=lack, look=look)
    if look:
        return files
    if _is_packed(files.names[0]):
        is_asked = bool(asked) and _is_in(f"{_unpacked_name(files.names[0])}/", asked)
        is_apart = len(packed) > 1 or is_asked or bool(card_used.get("configs"))
        paths = [files.folder / name for name in files.names]
        inside = unpacked(*paths, root=files.folder if is_apart else None)
        local = _local_files(inside, "folder", source, endings, needed)
        words = dict(local.splits)
        for name in files.names if is_apart else ():
            own = [n for n in local.names if n.startswith(f"{_unpacked_name(name)}/")]
            if not own:
                findings.add("ignored_file", name, None, "it holds no file of rows")
            word = _words(f"{_unpacked_name(name)}.x")[0]
            if word in SPLIT_NAMES or word.startswith("test_"):
                words.update((n, word) for n in own if split_of(n) is None)
        if local.tables or (layout and layout(local.names)):
            names = _of_split(f"{repo_id}::", split, words) if split else local.names
            splits.update((name, "train" if split else words.get(name, "")) for name in names)
        else:
            names = select(local.names, words)
        files = files._replace(folder=local.folder, names=names, tables=local.tables)
    elif packed:
        more = f", as are {len(packed) - 1} more" if packed[1:] else ""
        detail = f"it is an archive beside files of rows{more}"
        findings.add("ignored_file", packed[0], None, detail, n=len(packed))
    if others and not asked:
        detail = f"of other configurations than {configuration}: {', '.join(others)}"
        findings.add("ignored_file", repo_id, None, detail, n=len(others))
    parts = [configuration, split] if split else [configuration] * (configuration != "default")
    return files._replace(
        source=":".join([repo_id, *parts]).rstrip(":"),
        splits={name: word for name, word in splits.items() if word},
        choice=f"{repo_id}:{configuration}:",
    )


def open_file(files: Files, name: str) -> Path | tables.Table:
    """What the rows of one of these files are read from: itself, or a table of `datasets`."""
    if name in files.tables:
        return files.tables[name]
    path = files.folder / name
    ending, options = ending_of(path), {}
    is_plain = ending != ".arrow" and files.revision is None
    if is_plain or (ending == ".json" and is_one_object(path)):  # `datasets` would repeat it
        return path
    if ending in CSV_ENDINGS:
        options["delimiter"], options["header"] = csv_head(path)
    table = tables.open_file(path, ending, **options)
    return path if table is None else table


COUNTED_BYTES = 8 * 2**20  # of a text that is read to count its rows: a tenth of a second


def count_rows(source: str) -> dict[str, int]:
    """Rows of each split of local data ("": of none), bad ones too; empty where that takes long.

    Only what tells its number of rows, or is small, is counted; the hub is not asked.
    """
    if not source or kind_of(source) not in ("file", "folder"):
        return {}
    try:
        return rows_in(source)
    except (DataError, ConfigError, ImportError):  # told when the data is read
        return {}


def rows_in(source: str) -> dict[str, int]:
    """As `count_rows`, of a file or folder that is there.

    Raises:
        DataError: It holds no files of rows, or one that cannot be read.
    """
    counts: dict[str, int] = {}
    is_layout = any((expanded(source) / name).exists() for name in ("data.jsonl", "train.txt"))
    endings = (".txt",) if is_layout else ENDINGS
    files = _local_files(expanded(source), kind_of(source), source, endings, "files of rows")
    for name in files.names:
        path = files.folder / name
        try:
            if files.tables:
                n = len(files.tables[name])
            else:
                n = _count(path, path.stat().st_size, path.stat().st_mtime_ns)
        except (OSError, ValueError) as error:
            text = f"{name} cannot be read: {error}."
            raise DataError(text, fix="copy or download it again") from error
        if n is None:
            return {}
        split = split_in(files, name) or ""
        counts[split] = counts.get(split, 0) + n
    return counts


@lru_cache(maxsize=256)
def _count(path: Path, size: int, changed: int) -> int | None:
    """Rows of a file of this size and time; None where counting them takes long."""
    if ending_of(path) == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_metadata(path).num_rows
    if path.suffix in (".txt", ".jsonl", ".ndjson"):
        with path.open("rb") as stream:
            return sum(block.count(b"\n") for block in iter(lambda: stream.read(2**20), b""))
    findings = Findings("drop", path.name)
    if size > COUNTED_BYTES or ending_of(path) == ".arrow":
        return None
    n = sum(1 for _ in read_records(path, path.name, findings))
    findings.stop_if_needed()
    return n + findings.n_problems


# ------------------------------------------------------------------------------------------------
# Local files, and why a text names none.


def is_data(name: PurePath, endings: tuple[str, ...] = ENDINGS) -> bool:
    """Whether a file is read as rows, by its name: hidden ones and records about data are not."""
    is_hidden = any(part.startswith(".") for part in name.parts)
    return ending_of(name) in endings and not is_hidden and name.name not in RECORDS


def _local_files(
    path: Path, kind: str, source: str, endings: tuple[str, ...], needed: str
) -> Files:
    if kind == "file" and path.name.lower().endswith(ARCHIVES):
        files = _local_files(unpacked(path), "folder", source, endings, needed)
        return files._replace(choice="")  # its folder is a cache
    if kind == "file":
        if ending_of(path) not in endings:
            raise DataError(
                f"{source} cannot be read: its name ends in {path.suffix or 'nothing'}.",
                fix=f"write the rows as one of {', '.join(endings)}.",
            )
        return Files(path.parent, [path.name], source, None, LOCAL_LICENCE)
    if saved := tables.open_saved(path) if kind == "folder" else None:
        splits = {name: name for name in saved if name != tables.ONE}
        return Files(path, [*saved], source, None, LOCAL_LICENCE, saved, splits, f"{source}/")
    try:
        if kind != "folder":
            raise PermissionError(None, "it is no plain file or folder, or it may not be looked at")
        names = [
            file.relative_to(path).as_posix()
            for file in sorted(path.rglob("*"))
            if is_data(file.relative_to(path), endings) and file.is_file()
        ]
        there = sorted(child.name for child in path.iterdir())
    except OSError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}.", fix=f"chmod -R u+rX {source}"
        ) from error
    if not names:
        what = "archive" if source.lower().endswith(ARCHIVES) else "folder"
        raise DataError(
            f"The {what} {source} holds no file that is read ({', '.join(endings)}).",
            fix=f"put {needed} there, or name another {what}.",
            details=f"it holds: {', '.join(there[:12]) or 'nothing'}",
        )
    return Files(path, names, source, None, LOCAL_LICENCE)


# What unpacking raises where an archive is cut, damaged, encrypted, or packed in an unknown way.
BROKEN = (OSError, ValueError, EOFError, RuntimeError, lzma.LZMAError, zlib.error)
BROKEN += (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile)


PACKERS = dict(zip(ARCHIVES, ("zip", "tar", "gztar", "gztar", "bztar", "xztar"), strict=True))


def unpacked(*paths: Path, root: Path | None = None) -> Path:
    """The folder that archives were unpacked to, which is a cache.

    Args:
        paths: One archive, or several.
        root: Where they lie, if each gets a folder of its own: its name without the ending.

    Raises:
        DataError: One cannot be unpacked.
        ConfigError: The cache is full, or it may not be written.
    """
    names = [_unpacked_name(path.relative_to(root).as_posix()) if root else "" for path in paths]
    if twice := [
        path.name for path, name in zip(paths, names, strict=True) if names.count(name) > 1
    ]:
        text = f"{' and '.join(twice)} would be unpacked to the same folder."
        raise DataError(text, fix="download the one that is meant, and give it as the data")
    stats = [(path.resolve(), path.stat()) for path in paths]
    keys = [f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}" for path, stat in stats]
    key = "\0".join([*keys, *filter(None, names)])
    folder = cache_dir() / "unpacked" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if _is_whole(folder):
        return folder / "files"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent))  # other ranks may unpack it at once
    except OSError as error:
        raise _cache_lost(error) from error
    try:
        for path, name in zip(paths, names, strict=True):
            _unpack(path, part / "files" / name)
        (part / SIZES).write_text(json.dumps(_sizes(part / "files")), encoding="utf-8")
    except OSError as error:
        raise _cache_lost(error) from error
    else:
        if folder.is_dir() and not _is_whole(folder):  # it lost files, or an older version wrote it
            with contextlib.suppress(OSError):
                folder.rename(part / "lost")
        with contextlib.suppress(OSError):  # another rank was first
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(folder / "lost", ignore_errors=True)
    if not _is_whole(folder):
        raise _cache_lost(OSError(errno.EACCES, f"{folder} lost files and cannot be replaced"))
    return folder / "files"


SIZES = "sizes.json"  # of the files beside it, as they were unpacked
NO_CACHE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def _sizes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _is_whole(folder: Path) -> bool:
    """Whether all that was unpacked is there: what cleans a cache takes single files."""
    try:
        sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
        return sizes.items() <= _sizes(folder / "files").items()
    except (OSError, ValueError):
        return False


def _cache_lost(error: OSError) -> ConfigError:
    place = f"The cache {cache_dir()}, where archives are unpacked,"
    why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
    fix = "make space there, or set NBHELPERS_CACHE to a folder that has some and may be written"
    return ConfigError(f"{place} {why}: {error.strerror or error}.", fix=fix)


def _unpack(path: Path, folder: Path) -> None:
    """Unpack one archive; an `OSError` is one of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    packer = next(kind for end, kind in PACKERS.items() if path.name.lower().endswith(end))
    try:
        if packer == "zip":
            _refuse_outside(path)
        only_data = {} if packer == "zip" else {"filter": "data"}
        shutil.unpack_archive(path, folder, packer, **only_data)
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno in NO_CACHE and error.filename != str(path):
            raise
        raise DataError(
            f"{path.name} cannot be unpacked: {error}.", fix="pack or download it again"
        ) from error


def _is_packed(name: str) -> bool:
    is_hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
    return name.lower().endswith(ARCHIVES) and not is_hidden


def _unpacked_name(name: str) -> str:
    """An archive's name without the ending.

    >>> _unpacked_name("data/Train.TAR.gz"), _unpacked_name("x/*.zip")
    ('data/Train', 'x/*')
    """
    return name[: -len(next(end for end in ARCHIVES if name.lower().endswith(end)))]


def _refuse_outside(path: Path) -> None:
    """Stop where a zip has files with a place outside of it, which are left out without a word."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise shutil.ReadError(f"{name!r} would be put outside of its folder")


def _refuse_lost_path(source: str, endings: tuple[str, ...]) -> None:
    """Stop at once where a text is meant as a path and nothing is there; the hub is not asked."""
    path = expanded(source, "data")
    is_path = (
        source.startswith((".", "/", "~"))
        or source.endswith(("/", *endings))
        or "\\" in source
        or (len(path.parts) > 1 and is_folder(path.parts[0]))
    )
    if not is_path or "://" in source:
        return
    parent = next((p for p in path.parents if is_folder(p)), Path())
    try:
        there = sorted(p.name for p in parent.iterdir())[:12]
    except OSError:
        there = ["what may not be listed"]
    raise DataError(
        f"There is no file or folder {source}.",
        fix=f"correct the path (for a data set on the hub write {DATASET_PREFIX}owner/name).",
        details=f"{parent} holds: {', '.join(there) or 'nothing'}",
    )


def _unknown_source(source: object, what: str) -> DataError:
    is_main = what == "data"
    sample = f"`{SMOKE}`, nor " if is_main else ""
    revision = "; a revision is given apart (data_revision)." if is_main else "."
    return DataError(
        f"{what}={shorten(source)} is neither {sample}a file or folder here, nor a data set on the "
        "hub (owner/name).",
        fix=f"write {f'`{SMOKE}`, ' if is_main else ''}./file.jsonl, ./folder or owner/name"
        + revision,
    )


# ------------------------------------------------------------------------------------------------
# Of a data set on the hub, the files of one configuration, and of one split where one is asked for.


def _of_configuration(
    repo_id: str,
    asked: str,
    split: str,
    names: list[str],
    card: Mapping[str, Any],
    inside: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, str], list[str]]:
    """A configuration, its files with the splits that the card gives them (else ""), the others.

    `inside` is given for files that were unpacked: all are read, and it tells splits by archives.

    Raises:
        DataError: It is not clear which configuration is meant, or there is none of this name.
    """
    by_card, ending = _configurations(card), f":{split}" if split else ""
    marked = [str(e.get("config_name")) for e in card.get("configs") or [] if e.get("default")]
    usual = [USUAL.get(repo_id), *marked, "default"]
    if by_card:
        there = list(by_card)
        usual += there[:1] * (len(there) == 1)
        wanted = asked or next((name for name in usual if name in by_card), "")
        patterns = by_card.get(wanted, [])
        files = {n: split for split, p in patterns for n in names if fnmatchcase(n, p)}
        chosen = {name: split for name, split in files.items() if is_data(PurePosixPath(name))}
    else:
        folders = {n: _configuration(n) for n in names if is_data(PurePosixPath(n))}
        there = sorted({*folders.values()} - {""})
        wanted = asked or next((name for name in usual if name in there), "")
        own = [name for name in names if _is_in(name, wanted)]
        chosen = dict.fromkeys(_of_one_format(own) if inside is None else own, "")
    chosen = {name: word or (inside or {}).get(name, "") for name, word in chosen.items()}
    if chosen or not (asked or by_card):
        return wanted, chosen, [name for name in there if wanted and name != wanted]
    if not wanted:
        raise _which(f"{repo_id} has several configurations", f"{repo_id}:", there, ending)
    if wanted in by_card:
        lost = ", ".join(pattern for _, pattern in patterns)
        text = f"{repo_id} lacks the files of its configuration {wanted}: {lost}."
        raise DataError(
            text, fix="name a revision that has them, or download the set and name its files"
        )
    state = f"{repo_id} has no configuration {wanted}"
    own = {name for name, parts in by_card.items() if asked in dict(parts)}
    if not by_card:
        own = {folder for n, folder in folders.items() if asked in _all_words(n, inside)}
    if own and not split:  # a colon is missing
        choices = " or ".join(f"data={repo_id}:{name}:{asked}" for name in sorted(own)[:3])
        raise DataError(f"{state}, but a split of this name.", fix=f"name it so: {choices}")
    raise _which(f"{state} with rows", f"{repo_id}:", there, ending)


def _all_words(name: str, inside: Mapping[str, str] | None) -> set[str | None]:
    return {*_words(name), split_of(name), (inside or {}).get(name)}


def _configurations(card: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The configurations of a data set's card: splits ("": by the file's name) and patterns.

    Source: huggingface.co/docs/hub/datasets-manual-configuration.
    """
    configurations: dict[str, list[tuple[str, str]]] = {}
    for entry in card.get("configs") or []:
        folder = str(entry.get("data_dir") or "").strip("/")
        files = entry.get("data_files", "**")
        parts = [("" if files == "**" else "train", files)]
        if isinstance(files, list) and all(isinstance(part, dict) for part in files):
            parts = [(str(part.get("split", "train")), part.get("path", "")) for part in files]
        configurations[str(entry.get("config_name", "default"))] = [
            (split, f"{folder}/{inside}".lstrip("/").replace("**/", "*"))
            for split, paths in parts
            for path in ([paths] if isinstance(paths, str) else paths)
            for inside in [f"{_unpacked_name(path)}/*" if _is_packed(path) else path]
        ]
    return configurations


def _is_in(name: str, folder: str) -> bool:
    return not folder or f"/{folder}/" in f"/{name}"


def _configuration(name: str) -> str:
    """The folder of a file, apart from those named for a split, for a part of it or all data."""
    parts = [part.removeprefix("partial-") for part in PurePosixPath(name).parent.parts]
    names = [_SHARD.sub("", part) if "-of-" in part else part for part in parts]
    return "/".join(name for name in names if name != "data" and name not in SPLIT_NAMES)


def _of_one_format(names: list[str]) -> list[str]:
    """Parquet files where there are any, else those that name a split, else all files of rows."""
    rows = [name for name in names if is_data(PurePosixPath(name))]
    parquet = [name for name in rows if ending_of(PurePosixPath(name)) == ".parquet"]
    return parquet or [name for name in rows if split_of(name) is not None] or rows


def _of_split(choice: str, split: str, splits: Mapping[str, str]) -> list[str]:
    """The files of one split, as the card calls it, else as their names do.

    Raises:
        DataError: There is none of this name.
    """
    words = {n: {word} if word else {*_words(n), split_of(n)} for n, word in splits.items()}
    if files := [name for name, own in words.items() if split in own]:
        return files
    there = {word or split_of(name) or _words(name)[0] for name, word in splits.items()}
    raise _which(f"{choice.rstrip(':')} has no split {split}", choice, there)


def _which(state: str, choice: str, names: Iterable[str], ending: str = "") -> DataError:
    """The error of a choice that is left open, with its names and how one is written."""
    there = sorted(names)
    fix = f"name one: {' or '.join(f'data={choice}{n}{ending}' for n in there[:3])}"
    return DataError(
        f"{state}; there {'is' if len(there) == 1 else 'are'} {', '.join(there) or 'none'}.",
        fix=fix if there else f"leave it out: data={choice.rstrip(':')}",
    )


# ------------------------------------------------------------------------------------------------
# Which split a file is: by its name, as `datasets` names files, or by its folder's.


SPLIT_NAMES = {
    **dict.fromkeys(("train", "train_sft"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "test_sft"), "test"),
}
# train-00001-of-00004-1a2b3c4d5e6f7081: a part's number, that of all parts, a hash.
_SHARD = re.compile(r"[-_.](?P<part>\d{1,6})(?:-of-(?P<parts>\d{1,6})(?:-[0-9a-f]{16})?)?$")


def split_of(name: str) -> str | None:
    """Split that a file belongs to, by its name or else its folder's; `test_x` is one of its own.

    >>> split_of("data/validation-00000-of-00001-0123456789abcdef.parquet"), split_of("dev.json")
    ('valid', 'valid')
    >>> split_of("default/partial-test/0000.parquet"), split_of("my_rows.csv")
    ('test', None)
    """
    for word in _words(name):
        if word in SPLIT_NAMES or word.startswith("test_"):
            return SPLIT_NAMES.get(word, word)
    return None


def split_in(files: Files, name: str) -> str | None:
    """Split that one of these files belongs to, by what is said of it, else by its name."""
    word = files.splits.get(name)
    return SPLIT_NAMES.get(word, word) if word else split_of(name)


def _words(name: str) -> tuple[str, str]:
    """What a file's name says without the number of its part, and what its folder's says."""
    path = PurePosixPath(name)
    words = _SHARD.sub("", _stem(path)), path.parent.name
    return words[0].removeprefix("partial-"), words[1].removeprefix("partial-")


def _stem(path: PurePosixPath) -> str:
    return PurePosixPath(plain_name(path.name)).stem


def sort_files(
    files: Files, findings: Findings, *, require: tuple[str, ...] = ("train",)
) -> dict[str, list[str]]:
    """Sort files into splits; what has one split of another name is the training data.

    Raises:
        DataError: A split or a part of one is missing, or it is not clear which file is what.
    """
    names = _of_one_configuration(files, findings)
    files_of: dict[str, list[str]] = {}
    for name in names:
        files_of.setdefault(split_in(files, name) or "", []).append(name)
    unsorted, listed = files_of.pop("", []), ", ".join(names[:8])
    others = [split for split in files_of if split not in MAIN_SPLITS]
    if len(names) == 1 and unsorted:
        files_of = {"train": names}
    elif len(files_of) == 1 and others and not unsorted and files.splits:
        files_of = {"train": files_of.pop(others[0])}
    elif not files_of and files.choice:
        state = f"{files.source} has several files, and no name says train"
        raise _which(state, files.choice, {_words(name)[0] for name in names})
    elif not files_of:
        detail = (
            f"no name says train, valid or test: {listed}; name one of "
            f"these files as the data, or rename it to train{PurePosixPath(names[0]).suffix}"
        )
        findings.add("ambiguous_files", names[0], None, detail)
        findings.stop_if_needed()
    else:
        for name in unsorted:
            findings.add("ignored_file", name, None, "no split in its name")
    lost = [split for split in require if split not in files_of]
    if lost and files.choice:
        state = f"{files.source} has no split {', '.join(lost)}"
        if empty := [name for name in files.tables if name not in files.names]:
            state += f" (without rows: {', '.join(empty)})"
        if lost == ["train"]:  # another one can stand for it
            words = {files.splits.get(name) or _words(name)[0] for name in names}
            raise _which(state, files.choice, words)
        fix = "give it too, in a DatasetDict of train, validation and test, or a file of each"
        raise DataError(f"{state}; there is {', '.join(files_of)}.", fix=fix)
    for split in require:
        if split not in files_of:
            findings.add("missing_file", split, None, f"no {split}.*; there are {listed}")
    for split, parts in files_of.items():
        _check_parts(split, parts, files, findings)
    if findings.has_any("missing_file", "missing_shard", "ambiguous_files"):
        findings.stop_if_needed()
    others = [split for split in files_of if split not in MAIN_SPLITS]
    return {split: files_of[split] for split in (*MAIN_SPLITS, *others) if split in files_of}


def _of_one_configuration(files: Files, findings: Findings) -> list[str]:
    """Of a data set with a folder for each configuration the one that is named `default`."""
    names = sorted(files.names)
    default = [name for name in names if _configuration(name) == "default"]
    if not default or len(default) == len(names):
        return names
    other = next(name for name in names if name not in default)
    n = len(names) - len(default)
    findings.add("ignored_file", other, None, "of another configuration than default", n=n)
    return default


def _check_parts(split: str, names: list[str], files: Files, findings: Findings) -> None:
    """Parts that are missing or stand twice."""
    folders = sorted({str(PurePosixPath(name).parent) for name in names})
    if len(folders) > 1 and names[0] not in files.splits:
        if files.choice:
            choice = files.choice.partition(":")[0]
            there = {_configuration(name) for name in names}
            raise _which(f"{files.source} has several configurations", f"{choice}:", there)
        detail = f"{split} stands in {', '.join(folders)}"
        findings.add("ambiguous_files", names[0], None, detail)
        return
    stems = [_stem(PurePosixPath(name)) for name in names]
    if twice := [name for name, stem in zip(names, stems, strict=True) if stems.count(stem) > 1]:
        findings.add("ambiguous_files", twice[0], None, f"{split} stands in {', '.join(twice)}")
    numbers = [match for stem in stems if (match := _SHARD.search(stem)) and match["parts"]]
    parts = [int(match["part"]) for match in numbers]
    totals = {int(match["parts"]) for match in numbers}
    if numbers and (len(totals) > 1 or len(numbers) < len(stems) or len(set(parts)) < len(parts)):
        lost = "one numbering of its parts: files of two exports are mixed"
        findings.add("missing_shard", names[0], None, f"{split} lacks {lost}")
    elif numbers and (missing := sorted(set(range(total := max(totals))) - set(parts))):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        lost = f"part {missing[0]:05d} of {total:05d}{more}"
        findings.add("missing_shard", names[0], None, f"{split} lacks {lost}")
