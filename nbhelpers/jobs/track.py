"""The optional experiment tracker, through Accelerate; never a login prompt."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from nbhelpers.jobs.context import RunContext


def check_tracker(name: str) -> list[str]:
    """Return what is missing for the chosen tracker; Accelerate itself would only warn."""
    if name == "none" or find_spec(name):
        return []
    return [f"track={name} needs the package {name}: pip install {name}, or track=none"]


def start_tracker(accelerator: Any, settings: Any) -> None:
    """Start the chosen tracker without ever asking for a login."""
    os.environ.setdefault("WANDB_SILENT", "true")
    if settings.track == "wandb" and not os.environ.get("WANDB_API_KEY"):
        os.environ.setdefault("WANDB_MODE", "offline")
    plain = (int, float, str, bool)
    config = {k: v for k, v in settings.model_dump().items() if isinstance(v, plain)}
    accelerator.init_trackers("nbhelpers", config=config)


def emitter(context: RunContext) -> Callable[..., None]:
    """Return what the loop calls for each event: the event file, and a tracker if chosen."""

    def emit(kind: str, **fields: Any) -> None:
        context.emit(kind, **fields)
        if kind == "step" and context.settings.track != "none":
            numbers = {k: fields[k] for k in ("loss", "learning_rate", "grad_norm")}
            context.accelerator.log(numbers, step=fields["step"])

    return emit
