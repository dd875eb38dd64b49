"""Seconds of one micro-step on a card: from measured speeds of runs that are alike.

A measured row is brought to the run that is asked for by one factor for each thing that differs;
the nearest rows give the middle and the range. The result is the larger of what the arithmetic
takes and what the CPU takes to launch it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.gpus import known_gpus
from nbhelpers.job_specs import ADAPTER, spec_of
from nbhelpers.speeds import CPU, LOOP, SpeedRow
from nbhelpers.timing_cases import LAUNCH_S, Case, Range, case_of, case_of_row, family_of
from nbhelpers.timing_work import Work

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.schema import Settings

MEASURED = "measured on this card"
SCALED = "measured on another card, scaled"
ESTIMATE = "estimate"
# The share of a card's peak that was reached where the GPU was the limit, what slows a step counted
# in; a step below half of it is bound by the CPU that launches its kernels. Source: Gemma compiled
# .35 to .41 (not compiled, times that factor, .36 to .39), CodeBERT compiled .33.
CEILING, LAUNCHING = {"adapter": 0.37, "encoder": 0.32}, 0.5
# Two processes were 1.86 to 1.89 times as fast as one. More were not measured: as much lost again
# with each doubling.
DDP_SHARE = (1.86 / 2, 1.875 / 2, 1.89 / 2)
CPU_FLOPS_PER_CORE = (1.0e10, 2.0e10, 4.0e10)
MFU_RANGE = (0.10, 0.2, 0.35)  # where no measured row is alike at all
SPREAD = 1.08  # of one's own measurement: two runs of the same settings differ by so much
# Of a measurement on another host with such a card. Source: docs/LOG.md, 285 and 218 pairs/s; ranks
# 8, 16 and 32 of an adapter, whose arithmetic is the same, at 7.6k, 5.6k and 8.9k tokens/s.
HOST_SPREAD = 1.3
CPU_SPREAD = (
    2.0  # of another machine's cores. Source: preset smoke, 49 s on idle and 119 on busy ones
)
ANOTHER_HOST = 0.25  # added to a row's distance: a run made here says more
NEAR = 0.35  # rows that are this much farther away than the nearest count too
MOST_ROWS = 5
FAR = 4.0  # nothing is learnt from rows beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Seconds of a micro-step of one process, where they come from, and what bounds them."""

    micro_step_s: Range | None
    basis: str
    notes: tuple[str, ...]
    is_launch_bound: bool = False
    mfu: float | None = None


def rate_of(
    settings: Settings,
    plan: BatchPlan,
    hardware: Hardware,
    work: Work,
    rows: Sequence[SpeedRow],
) -> Rate:
    """Return the seconds of a micro-step of one process, with the name of their source."""
    wanted = case_of(settings, plan, hardware, work)
    if wanted.flops is None and not any(row.model == wanted.model for row in rows):
        note = f"the size of {wanted.model} is unknown, and no run with it was measured"
        return Rate(micro_step_s=None, basis=ESTIMATE, notes=(note,))
    found = sorted(_transfers(wanted, rows, spec_of(settings).name), key=lambda each: each.distance)
    return _rate_from(wanted, found, _floor(wanted, rows)) if found else _from_mfu(wanted, hardware)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """A measured row brought to the case that is asked for."""

    row: SpeedRow
    distance: float  # 0: the same run; about the log of how wrong it may be
    micro_step_s: Range
    differs: tuple[str, ...]
    is_here: bool
    is_launch_bound: bool


def _transfers(wanted: Case, rows: Sequence[SpeedRow], job: str) -> list[_Transfer]:
    found = []
    for row in rows:
        case = case_of_row(row, wanted)
        if case is None or case.family != wanted.family or case.is_gpu != wanted.is_gpu:
            continue
        moved = _transfer(wanted, case, row, 0.0 if row.job == job else 0.15)
        found += [moved] if moved is not None else []
    return found


def _transfer(wanted: Case, case: Case, row: SpeedRow, distance: float) -> _Transfer | None:
    """Return what a row says of the case; None where it says nothing."""
    taken_s, card = _alone_s(row), _card_factor(wanted, case)
    if card is None or not (case.weight and wanted.weight):
        return None
    differs = _differences(wanted, case)
    if not wanted.is_gpu and not row.settings:
        differs["card"] = 0.5  # another machine's CPU, whatever the number of its cores
    is_here, is_launching = "card" not in differs, _is_launching(case, taken_s)
    if is_launching:
        # What the CPU took tells nothing of the arithmetic of another card, or of a larger step.
        if not is_here or abs(math.log(wanted.tokens / case.tokens)) > math.log(1.5):
            return None
        step = Range.of(1.0, 1.0, 1.0) * (taken_s * wanted.launches / case.launches)
    else:
        step = card * (taken_s * wanted.weight / case.weight)
    distance += sum(differs.values()) + (0.0 if row.settings else ANOTHER_HOST)
    if distance > FAR:
        return None
    return _Transfer(
        row=row,
        distance=distance,
        micro_step_s=step,
        differs=tuple(differs),
        is_here=is_here,
        is_launch_bound=is_launching,
    )


