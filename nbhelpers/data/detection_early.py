"""Detection data read and audited by a process of its own, while a worker loads its libraries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nbhelpers.common.pool import begin_chain
from nbhelpers.data.audit import Audit, audit
from nbhelpers.data.detection import DetectionData, data_arguments, load_detection_data

if TYPE_CHECKING:
    from nbhelpers.presets.schema import DetectorSettings


class Early(NamedTuple):
    """What waits for the data, and for their audit; None: they are not audited."""

    data: Callable[[], DetectionData]
    audit: Callable[[], Audit] | None


def begin_reading(settings: DetectorSettings) -> Early:
    """Begin to read what a run trains on, then to audit it."""
    work = (audit,) if settings.objective != "similar" else ()
    data, *reports = begin_chain(partial(_read, settings), *work)
    return Early(data=data, audit=reports[0] if reports else None)


def _read(settings: DetectorSettings) -> DetectionData:
    return load_detection_data(**data_arguments(settings))
