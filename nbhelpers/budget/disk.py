"""Whether the disk and the main memory can hold a fine-tuning, before anything is downloaded.

`preflight` is pure arithmetic, `require_supplies` measures what is free. Sizes are in GB of 10**9
bytes, as disks and download pages count.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.budget.formulas import weight_bytes
from nbhelpers.budget.shapes import CausalShape, find_shape
from nbhelpers.common.files import is_folder
from nbhelpers.common.formatting import GB, gb
from nbhelpers.errors import ConfigError
from nbhelpers.presets.jobs import ADAPTER, FINETUNE, JOBS, spec_of
from nbhelpers.presets.schema import FinetuneSettings

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings

# Source: the files on the hub: google/gemma-2-2b is 10.46 GB in fp32, the tuned one 5.23 in bf16.
HUB_WIDTHS = {"google/gemma-2-2b": 4, "google/gemma-2-2b-it": 2}
USUAL_HUB_WIDTH = 2
ENCODER_HUB_WIDTH = 4  # the hub's small encoders are stored in fp32
# Source: Gemma's tokenizer files, 17.5 + 4.2 MB and smaller ones; a copy lies in each checkpoint.
TOKENIZER_BYTES = 40 * 10**6
# An adapter and two moments in fp32; the gradient is not saved.
BYTES_PER_TRAINED = 12
# One more for the best checkpoint, and one while it is written.
SPARE_CHECKPOINTS = 2
# Resident bytes of a worker with torch, transformers, peft and a CUDA context, before the model.
PROCESS_BYTES = 2 * GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run takes, in bytes.

    `download`: 0 where the weights come from no hub; `loading`: main memory while the weights are
    read, which go to a GPU tensor by tensor; `checkpoints`: all that are kept at once; `merged`:
    the merged model, which is made on request only.
    """

    download: int
    loading: int
    checkpoint: int
    checkpoints: int
    merged: int


def needs(
    settings: FinetuneSettings, shape: CausalShape, *, precision: str, use_gpu: bool
) -> Needs:
    """Return what a run takes of disk and main memory.

    >>> from nbhelpers.presets.loading import load_preset
    >>> from nbhelpers.budget.shapes import GEMMA_2_2B
    >>> s = load_preset("finetune", "t4").settings
    >>> found = needs(s, GEMMA_2_2B, precision="fp16", use_gpu=True)
    >>> [round(size / 1e9, 2) for size in (found.download, found.checkpoint, found.merged)]
    [10.46, 0.29, 5.23]
    """
    models = FINETUNE.models
    is_local = settings.model in models.embedded + models.packaged or settings.random_weights
    hub_width = HUB_WIDTHS.get(settings.model, USUAL_HUB_WIDTH)
    stored = shape.parameters() * hub_width
    largest = shape.vocab * shape.hidden * hub_width  # the embedding, in the file's format
    cpu_weights = 0 if use_gpu else weight_bytes(shape, precision=precision, is_quantised=False)
    trained = 0
    if settings.method != "base":
        trained = shape.adapter_parameters(settings.lora_r, settings.lora_target_modules)
    one = trained * BYTES_PER_TRAINED + TOKENIZER_BYTES if trained else 0
    return Needs(
        download=0 if is_local else stored,
        loading=cpu_weights + largest + PROCESS_BYTES,
        checkpoint=one,
        checkpoints=one * (settings.save_total_limit + SPARE_CHECKPOINTS),
        merged=2 * shape.parameters() if trained else 0,
    )