def _alone_s(row: SpeedRow) -> float:
    """Return the seconds that a micro-step would take without other processes to wait for."""
    return row.micro_step_s * _ddp(row.world_size, row.device != CPU).expected


def _is_launching(case: Case, taken_s: float) -> bool:
    """Whether a step took the GPU far less time than it took the CPU to launch it."""
    peak = _peak(case)
    if peak is None or not case.is_gpu or not case.weight:
        return False
    return case.weight / (taken_s * peak) < LAUNCHING * CEILING[case.family]


def _floor(wanted: Case, rows: Sequence[SpeedRow]) -> Range:
    """Return what launching a micro-step takes the CPU: as measured here, else anywhere."""
    if not wanted.is_gpu:
        return Range.of(0.0, 0.0, 0.0)
    found: list[tuple[bool, float]] = []
    for row in rows:
        case = case_of_row(row, wanted)
        if case is not None and case.family == wanted.family and case.blocks and row.kind != LOOP:
            taken_s = _alone_s(row)
            if _is_launching(case, taken_s):
                found.append(
                    (case.device == wanted.device and bool(row.settings), taken_s / case.launches)
                )
    here = [seconds for is_here, seconds in found if is_here]
    seconds = sorted(here or [seconds for _, seconds in found]) or [LAUNCH_S[wanted.family]]
    middle = seconds[len(seconds) // 2]
    return Range.of(seconds[0], middle, max(seconds[-1], middle * SPREAD)) * wanted.launches


def _differences(wanted: Case, case: Case) -> dict[str, float]:
    """Return what differs, and by how much each makes a row a worse witness."""
    fused = {"auto": "sdpa"}
    pairs = {
        "card": (_place(wanted), _place(case), 0.5),
        "model": (wanted.model, case.model, 0.1),
        "method": (wanted.method, case.method, 0.4),
        "precision": (wanted.is_fp32, case.is_fp32, 1.0),
        "half precision": (wanted.precision, case.precision, 0.1),
        "checkpointing": (wanted.checkpointing, case.checkpointing, 0.4),
        "compiled blocks": (wanted.compiled, case.compiled, 0.5),
        "attention": (
            fused.get(wanted.attention, wanted.attention),
            fused.get(case.attention, case.attention),
            0.1,
        ),
        "padding": (wanted.packed, case.packed, 0.2),
        "processes": (wanted.world_size, case.world_size, 0.1),
    }
    found = {name: cost for name, (a, b, cost) in pairs.items() if a != b}
    if case.kind == LOOP:
        found["a plain loop"] = 0.5
    if (size := abs(math.log(wanted.tokens / case.tokens))) > math.log(1.25):
        found["tokens per micro-step"] = 0.3 * size
    work = (wanted.flops or 1.0) * (case.blocks or 1), (case.flops or 1.0) * (wanted.blocks or 1)
    if (scale := abs(math.log(work[0] / work[1]))) > math.log(1.1):
        found["size"] = 0.4 * scale
    return found


def _place(case: Case) -> tuple[Any, ...]:
    return (case.device, None if case.is_gpu else case.cpu_count)


def _card_factor(wanted: Case, case: Case) -> Range | None:
    """Return how much longer a step takes on the wanted card; None where a card is unknown.

    Between the ratio of arithmetic and that of memory bandwidth: steps are bound by some of each.
    """
    if not wanted.is_gpu:
        cores = (case.cpu_count or wanted.cpu_count or 1) / (wanted.cpu_count or 1)
        same = cores == 1.0
        low, high = (1.0, 1.0) if same else sorted((cores, 1.0))
        return Range.of(low, math.sqrt(low * high), high if same else 2 * high)
    if wanted.device == case.device:
        return Range.of(1.0, 1.0, 1.0)
    here, there = known_gpus().get(wanted.device), known_gpus().get(case.device)
    if here is None or there is None:
        return None
    peaks = [each.bf16_tflops or each.fp16_tflops for each in (here, there)]
    if None in peaks:
        return None
    ratios = sorted(
        (
            peaks[1] / peaks[0],
            there.memory_bandwidth_bytes_per_s / here.memory_bandwidth_bytes_per_s,
        )
    )
    return Range.of(ratios[0], math.sqrt(ratios[0] * ratios[1]), ratios[1])


def _rate_from(wanted: Case, found: list[_Transfer], floor: Range) -> Rate:
    """Return the mean of the nearest rows, weighted by nearness, and the range that they span."""
    first = found[0]
    near = [each for each in found if each.distance <= first.distance + NEAR][:MOST_ROWS]
    weights = [math.exp(-(each.distance - first.distance) / 0.15) for each in near]
    logs = [math.log(each.micro_step_s.expected) for each in near]
    mean = math.exp(sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights))
    close = [e for e, w in zip(near, weights, strict=True) if w > 0.3]
    # A row that had to be changed is right within about this much: see FAR, CHECKPOINTING.
    width = HOST_SPREAD if wanted.is_gpu else CPU_SPREAD
    width = SPREAD if first.row.settings else width
    far = first.distance - (0.0 if first.row.settings else ANOTHER_HOST)
    width *= math.exp(0.25 * min(far, 2.0))
    low = min(min(each.micro_step_s.low for each in close), mean / width)
    high = max(max(each.micro_step_s.high for each in close), mean * width)
    ddp, is_launching = _ddp(wanted.world_size, wanted.is_gpu), first.is_launch_bound
    if not is_launching and floor.expected >= mean:
        low, mean, high = max(low, floor.low), floor.expected, max(high, floor.high)
        is_launching = True
    step = Range.of(low / ddp.high, mean / ddp.expected, high / ddp.low)
    return Rate(
        micro_step_s=step,
        basis=_basis(first),
        notes=tuple(_told(wanted, first, len(close), is_launching)),
        is_launch_bound=is_launching,
        mfu=_mfu(wanted, step.expected),
    )


