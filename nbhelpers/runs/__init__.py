"""The run folder, and what starts, follows, stops and compares runs."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "open_study": "studies",
    "plan_study": "study_plan",
    "run_study": "studies",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
