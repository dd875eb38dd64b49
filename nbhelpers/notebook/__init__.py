"""Parts that only a notebook needs: picker, environment check, doctor, headless runs."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "AskBox": "ask",
    "check_environment": "environment",
    "choose_hardware": "choice",
    "download": "keep",
    "expect": "expected",
    "keep_runs": "keep",
    "past_predictions": "grids",
    "stop_unless": "keep",
    "what_fits": "grids",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
