"""Data through the library `datasets`: files of the hub, folders of `save_to_disk`, Arrow files.

Torch is not imported here, as the kernel side reads data too: only where it is loaded already is a
Parquet file streamed, which needs it; else `datasets` first writes its rows to its own cache.
"""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbhelpers.errors import DataError

Table = Any  # a `datasets.Dataset`, or an `IterableDataset` of a streamed file
KINDS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    ".parquet": "parquet",
    ".arrow": "arrow",
}
ONE = "rows"  # the name of a data set without splits
SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder


def open_file(
    path: Path, ending: str, *, delimiter: str = ",", header: tuple[str, ...] = ()
) -> Table | None:
    """The rows of a file, or None where `datasets` cannot read it: a strict reader says why.

    Args:
        path: The file.
        ending: Tells the format.
        delimiter: Of CSV.
        header: Columns of CSV; cells stay text as they stand there, else 007 became 7.
    """
    import datasets

    options: dict[str, Any] = {}
    if KINDS[ending] == "csv":
        features = datasets.Features({name: datasets.Value("string") for name in header})
        options = {"sep": delimiter, "keep_default_na": False, "features": features}
    elif ending == ".parquet":
        options = {"streaming": "torch" in sys.modules}
    with _quiet(datasets):
        try:
            files = glob.escape(str(path))
            table = datasets.load_dataset(KINDS[ending], data_files=files, split="train", **options)
        except Exception:  # it wraps whatever its readers raise
            return None
    # Of a text like 2020-01-03T00:00:00 Arrow makes a time, which would come back as another text.
    has_times = KINDS[ending] == "json" and "timestamp[" in str(table.features.arrow_schema.types)
    return None if has_times else table


def open_saved(folder: Path) -> Mapping[str, Table] | None:
    """The splits that `save_to_disk` wrote to a folder, or `ONE`; None of any other folder.

    A split without rows is an empty table, which has no columns.

    Raises:
        DataError: It is such a folder, and damaged, or without any rows.
    """
    if not any((folder / name).is_file() for name in SAVED):
        return None
    import datasets

    def load(part: Path) -> Table:
        files = json.loads((part / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return datasets.load_from_disk(str(part)) if files else datasets.Dataset.from_dict({})

    try:
        data = {ONE: folder}
        if (folder / SAVED[0]).is_file():
            names = json.loads((folder / SAVED[0]).read_text(encoding="utf-8"))["splits"]
            data = {name: folder / name for name in names}
        data = {name: load(part) for name, part in data.items()}
    except Exception as error:  # as many as there are ways to damage a folder
        raise DataError(
            f"{folder} was written by save_to_disk, but cannot be read: "
            f"{str(error).splitlines()[0][:200] if str(error) else type(error).__name__}.",
            fix="save it again: dataset.save_to_disk(folder)",
        ) from error
    if not any(map(len, data.values())):
        state = f"{folder} has no rows (splits: {', '.join(sorted({*data} - {ONE})) or 'none'})."
        raise DataError(state, fix="save a data set with rows there: dataset.save_to_disk(folder)")
    return data


def batches(table: Table, batch_rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Record batches of a table, in its order."""
    table = table.select_columns(list(columns)) if columns else table
    for part in table.with_format("arrow").iter(batch_size=batch_rows):
        yield from part.combine_chunks().to_batches()


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars, and no count of downloads sent to the hub for a file that lies here."""
    bars, counts = datasets.are_progress_bars_disabled(), datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counts
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()
