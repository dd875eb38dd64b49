"""What a run needs before it starts: memory, time, cost, disk."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "predict_time": "time",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
