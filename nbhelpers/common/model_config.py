"""config.json beside our own models: the encoder's configuration inside one that names our kind.

transformers knows none of `OWN_TYPES` and so refuses such a folder. With the encoder's own
configuration in their place it would find no tensor, warn, and go on with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DETECTOR_TYPE, CLONES_TYPE = "nbhelpers_detector", "nbhelpers_clones"
OWN_TYPES = (DETECTOR_TYPE, CLONES_TYPE)
ENCODER = "encoder"


def own_config(model_type: str, encoder: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return what config.json holds beside a model of ours."""
    return {"model_type": model_type, ENCODER: dict(encoder), **more}


def is_own(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a detector or clone model of ours."""
    return config.get("model_type") in OWN_TYPES


def encoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the encoder's configuration: what one of ours holds, else the same.

    >>> encoder_config(own_config(CLONES_TYPE, {"model_type": "gpt2"}))
    {'model_type': 'gpt2'}
    """
    inner = config.get(ENCODER) if is_own(config) else config
    return inner if isinstance(inner, Mapping) else {}
