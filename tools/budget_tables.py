"""Make and check the shipped budgets: every preset on every card of configs/gpus.yaml.

`build` simulates them, in children, with the libraries that are installed; what was simulated here
before is taken from the user's cache. `check` simulates nothing: all are there, under today's keys.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nbhelpers.batching import BatchPlan, plan_batch  # noqa: E402
from nbhelpers.budgets import judge  # noqa: E402
from nbhelpers.budgets_advice import advise  # noqa: E402
from nbhelpers.budgets_child import Simulator  # noqa: E402
from nbhelpers.budgets_key import Key, budget_key  # noqa: E402
from nbhelpers.budgets_search import Search, State, even_sizes  # noqa: E402
from nbhelpers.budgets_store import (  # noqa: E402
    SCHEMA,
    TABLES,
    keep,
    packed,
    shipped,
    simulated_here,
)
from nbhelpers.config import list_presets, load_preset  # noqa: E402
from nbhelpers.errors import ConfigError, NbhelpersError  # noqa: E402
from nbhelpers.gpus import known_gpus  # noqa: E402
from nbhelpers.hardware import Hardware, plan_hardware  # noqa: E402
from nbhelpers.memory import DOES_NOT_FIT, TIGHT, MemoryBudget  # noqa: E402
from nbhelpers.presets import Preset  # noqa: E402
from nbhelpers.shapes import find_shape  # noqa: E402
from nbhelpers.simulate.cards import find_card  # noqa: E402

JOBS = ("clones", "detector", "finetune")
SIZE_ONLY = {"name", "memory_total_bytes", "is_exact", "context_source"}
GRID_LENGTHS = (128, 2048)  # the ends between which lengths are interpolated
TIMEOUT_S = 900.0
MOST_REQUESTS = 60  # of one child: libraries may hold on to what they made


@dataclass(frozen=True)
class Case:
    """A preset on so many cards of a kind; `problem` says why it cannot be there."""

    preset_name: str
    card: str
    count: int
    hardware: Hardware
    preset: Preset | None = None
    plan: BatchPlan | None = None
    problem: str = ""

    @property
    def place(self) -> str:
        """The card and how many of it."""
        return self.card if self.count == 1 else f"{self.card} x{self.count}"

    @property
    def is_target(self) -> bool:
        """Whether the preset was made for this card."""
        return self.preset is not None and self.preset.gpu == self.card


def cases(job: str) -> Iterator[Case]:
    """Every preset on every card, on one and on as many as it was made for."""
    planned: dict[tuple[str, int], Hardware] = {}
    for name in list_presets(job):
        plain = load_preset(job, name)
        typed = plain.settings.num_gpus
        counts = {typed} if isinstance(typed, int) else {1, plain.num_target_gpus}
        for card in known_gpus():
            for count in sorted(counts):
                if (card, count) not in planned:
                    planned[card, count] = plan_hardware(card, count)
                yield _case(job, name, card, count, planned[card, count])


def _case(job: str, name: str, card: str, count: int, hardware: Hardware) -> Case:
    try:
        preset = load_preset(job, name, hardware=hardware)
        plan = plan_batch(preset, hardware)
    except ConfigError as error:
        return Case(name, card, count, hardware, problem=error.message)
    return Case(name, card, count, hardware, preset, plan)


def card_groups() -> dict[str, str]:
    """Return the group of each card: those alike in all but their size."""
    groups: dict[str, str] = {}
    for key in known_gpus():
        card = find_card(key)
        alike = {k: v for k, v in asdict(card).items() if k not in SIZE_ONLY}
        first = f"sm{card.capability}-{card.multiprocessors}"
        kinds = groups.setdefault(json.dumps(alike, sort_keys=True), first)
        groups[key] = kinds
    return {key: groups[key] for key in known_gpus()}


@dataclass
class Builder:
    """Simulates each key once per group, on the group's largest card."""

    job: str
    groups: dict[str, str]
    found: dict[tuple[str, Key], MemoryBudget] = field(default_factory=dict)
    failed: dict[tuple[str, Key], str] = field(default_factory=dict)
    locks: dict[tuple[str, Key], threading.Lock] = field(default_factory=dict)
    local: threading.local = field(default_factory=threading.local)
    simulated: int = 0

    def predict(self, preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
        """Return a budget for this card, from a simulation on the largest card of its group."""
        gpu = hardware.gpu
        group = self.groups[gpu.key]
        card = self.largest(group)
        stand_in = plan_hardware(card, len(hardware.gpus))
        key = budget_key(preset, plan, stand_in)
        at = (group, key._replace(card=group))
        with self.locks.setdefault(at, threading.Lock()):
            if at not in self.found and at not in self.failed:
                self._simulate(at, key, preset, plan, stand_in)
        budget = self.found.get(at)
        return None if budget is None else judge(budget, preset.settings, hardware)

    def largest(self, group: str) -> str:
        """The card of a group with the most memory."""
        cards = [card for card, its in self.groups.items() if its == group]
        return max(cards, key=lambda card: known_gpus()[card].memory_total_bytes)

    def _simulate(self, at: Any, key: Key, preset: Preset, plan: BatchPlan, hw: Hardware) -> None:
        budget = simulated_here(key)
        if budget is None:
            began = time.perf_counter()
            try:
                budget = self._child().ask(preset, plan, hw, timeout_s=TIMEOUT_S)
            except NbhelpersError as error:
                self.failed[at] = str(error)
                print(f"FAILED {self.job}/{preset.name} {key.name} on {key.card}: {error}")
                return
            keep(key, budget)
            self.simulated += 1
            took = time.perf_counter() - began
            print(f"{self.job}/{preset.name} {key.name} on {key.card}: {budget!r} in {took:.1f} s")
        self.found[at] = replace(budget, advice=(), verdict="", capacity_bytes=None)

    def _child(self) -> Simulator:
        used = getattr(self.local, "used", 0)
        if used % MOST_REQUESTS == 0:
            if used:
                self.local.simulator.close()
            self.local.simulator = Simulator()
        self.local.used = used + 1
        return self.local.simulator


def cover(builder: Builder, case: Case, *, corners: bool) -> None:
    """Simulate a preset on a card, what would make it fit, and the corners of its grid."""
    budget = builder.predict(case.preset, case.plan, case.hardware)
    if budget is None:
        return
    if budget.verdict in (DOES_NOT_FIT, TIGHT):
        advise(case.preset, case.plan, case.hardware, budget, builder.predict)
    if corners and case.is_target:
        start = State(case.preset, case.plan, budget)
        for change in grid_corners(case):
            Search(case.hardware, builder.predict).changed(start, change)


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


def build(job: str, *, workers: int, corners: bool) -> int:
    """Write the table of a job; return how many budgets could not be made."""
    builder = Builder(job, card_groups())
    known = [case for case in cases(job) if case.preset is not None]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda case: cover(builder, case, corners=corners), known))
    table = as_table(builder, list(cases(job)))
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{job}.json").write_text(written(table), encoding="utf-8")
    count = len(builder.found)
    print(
        f"{job}: {count} budgets, {builder.simulated} simulated now, {len(builder.failed)} failed"
    )
    return len(builder.failed)


