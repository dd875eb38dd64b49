"""The public door to the picker of presets: optional sugar that prints the equal lines of code.

Everything works without it. The picker itself stands in `picker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.picker import PresetPicker
from nbhelpers.picker_state import ADAPTERS

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware

__all__ = ["ADAPTERS", "PresetPicker", "pick_preset"]


def pick_preset(
    job: str,
    hardware: Hardware | None = None,
    *,
    preset: str = "auto",
    adapters: str = "",
    overrides: Mapping[str, Any] | None = None,
    any_job: bool = False,
    price_per_hour: float | None = None,
    max_hours: float | None = None,
) -> PresetPicker:
    """Return a picker of presets with their budgets, set to what the notebook's parameters say.

    Args:
        job: Such as `clones`.
        hardware: Found or planned; None: what is found here.
        preset: A name, a .yaml file, or `auto`.
        adapters: Of a fine-tuning: names with commas; "": the preset's own.
        overrides: Settings that differ from the preset.
        any_job: Offer the other jobs too.
        price_per_hour: Of the machine; a cost is then shown.
        max_hours: What a run may take; more is said, with what would be shorter.

    Raises:
        NbhelpersError: The values do not make a preset; with the fix.
    """
    return PresetPicker(
        job,
        hardware,
        preset=preset,
        adapters=adapters,
        overrides=overrides,
        any_job=any_job,
        price_per_hour=price_per_hour,
        max_hours=max_hours,
    )
