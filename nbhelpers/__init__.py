"""nbhelpers: hardware → preset → plan → budget → run → result → report.

Each arrow is one function of this package, each noun one frozen object. Nothing heavy is imported
until a function is used, and torch never is: training happens in worker processes.
"""

from __future__ import annotations

from nbhelpers.common.lazy import exports

__version__ = "0.2.0"

_HOME = {
    "detect_hardware": "hardware.detection",
    "plan_hardware": "hardware.detection",
    "list_presets": "presets.loading",
    "load_preset": "presets.loading",
    "plan_batch": "plan",
    "predict_memory": "budget.predict",
    "launch": "runs.starting",
    "follow": "runs.following",
    "open_run": "runs.run",
    "list_runs": "runs.run",
    "report": "reports.writing",
    "doctor": "notebook.doctor",
    "check_parameters": "presets.parameters",
    "pick_preset": "notebook.picker",
    "NbhelpersError": "errors",
}
__all__ = list(_HOME)
__getattr__, __dir__ = exports(__name__, _HOME)
