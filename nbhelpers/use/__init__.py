"""A trained model at work: ask, detect, compare, merge, export."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "check_access": "hub",
    "load": "model",
    "load_clones": "clones",
    "load_detector": "detector",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
