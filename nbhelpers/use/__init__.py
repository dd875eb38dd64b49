"""A trained model at work: ask, detect, compare, merge, export."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "check_access": "hub",
    "close_models": "model_process",
    "export": "model",
    "load": "model",
    "load_clones": "clones",
    "load_detector": "detector",
    "merge": "model",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