def preflight(
    settings: Settings,
    shape: object,
    hardware: Hardware,
    run_dir_free_bytes: int,
    *,
    cache_free_bytes: int | None = None,
    is_downloaded: bool = False,
) -> list[str]:
    """Return what would stop the run for lack of disk or main memory; empty if nothing would.

    Args:
        settings: Of any job; only a fine-tuning is judged.
        shape: What `find_shape` returned; None judges nothing.
        hardware: Its free main memory is compared, unless it is a planned machine.
        run_dir_free_bytes: Free on the disk of the run folder.
        cache_free_bytes: Free on the disk of the hub's cache; None: it is the run's disk.
        is_downloaded: Whether the weights are in the cache, or in a local folder.
    """
    if not isinstance(shape, CausalShape):
        return []
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    use_gpu = bool(hardware.gpus)
    need = needs(settings, shape, precision=precision, use_gpu=use_gpu)
    download = 0 if is_downloaded else need.download
    problems = []
    on_run_disk = need.checkpoints + (download if cache_free_bytes is None else 0)
    if on_run_disk > run_dir_free_bytes:
        count = settings.save_total_limit + SPARE_CHECKPOINTS
        parts = [f"{count} checkpoints of {gb(need.checkpoint)}"] if need.checkpoints else []
        if download and cache_free_bytes is None:
            parts.append(f"the weights of {settings.model} ({gb(download)})")
        problems.append(
            f"the disk of the run folder has {gb(run_dir_free_bytes)} free, and "
            f"{' with '.join(parts)} need {gb(on_run_disk)}: free space, set run_dir to another "
            "disk, or lower save_total_limit"
        )
    if cache_free_bytes is not None and download > cache_free_bytes:
        problems.append(
            f"the disk of the hub's cache has {gb(cache_free_bytes)} free, and the weights of "
            f"{settings.model} need {gb(download)}: free space, or set HF_HOME to another disk"
        )
    free = 0 if hardware.is_planned else hardware.ram_available_bytes
    if free and need.loading > free:
        problems.append(
            f"{gb(free)} of main memory are free, and loading {settings.model} in {precision} "
            f"{'onto the GPU' if use_gpu else 'without a GPU'} needs {gb(need.loading)}: close "
            "other programs, or use a machine with more memory"
        )
    return problems


def require_supplies(preset: Preset, hardware: Hardware, run_dir: Path) -> None:
    """Stop where disk or main memory cannot hold a fine-tuning.

    Args:
        run_dir: An existing folder on the disk of the run.

    Raises:
        ConfigError: Lists everything that is short.
    """
    if JOBS[preset.job].formulas != ADAPTER:
        return
    settings = preset.settings
    cache = _hub_cache()
    same_disk = cache is None or cache.stat().st_dev == run_dir.stat().st_dev
    problems = preflight(
        settings,
        find_shape(settings),
        hardware,
        shutil.disk_usage(run_dir).free,
        cache_free_bytes=None if same_disk else shutil.disk_usage(cache).free,
        is_downloaded=is_folder(settings.model) or _has_weights(cache, settings.model),
    )
    if problems:
        title = "The run cannot start: " + "; ".join(problems) + "."
        raise ConfigError(title, fix="each part says how; then launch again")


def download_bytes(settings: Settings) -> int:
    """Return what the weights take to download; 0 where they are here, or of unknown size."""
    shape, models = find_shape(settings), spec_of(settings).models
    is_local = settings.model in models.embedded + models.packaged or settings.random_weights
    if shape is None or is_local or is_folder(settings.model):
        return 0
    usual = USUAL_HUB_WIDTH if isinstance(shape, CausalShape) else ENCODER_HUB_WIDTH
    is_here = _has_weights(_hub_cache(), settings.model)
    return 0 if is_here else shape.parameters() * HUB_WIDTHS.get(settings.model, usual)


def _hub_cache() -> Path | None:
    """Return the nearest existing folder of the hub's cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    place = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    return next((folder for folder in (place, *place.parents) if folder.is_dir()), None)


def _has_weights(cache: Path | None, model: str) -> bool:
    """Say whether the hub's cache holds weights of a model."""
    if cache is None:
        return False
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    return any(folder.glob("*/*.safetensors")) or any(folder.glob("*/pytorch_model*.bin"))
