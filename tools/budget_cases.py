"""What the shipped budgets are of: every preset on every card, and a grid around each preset.

On the card that a preset was made for, also with every other model of its job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from nbhelpers.budget.search import even_sizes
from nbhelpers.budget.shapes import find_shape
from nbhelpers.budget.store import budget_key
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.plan import BatchPlan, plan_batch
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.preset import Preset
from nbhelpers.simulate.cards import find_card

SIZE_ONLY = {"name", "memory_total_bytes", "is_exact"}
COUNTS = (1, 2, 4, 8)  # of cards
# Cards of 8 to 16 GB of people's own: simulated when somebody asks, as each would add a group.
ASKED = ("rtx3060", "rtx3070", "rtx3080", "rtx4060", "rtx4070", "rtx4080", "rtx5070", "rtx5080")
GRID_LENGTHS = (128, 2048)  # the ends between which lengths are interpolated


@dataclass(frozen=True)
class Case:
    """A preset on so many cards of a kind; `problem` says why it cannot be there."""

    job: str
    preset_name: str
    card: str
    count: int
    hardware: Hardware
    preset: Preset | None = None
    plan: BatchPlan | None = None
    problem: str = ""
    is_default: bool = True  # the preset's own model

    @property
    def place(self) -> str:
        """The card and how many of it."""
        return self.card if self.count == 1 else f"{self.card} x{self.count}"

    @property
    def is_target(self) -> bool:
        """Whether the preset was made for this card."""
        return self.is_default and self.preset is not None and self.preset.gpu == self.card

    def __str__(self) -> str:
        return f"{self.job}/{self.preset_name} on {self.place}"


def cases(job: str) -> Iterator[Case]:
    """Every preset on one, two, four and eight of every card, or on as many as it names."""
    planned: dict[tuple[str, int], Hardware] = {}
    for name in list_presets(job):
        plain = load_preset(job, name)
        typed = plain.settings.num_gpus
        counts = {typed} if isinstance(typed, int) else {*COUNTS, plain.num_target_gpus}
        for card in (key for key in known_gpus() if key not in ASKED):
            for count in sorted(counts):
                if (card, count) not in planned:
                    planned[card, count] = plan_hardware(card, count)
                yield _case(job, name, card, count, planned[card, count])
        if plain.gpu and not name.startswith("seed-"):
            at = (plain.gpu, plain.num_target_gpus)
            for model in other_models(job, plain):
                yield replace(
                    _case(job, name, *at, planned[at], model=model),
                    preset_name=f"{name}, {model}",
                    is_default=False,
                )


def other_models(job: str, preset: Preset) -> list[str]:
    """Return the short names of a job's real models, beside the preset's own."""
    models = JOBS[job].models
    named = (*models.aliases, *models.packaged)
    return [name for name in named if name != models.short_name(preset.settings.model)]


def _case(
    job: str, name: str, card: str, count: int, hardware: Hardware, **overrides: object
) -> Case:
    try:
        preset = load_preset(job, name, hardware=hardware, overrides=overrides)
        plan = plan_batch(preset, hardware)
    except ConfigError as error:
        return Case(job, name, card, count, hardware, problem=error.message)
    return Case(job, name, card, count, hardware, preset, plan)


def today(case: Case) -> str:
    """Return the name of a case's key as the preset resolves now, or why there is none."""
    if case.preset is None:
        return f"not possible: {case.problem}"
    return budget_key(case.preset, case.plan, case.hardware).name


def card_groups() -> dict[str, str]:
    """Return the group of each card: those alike in all but their size."""
    kinds: dict[str, str] = {}
    groups: dict[str, str] = {}
    for key in (key for key in known_gpus() if key not in ASKED):
        card = find_card(key)
        alike = {k: v for k, v in asdict(card).items() if k not in SIZE_ONLY}
        name = f"sm{card.capability}-{card.multiprocessors}"
        name = name if name not in kinds.values() else f"{name}-{key}"
        groups[key] = kinds.setdefault(json.dumps(alike, sort_keys=True), name)
    return groups


def grid_corners(case: Case) -> Iterator[dict[str, int]]:
    """Batches and lengths around a preset, so that what lies between can be interpolated."""
    share = even_sizes(case.plan)
    batches = {share[0], *share[-2:], case.plan.per_device_train_batch_size}
    shape = find_shape(case.preset.settings)
    most = min(shape.code_positions, GRID_LENGTHS[1])
    most -= getattr(case.preset.settings, "data_flow_length", None) or 0
    for seq_len in sorted({GRID_LENGTHS[0], case.preset.settings.seq_len, most}):
        for batch in sorted(batches):
            yield {"per_device_train_batch_size": batch, "seq_len": seq_len}
