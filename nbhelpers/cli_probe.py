"""`nbhelpers probe`: a few steps of a run, then its time and memory as they were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbhelpers.cli_text import typed_path
from nbhelpers.errors import ConfigError

INTERRUPTED = 130  # what shells use for Ctrl-C


def _above_zero(option: typer.CallbackParam, value: float | None) -> float | None:
    """Refuse a limit or a price before anything is computed, let alone run.

    Raises:
        ConfigError: It is no number above zero.
    """
    if value is None or 0 < value < float("inf"):
        return value
    name = option.opts[0]
    text = f"{name} {value:g} is no number above zero."
    raise ConfigError(text, fix=f"write for instance {name} 3, or leave it out")


MaxHours = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="The hours that there are; what ends in them is told."),
]
Price = Annotated[
    float | None,
    typer.Option("--price", callback=_above_zero, help="Of the machine, per hour."),
]
Currency = Annotated[str, typer.Option(help="What the price is in, as you write it.")]


def probe(
    job: Annotated[str, typer.Argument(help="The job: clones, finetune or detector.")],
    preset: Annotated[
        str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")
    ] = "auto",
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", help="A setting, as name=value; repeatable."),
    ] = None,
    run_dir: Annotated[
        Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
    ] = Path("runs"),
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
    force: Annotated[bool, typer.Option(help="Also where it is predicted not to fit.")] = False,
) -> None:
    """Make some 20 steps of a run, and tell the time and memory of all of it from them."""
    from nbhelpers.batching import plan_batch
    from nbhelpers.budgets import predict_memory
    from nbhelpers.config import load_preset
    from nbhelpers.hardware import detect_hardware
    from nbhelpers.parameters import parse_overrides
    from nbhelpers.timing_probe import probe as run_probe

    hardware = detect_hardware()
    values = parse_overrides(job, override or [])
    chosen = load_preset(job, preset, hardware=hardware, overrides=values)
    if getattr(chosen.settings, "method", "") == "base":
        raise ConfigError("method=base trains nothing to probe.", fix="set method=lora or qlora")
    plan = plan_batch(chosen, hardware)
    found = run_probe(
        chosen,
        plan,
        predict_memory(chosen, plan, hardware),
        hardware=hardware,
        run_dir=run_dir,
        force=force,
        max_hours=max_hours,
        price_per_hour=price,
        currency=currency,
    )
    if found is None:
        raise typer.Exit(INTERRUPTED)
    typer.echo("\n".join(found.lines()))