def as_table(builder: Builder, found: list[Case]) -> dict[str, Any]:
    """Return the plain table: see `nbhelpers.budgets_store.shipped`."""
    strings: dict[str, int] = {}
    budgets: dict[str, dict[str, dict[str, Any]]] = {}
    versions = [dict(budget.versions) for budget in builder.found.values()]
    if any(each != versions[0] for each in versions):
        raise SystemExit("The budgets were made with unlike libraries: build again.")
    for (group, key), budget in sorted(builder.found.items(), key=lambda item: item[0]):
        facts = {"batch": key.batch, "seq_len": key.seq_len, "budget": _short(budget, strings)}
        budgets.setdefault(group, {}).setdefault(key.family, {})[key.name] = facts
    presets: dict[str, dict[str, str]] = {}
    for case in found:
        presets.setdefault(case.preset_name, {})[case.place] = today(case)
    return {
        "schema": SCHEMA,
        "versions": versions[0] if versions else {},
        "strings": list(strings),
        "cards": builder.groups,
        "presets": presets,
        "budgets": budgets,
    }


def _short(budget: MemoryBudget, strings: dict[str, int]) -> dict[str, Any]:
    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    plain = packed(budget)
    for part in ("lines", "phases"):
        plain[part] = [[number(n), size, number(note)] for n, size, note in plain[part]]
    return plain | {part: list(map(number, plain[part])) for part in ("opaque", "notes")}


def written(table: dict[str, Any]) -> str:
    """Return JSON with one line for each budget, so that a change shows where it is."""
    text = json.dumps(table, separators=(",", ":"))
    for mark in ('"strings":', '"cards":', '"presets":', '"budgets":', '{"batch":'):
        text = text.replace(mark, f"\n{mark}")
    return f"{text}\n"


def today(case: Case) -> str:
    """Return the name of a case's key as the preset resolves now, or why there is none."""
    if case.preset is None:
        return f"not possible: {case.problem}"
    return budget_key(case.preset, case.plan, case.hardware).name


def problems(job: str) -> list[str]:
    """Say what a shipped table lacks, and what in it is of presets as they were."""
    table = shipped(job)
    if not table:
        return [f"{job}: there is no table"]
    found = []
    for case in cases(job):
        where = f"{job}/{case.preset_name} on {case.place}"
        kept = table["presets"].get(case.preset_name, {}).get(case.place)
        now = today(case)
        if kept is None:
            found.append(f"{where}: not in the table")
        elif kept != now:
            found.append(f"{where}: the preset has changed since")
        elif case.preset is not None:
            group = table["budgets"].get(table["cards"].get(case.card), {})
            if now not in group.get(now.partition("-")[0], {}):
                found.append(f"{where}: its budget is missing")
    return found


def main() -> int:
    """Build or check; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("--job", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--workers", type=int, default=2, help="children that simulate at once")
    parser.add_argument("--no-corners", action="store_true", help="no grid around the presets")
    options = parser.parse_args()
    jobs = options.job or JOBS
    if options.what == "build":
        corners = not options.no_corners
        return min(1, sum(build(j, workers=options.workers, corners=corners) for j in jobs))
    found = [text for job in jobs for text in problems(job)]
    for text in found[:20]:
        print(text)
    if found:
        print(f"{len(found)} problems in nbhelpers/budget_tables. Fix: make budgets")
        return 1
    print("shipped budgets: every preset on every card, as the presets are today")
    return 0


if __name__ == "__main__":
    sys.exit(main())
