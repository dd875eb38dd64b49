"""What a preset asks of the GPUs: a precision that they have, and that there is one at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError, HardwareError

if TYPE_CHECKING:
    from nbhelpers.schema import Settings


def no_gpu_for(preset: Any, hardware: Any) -> HardwareError:
    """Return the error of a preset for a GPU where there is none."""
    return HardwareError(
        f"The preset {preset.name} is for the GPU {preset.gpu}; there is no GPU here: "
        f"{hardware.reason}.",
        fix="use the preset smoke (or auto), or launch where the GPU is; to plan for it from here, "
        f"add --gpu {preset.gpu} (study: with --plan-only); in Python `launch(..., force=True)` "
        "trains on the CPU all the same",
    )


def check_precision(settings: Settings, hardware: Any, preset: Any = None) -> None:
    """Refuse a precision that the GPUs do not have; `auto` always passes.

    Args:
        preset: Where the settings come from; one for a GPU is refused as such without any.

    Raises:
        ConfigError: bf16 below compute capability 8.0, or fp16 without a GPU.
        HardwareError: The preset's own precision needs its GPU, and there is none.
    """
    without = [gpu for gpu in hardware.gpus if not gpu.has_bf16]
    if settings.precision == "bf16" and without:
        gpu = without[0]
        capability = ".".join(str(part) for part in gpu.compute_capability)
        raise ConfigError(
            f"precision=bf16 was asked for, but {gpu.name} has compute capability {capability}, "
            "and bf16 needs 8.0.",
            fix='set precision to "auto" or "fp16"',
        )
    if settings.precision == "fp16" and not hardware.gpus:
        typed = str(getattr(preset, "provenance", {}).get("precision", "")).startswith("overrides")
        if preset is not None and preset.gpu and not typed:
            raise no_gpu_for(preset, hardware)
        raise ConfigError(
            "precision=fp16 was asked for, but there is no GPU.",
            fix='set precision to "auto" or "fp32"',
        )
