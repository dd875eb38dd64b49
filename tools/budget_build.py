"""Simulate the shipped budgets, many at once, and write their tables.

First every preset on every card, then what would make it fit where it does not, then the corners of
a grid around each preset: when the time is over, what matters most is there.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from budget_cases import Case, card_groups, cases, grid_corners, today

from nbhelpers.budget.formulas import GIB
from nbhelpers.budget.memory import DOES_NOT_FIT, TIGHT, MemoryBudget
from nbhelpers.budget.predict import judge
from nbhelpers.budget.search import Fits, State, advise, changed
from nbhelpers.budget.simulator import Simulator, require_libraries
from nbhelpers.budget.store import (
    SCHEMA,
    TABLES,
    Key,
    Point,
    budget_key,
    keep,
    of_the_package,
    of_the_user,
    packed,
    public,
    shipped,
)
from nbhelpers.errors import Killed, NbhelpersError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.preset import Preset

TIMEOUT_S = 900.0
MOST_REQUESTS = 60  # of one child: libraries may hold on to what they made
COST = {"finetune": 3, "detector": 2, "clones": 1}  # the long ones first, so that none ends last

At = tuple[str, Key]  # a group of cards, and a key whose card is the group


class TimeIsUp(Exception):
    """The build's time is over."""


@dataclass
class Builder:
    """Simulates each key once per group, on the group's largest card."""

    deadline: float = float("inf")  # of time.monotonic
    keeps_shipped: bool = False  # those of the libraries here are taken from the tables
    groups: dict[str, str] = field(default_factory=card_groups)
    found: dict[At, MemoryBudget] = field(default_factory=dict)
    failed: dict[At, str] = field(default_factory=dict)
    seconds: float = 0.0  # that children were busy
    simulated: int = 0
    _began: float = field(default_factory=time.monotonic)
    _locks: dict[At, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _local: threading.local = field(default_factory=threading.local)
    _children: list[Simulator] = field(default_factory=list)

    def predict(self, preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
        """Return a budget for this card, from a simulation on the largest card of its group.

        Raises:
            TimeIsUp: It was not simulated yet, and the time is over.
        """
        group = self.groups[hardware.gpu.key]
        stand_in = plan_hardware(self.largest(group), len(hardware.gpus))
        key = budget_key(preset, plan, stand_in)
        at = (group, key._replace(card=group))
        with self._locks[at]:
            if at not in self.found and at not in self.failed:
                self._simulate(at, key, preset, plan, stand_in)
        budget = self.found.get(at)
        return None if budget is None else judge(budget, preset.settings, hardware)

    def at(self, case: Case) -> At:
        """Where the budget of a case is found."""
        group = self.groups[case.card]
        return group, budget_key(case.preset, case.plan, case.hardware)._replace(card=group)

    def largest(self, group: str) -> str:
        """The card of a group with the most memory."""
        cards = [card for card, its in self.groups.items() if its == group]
        return max(cards, key=lambda card: known_gpus()[card].memory_total_bytes)

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)

    def close(self) -> None:
        """End the children."""
        for child in self._children:
            child.close()

    def _simulate(self, at: At, key: Key, preset: Preset, plan: BatchPlan, hw: Hardware) -> None:
        budget = current(key, of_the_user(key))
        if budget is None and self.keeps_shipped:
            budget = current(key, of_the_package(key))
        if budget is None:
            budget = self._asked(at, preset, plan, hw)
            if budget is None:
                return
            keep(key, budget)
        self.found[at] = replace(budget, advice=(), verdict="", capacity_bytes=None)

    def _asked(self, at: At, preset: Preset, plan: BatchPlan, hw: Hardware) -> MemoryBudget | None:
        """Ask this thread's child; None where it failed, which is noted."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeIsUp
        what, began = f"{preset.job}/{preset.name} {at[1].name} on {at[0]}", time.monotonic()
        try:
            budget = self._child().ask(preset, plan, hw, timeout_s=min(TIMEOUT_S, left))
        except NbhelpersError as error:
            if isinstance(error, Killed) and time.monotonic() >= self.deadline:
                raise TimeIsUp from error
            self.failed[at] = str(error)
            self.say(f"FAILED {what}: {error}")
            return None
        took = time.monotonic() - began
        self.simulated, self.seconds = self.simulated + 1, self.seconds + took
        size = f"{budget.total_bytes / GIB:.2f} GiB"
        self.say(f"{what}: {size}{' and unknown' * bool(budget.opaque)}, {took:.1f} s")
        return budget

    def _child(self) -> Simulator:
        used = getattr(self._local, "used", 0)
        if used == 0:
            self._local.child = Simulator()
            self._children.append(self._local.child)
        elif used % MOST_REQUESTS == 0:
            self._local.child.close()  # the next request starts another
        self._local.used = used + 1
        return self._local.child


Task = tuple[str, Callable[[], Any]]


def build(
    jobs: Iterable[str],
    *,
    workers: int,
    seconds: float | None = None,
    stages: int = 3,
    presets: Collection[str] = (),
    only_missing: bool = False,
) -> int:
    """Write the tables of jobs; return how many budgets are not there as they should be.

    Args:
        workers: Children that simulate at once.
        seconds: What is not done by then is named; what is done is written.
        stages: 1: the presets, 2: also what would make them fit, 3: also grids around them.
        presets: Names; what the tables hold of others stays. None: all.
        only_missing: Simulate what the tables lack, with the libraries that made them.
    """
    require_libraries()
    builder = Builder(keeps_shipped=only_missing)
    builder.deadline = time.monotonic() + seconds if seconds else float("inf")
    known = {job: list(cases(job)) for job in jobs}
    possible = [case for found in known.values() for case in found if case.preset is not None]
    possible = [case for case in possible if not presets or case.preset_name in presets]
    possible.sort(key=lambda case: -COST.get(case.job, 0))
    left: list[str] = []
    pool = ThreadPoolExecutor(workers)  # each of its threads has a child
    try:
        for tasks in (_presets, _advice, _corners)[:stages]:
            left += _run(builder, pool, tasks.__name__.strip("_"), tasks(builder, possible))
            for job, found in known.items():
                _write(builder, job, found, is_whole=not left and stages == 3 and not presets)
    finally:
        pool.shutdown(cancel_futures=True)
        builder.close()
    for text in left:
        print(f"NOT DONE {text}")
    told = f"{len(builder.found)} budgets, {builder.simulated} simulated now"
    busy = f"{builder.seconds / 60:.1f} minutes of one worker"
    builder.say(f"{told} in {busy}, {len(builder.failed)} failed, {len(left)} tasks not done")
    return len(builder.failed) + len(left)


def _run(builder: Builder, pool: ThreadPoolExecutor, stage: str, tasks: list[Task]) -> list[str]:
    """Do the tasks of a stage; return the names of those that the time did not suffice for."""
    left, done = [], 0

    def do(task: Task) -> None:
        nonlocal done
        try:
            task[1]()
        except TimeIsUp:
            left.append(f"{stage}: {task[0]}")
            return
        done += 1
        if done % 20 == 0:
            builder.say(f"== {stage}: {done} of {len(tasks)}")

    running = [pool.submit(do, task) for task in tasks]
    try:
        for each in running:
            each.result()
    except KeyboardInterrupt:  # as if the time were over: what is done is written
        builder.deadline = 0.0
        wait(running)
    builder.say(f"== {stage}: {done} of {len(tasks)}, then written")
    return left


def _presets(builder: Builder, known: list[Case]) -> list[Task]:
    """Each preset once per group of cards."""
    first: dict[At, Case] = {}
    for case in known:
        first.setdefault(builder.at(case), case)
    return [(str(case), lambda case=case: _plain(builder, case)) for case in first.values()]


def _plain(builder: Builder, case: Case) -> MemoryBudget | None:
    return builder.predict(case.preset, case.plan, case.hardware)


def _advice(builder: Builder, known: list[Case]) -> list[Task]:
    """What would help each preset that is tight or does not fit; one task for cards alike."""
    together: dict[Any, list[Case]] = defaultdict(list)
    for case in known:
        if builder.at(case) in builder.found:
            budget = _plain(builder, case)
            if budget is not None and budget.verdict in (DOES_NOT_FIT, TIGHT):
                together[case.job, builder.groups[case.card], case.preset_name].append(case)
    return [
        (", ".join(map(str, its)), lambda its=its: _advise(builder, its))
        for its in together.values()
    ]


def _advise(builder: Builder, its: list[Case]) -> None:
    for case in its:
        budget = _plain(builder, case)
        if budget is not None:
            goal = Fits(case.hardware, builder.predict)
            advise(case.preset, case.plan, budget, goal)


def _corners(builder: Builder, known: list[Case]) -> list[Task]:
    """The corners of a grid around each preset on the card that it was made for."""
    tasks: list[Task] = []
    for case in known:
        budget = builder.found.get(builder.at(case)) if case.is_target else None
        if budget is None:
            continue
        start = State(case.preset, case.plan, budget)
        goal = Fits(case.hardware, builder.predict)
        for change in grid_corners(case):
            name = f"{case} {change}"
            tasks.append((name, lambda goal=goal, at=start, c=change: changed(at, c, goal)))
    return tasks


# ---------------------------------------------------------------- the tables


def current(key: Key, points: Iterable[Point]) -> MemoryBudget | None:
    """Return the budget of a key, if one was made with the libraries that are here."""
    at = (key.batch, key.seq_len)
    return next((p.budget for p in points if p.is_current and (p.batch, p.seq_len) == at), None)


def _write(builder: Builder, job: str, found: list[Case], *, is_whole: bool) -> None:
    """Write a job's table; what an unfinished build has not made anew stays as it is."""
    fresh = {at: budget for at, budget in builder.found.items() if at[1].job == job}
    if not fresh:
        return
    table = as_table(job, builder.groups, fresh, found)
    if not is_whole:
        _keep_older(table, shipped(job))
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{job}.json").write_text(written(table), encoding="utf-8")


def as_table(
    job: str, groups: dict[str, str], fresh: dict[At, MemoryBudget], found: list[Case]
) -> dict[str, Any]:
    """Return the plain table: see `nbhelpers.budget.store.shipped`."""
    strings: dict[str, int] = {}
    budgets: dict[str, dict[str, dict[str, Any]]] = {}
    made = [{n: public(v) for n, v in budget.versions.items()} for budget in fresh.values()]
    if any(each != made[0] for each in made):
        raise SystemExit(f"The budgets of {job} were made with unlike libraries: build again.")
    for (group, key), budget in sorted(fresh.items(), key=lambda item: item[0]):
        facts = {"batch": key.batch, "seq_len": key.seq_len, "budget": _short(budget, strings)}
        budgets.setdefault(group, {}).setdefault(key.family, {})[key.name] = facts
    presets: dict[str, dict[str, str]] = {}
    for case in found:
        presets.setdefault(case.preset_name, {})[case.place] = today(case)
    return {
        "schema": SCHEMA,
        "versions": made[0],
        "strings": list(strings),
        "cards": groups,
        "presets": presets,
        "budgets": budgets,
    }


def _keep_older(table: dict[str, Any], older: dict[str, Any]) -> None:
    """Add what an earlier table of the same libraries and cards holds beside."""
    if (older.get("versions"), older.get("cards")) != (table["versions"], table["cards"]):
        return
    numbers = {text: n for n, text in enumerate(table["strings"])}

    def renumbered(n: int) -> int:
        return numbers.setdefault(older["strings"][n], len(numbers))

    for group, families in older["budgets"].items():
        for family, its in families.items():
            own = table["budgets"].setdefault(group, {}).setdefault(family, {})
            for name in its.keys() - own.keys():
                plain = its[name]["budget"]
                own[name] = its[name] | {"budget": _with_numbers(plain, renumbered)}
    table["strings"] = list(numbers)


def _short(budget: MemoryBudget, strings: dict[str, int]) -> dict[str, Any]:
    return _with_numbers(packed(budget), lambda text: strings.setdefault(text, len(strings)))


def _with_numbers(plain: dict[str, Any], number: Callable[[Any], int]) -> dict[str, Any]:
    """Put numbers in the place of the texts of a packed budget."""
    plain = dict(plain)
    for part in ("lines", "phases"):
        plain[part] = [[number(n), size, number(note)] for n, size, note in plain[part]]
    return plain | {part: list(map(number, plain[part])) for part in ("opaque", "notes")}


def written(table: dict[str, Any]) -> str:
    """Return JSON with one line for each budget, so that a change shows where it is."""
    text = json.dumps(table, separators=(",", ":"))
    for mark in ('"strings":', '"cards":', '"presets":', '"budgets":', '{"batch":'):
        text = text.replace(mark, f"\n{mark}")
    return f"{text}\n"
