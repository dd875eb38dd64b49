"""Parts that only a notebook needs: picker, environment check, doctor, headless runs."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "choose_hardware": "choice",
    "expect": "expected",
    "past_predictions": "grids",
    "what_fits": "grids",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
