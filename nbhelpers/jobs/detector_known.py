"""What an evaluation must share with the training of its detector, and what it must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.detection import DetectionData, load_detection_data
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_further import left_out_said, new_rows
from nbhelpers.json_models import read_raw
from nbhelpers.models.detector_build import FACTS_FILE
from nbhelpers.result_files import DetectorFile, Record

if TYPE_CHECKING:
    from nbhelpers.schema import DetectorSettings

MODEL = ("objective", "pooling", "similarity_pooling", "projection_size")


def data_arguments(settings: DetectorSettings | Mapping[str, Any]) -> dict[str, Any]:
    """Return what `load_detection_data` takes, from settings or their saved form."""
    s: Any = SimpleNamespace(**settings) if isinstance(settings, Mapping) else settings
    return {
        "source": s.data,
        "revision": s.data_revision,
        "on_bad_rows": s.on_bad_rows,
        "canonical": s.canonical,
        "languages": tuple(s.languages),
        "split": s.split,
        "split_seed": s.split_seed,
        "valid_share": s.valid_share,
        "test_share": s.test_share,
        "hold_out": s.hold_out,
        "train_fraction": s.train_fraction,
        "max_train_samples": s.max_train_samples,
        "seed": s.seed,
        "labelled": s.objective != "similar",
    }


def require_alike(checkpoint: Path | None, settings: Mapping[str, Any]) -> None:
    """Stop where settings are not those that the checkpoint's `detector.json` tells.

    Raises:
        ConfigError: Names each.
    """
    if checkpoint is None:
        return
    told = read_raw(DetectorFile, checkpoint.parent / FACTS_FILE)
    odd = [name for name, value in settings.items() if name in told and told[name] != value]
    if odd:
        raise ConfigError(
            f"{checkpoint.parent.name} was trained with "
            f"{', '.join(f'{name}={told[name]}' for name in odd)}, and is to be scored with "
            f"{', '.join(f'{name}={settings[name]}' for name in odd)}.",
            fix=" ".join(f"-o {name}={told[name]}" for name in odd),
        )


def without_known(context: RunContext, data: DetectionData) -> DetectionData:
    """Return the data of an evaluation without test rows that its detector was trained on.

    Other splits of the same data, or other data that share rows with them, put programs of the
    training into the test.

    Raises:
        DataError: Nothing is left, or one class.
    """
    if context.checkpoint is None:
        return data
    record = read_raw(Record, context.checkpoint.parents[2] / "run.json")
    told = (record.get("preset") or {}).get("settings")
    if not told or data_arguments(told) == data_arguments(context.settings):
        return data
    try:
        trained = load_detection_data(**data_arguments(told))
    except DataError as error:
        context.warn(f"Whether the test holds programs of the training is not known: {error}")
        return data
    known = [trained.rows[at] for name in ("train", "valid") for at in trained.splits[name]]
    splits = dict(data.splits)
    for name in ("test", "held_out"):
        if name not in splits:
            continue
        rows = [data.rows[at] for at in splits[name]]
        kept, left_out = new_rows(rows, known)
        ids = {id(row) for row in kept}
        splits[name] = splits[name][np.array([id(row) in ids for row in rows], dtype=bool)]
        if left_out:
            context.warn(
                f"{name}: {len(rows) - len(kept):,} of {len(rows):,} programs are left out: "
                f"{left_out_said(left_out)}."
            )
    _require_rows(data, splits["test"], is_labelled=context.settings.objective != "similar")
    return replace(data, splits=splits)


def _require_rows(data: DetectionData, test: np.ndarray, *, is_labelled: bool) -> None:
    labels = {data.rows[at].label for at in test}
    if len(labels) < (2 if is_labelled else 1):
        left = f"all but {next(iter(labels))} code" if labels else "every program"
        raise DataError(
            f"In the test split of {data.source} {left} is known to the detector from its "
            "training.",
            fix="leave the split as the run had it, or name data that are new to it; for people's "
            "code alone set unseen_humans",
        )
