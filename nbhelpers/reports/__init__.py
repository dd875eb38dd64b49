"""What a run or a study reports, as text and as HTML, with figures."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "audit": "audits",
    "compare": "comparison",
    "show_lengths": "lengths",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