EASY = {"processes", "tokens per micro-step", "half precision", "a plain loop", "attention"}


def _basis(best: _Transfer) -> str:
    """Name the source: anything that changed the arithmetic makes it an estimate."""
    hard = set(best.differs) - EASY - {"card"}
    if family_of(best.row.job) == ADAPTER:
        hard -= {"model"} if "size" not in best.differs else set()
    if hard - {"model"}:
        return ESTIMATE
    return MEASURED if best.is_here else SCALED


def _told(wanted: Case, best: _Transfer, count: int, is_launching: bool) -> list[str]:
    row = best.row
    others = f" and {count - 1} more like it" if count > 1 else ""
    found = [f"{row.tokens_per_s:,.0f} useful tokens/s on {row.device} ({row.source}){others}"]
    changed = [name for name in best.differs if name != "a plain loop"]
    if changed:
        found.append(f"brought to this run: {', '.join(changed)}")
    if is_launching:
        found.append("bound by the CPU that launches the kernels: a larger micro-step costs little")
    if wanted.world_size > 1 and not wanted.is_gpu:
        found.append(f"{wanted.world_size} processes share the cores")
    elif wanted.world_size > 1:
        scale = wanted.world_size * _ddp(wanted.world_size, wanted.is_gpu).expected
        found.append(
            f"{wanted.world_size} processes as {scale:.2f} (measured for two: 1.86 to 1.89"
            + (")" if wanted.world_size == 2 else "; more is assumed)")
        )
    return found


def _ddp(world_size: int, is_gpu: bool) -> Range:
    """Return the share of its own speed that each of several processes keeps.

    Processes without a GPU share the cores that one of them would have had.
    """
    if not is_gpu:
        return Range.of(0.8 / world_size, 1.0 / world_size, 1.0 / world_size)
    doublings = math.log2(max(world_size, 1))
    low, expected, high = (share**doublings for share in DDP_SHARE)
    return Range.of(low, expected, high)


def _peak(wanted: Case) -> float | None:
    """Return the card's dense operations per second; of a CPU, by its cores."""
    if not wanted.is_gpu:
        return (wanted.cpu_count or 1) * CPU_FLOPS_PER_CORE[1]
    spec = known_gpus().get(wanted.device)
    tflops = (spec.bf16_tflops or spec.fp16_tflops) if spec else None
    return tflops * 1e12 if tflops else None


def _mfu(wanted: Case, micro_step_s: float) -> float | None:
    peak = _peak(wanted)
    if peak is None or not wanted.flops or not wanted.is_gpu:
        return None
    return wanted.flops * wanted.tokens / micro_step_s / peak


def _from_mfu(wanted: Case, hardware: Hardware) -> Rate:
    """Return an estimate from the card's throughput alone: no measured run is alike."""
    peak = _peak(wanted)
    if peak is None:
        name = hardware.gpu.name if hardware.gpu is not None else "this GPU"
        note = f"the throughput of {name} is unknown, and no run on it was measured"
        return Rate(micro_step_s=None, basis=ESTIMATE, notes=(note,))
    weight = replace(wanted, compiled=True).weight
    if wanted.is_gpu:
        shares, said = (
            MFU_RANGE,
            f"{MFU_RANGE[0]:.0%} to {MFU_RANGE[2]:.0%} of {peak / 1e12:g} TFLOP/s",
        )
    else:
        cores = wanted.cpu_count or 1
        shares = tuple(each / CPU_FLOPS_PER_CORE[1] for each in CPU_FLOPS_PER_CORE)
        said = (
            f"{shares[0] * peak / 1e9:.0f} to {shares[2] * peak / 1e9:.0f} GFLOP/s of {cores} cores"
        )
    floor, ddp = wanted.launch_s, _ddp(wanted.world_size, wanted.is_gpu)
    seconds = [max(weight / (peak * share), floor) for share in reversed(shares)]
    step = Range.of(seconds[0] / ddp.high, seconds[1] / ddp.expected, seconds[2] / ddp.low)
    return Rate(
        micro_step_s=step,
        basis=ESTIMATE,
        notes=(f"{said} (assumed: no measured run is alike)",),
        is_launch_bound=seconds[1] <= floor,
        mfu=_mfu(wanted, step.expected),
    )
