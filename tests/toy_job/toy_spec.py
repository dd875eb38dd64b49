"""A fourth job, added from outside: logistic regression on drawn numbers."""

from __future__ import annotations

from pydantic import Field

from nbhelpers.metrics.registry import Metric, Scores
from nbhelpers.presets.catalog import JobModels
from nbhelpers.presets.jobs import JOBS, JobSpec
from nbhelpers.presets.schema import Positive, Settings


class ToySettings(Settings):
    """Settings of the toy job."""

    points: Positive = Field(description="points of each split")


JOBS["toy"] = TOY = JobSpec(
    name="toy",
    settings_class="toy_spec:ToySettings",
    models=JobModels(aliases={}, embedded=("linear",), families=()),
    scores=Scores(
        metrics=(
            Metric(name="accuracy"),
            Metric(name="mean_distance", title="mean distance", decimals=1, maximum=None),
        ),
        headline=(("test", "accuracy"),),
    ),
    unit="points",
    worker="toy_worker",
    report="toy_report",
)
