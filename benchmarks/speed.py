"""What the three speed benchmarks share: windows of training, a run of ours, JSON, and the page.

    python -m benchmarks.speed_finetune OUT      Gemma-2-2B's shape: ours, TRL, Liger, a plain loop
    python -m benchmarks.speed_clones OUT        CodeGPT's and GraphCodeBERT's shape: ours, scripts
    python -m benchmarks.speed_detector OUT      CodeBERT's shape: ours, a plain loop
    python -m benchmarks.speed                   docs/BENCHMARKS.md from docs/benchmarks/*.json

With `--cpu` a benchmark trains tiny shapes for a few steps: it shows that all contenders compute
the same loss and gradients, and its speeds mean nothing.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

import nbhelpers as nb
from nbhelpers.jobs import forecast
from nbhelpers.jobs.worker import work
from nbhelpers.runs.events import EventWriter, read_events
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import run_record, write_record

PAGE, FOLDER = Path("docs/BENCHMARKS.md"), Path("docs/benchmarks")
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}  # dense bf16, by NVIDIA's datasheets

Step = Callable[[], tuple[int, int]]  # trains one optimizer step; returns (examples, useful tokens)


@dataclass(slots=True, kw_only=True)
class Speed:
    """One contender on one batch shape.

    Args:
        case: What is trained, the same for all contenders that are compared.
        contender: Who trains it: `nbhelpers`, `TRL's defaults`, and so on.
        unit: What `rates` count: useful tokens, or pairs.
        rates: Units per second of each window.
        flops_per_unit: For the MFU, 0: none is told; `convention` says how they are counted.
        loss_error: Relative difference of the first loss from the plain one; likewise of gradients.
    """

    case: str
    contender: str
    unit: str
    rates: list[float] = field(default_factory=list)
    flops_per_unit: float = 0.0
    convention: str = ""
    peak_gib: float | None = None
    loss_error: float | None = None
    gradient_error: float | None = None
    note: str = ""

    @property
    def rate(self) -> float:
        """The median of the windows."""
        return median(self.rates) if self.rates else float("nan")


def timed_windows(
    step: Step, *, unit: str, warm_up: int = 3, windows: int = 5, steps: int = 4
) -> list[float]:
    """Return units per second of some windows of optimizer steps, after a warm-up."""
    at = 1 if unit == "useful tokens" else 0
    for _ in range(warm_up):
        step()
    rates = []
    for _ in range(windows):
        synchronise()
        began = time.perf_counter()
        count = sum(step()[at] for _ in range(steps))
        synchronise()
        rates.append(count / (time.perf_counter() - began))
    return rates


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clear() -> None:
    """Give back what a contender left, and count the peak anew."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Return the allocator's peak since `clear`."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def peak_of(result: dict[str, Any]) -> float | None:
    """Return the measured peak of a run of ours on a GPU."""
    memory = result["memory"]
    return memory["measured_bytes"] / 2**30 if memory["device"] == "cuda" else None


def own_run(preset: Any, hardware: Any, out: Path) -> tuple[Run, dict[str, Any]]:
    """Train a preset in this process, as a worker does; return the run and its result."""
    plan = nb.plan_batch(preset, hardware)
    parts = {"preset": preset, "plan": plan, "hardware": hardware, "budget": None}
    record = run_record(**parts, mode="train", checkpoint=None)
    run = Run(out / "runs" / record["run_id"])
    run.path.parent.mkdir(parents=True, exist_ok=True)
    write_record(run, record)
    forecast.LIMIT_S = forecast.TRL_LIMIT_S = 60.0  # this process has loaded what a child has not
    with EventWriter(run.path, 0) as writer:
        work(run, writer, lambda: False)
    return run, json.loads(run.result_path.read_text(encoding="utf-8"))


def own_rates(run: Run, *, unit: str, warm_up: int, steps: int) -> list[float]:
    """Return units per second of each window of a run with `logging_steps=1`."""
    name = "useful_tokens" if unit == "useful tokens" else "examples"
    events = [
        e for e in read_events(run.events_path(0)) if e["type"] == "step" and e["step"] >= warm_up
    ]
    marks = [(e[name], e["elapsed_s"]) for e in events[::steps]]
    return [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(marks)]


def write(out: Path, job: str, speeds: list[Speed], facts: dict[str, Any] | None = None) -> Path:
    """Write the contenders of a job with what the machine and the command were."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = {name: _version(name) for name in ("torch", "transformers", "trl", "peft")}
    page = {
        "job": job,
        "machine": device,
        "gpus": torch.cuda.device_count(),
        "versions": versions,
        "command": " ".join(["python -m", f"benchmarks.speed_{job}", *sys.argv[1:]]),
        "speeds": [asdict(speed) for speed in speeds],
        "facts": facts or {},
    }
    path = out / f"{job}.json"
    path.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    return path


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def mfu(speed: Speed, machine: str) -> float | None:
    """Return the share of the GPU's dense bf16 peak; None where it is not known."""
    peak = next((value for name, value in PEAK_TFLOPS.items() if name in machine), None)
    if peak is None or not speed.flops_per_unit:
        return None
    return speed.rate * speed.flops_per_unit / (peak * 1e12)


def page_of(job: dict[str, Any]) -> str:
    """Return the Markdown of one job: a table for each case, rates beside ours."""
    speeds = [Speed(**line) for line in job["speeds"]]
    versions = ", ".join(f"{name} {v}" for name, v in job["versions"].items() if v)
    gpus = f"{job['gpus']} x {job['machine']}" if job["gpus"] > 1 else job["machine"]
    lines = [f"## {job['job'].capitalize()}", "", f"{gpus}; {versions}. `{job['command']}`", ""]
    for case in dict.fromkeys(speed.case for speed in speeds):
        rows = [speed for speed in speeds if speed.case == case]
        own = next((s.rate for s in rows if s.contender.startswith("nbhelpers")), float("nan"))
        unit = rows[0].unit
        head = [f"{unit}/s", "windows", "ours is", "MFU", "peak GiB", "loss, gradients apart", ""]
        lines += [f"**{case}**", "", "| | " + " | ".join(head) + " |", "|---" * 8 + "|"]
        lines += [_row(speed, own, job["machine"]) for speed in rows]
        lines.append("")
    lines += [f"- {name}: {value}" for name, value in job["facts"].items()]
    return "\n".join(lines).rstrip() + "\n"


def _row(speed: Speed, own: float, machine: str) -> str:
    share = mfu(speed, machine)
    apart = [f"{x:.1e}" for x in (speed.loss_error, speed.gradient_error) if x is not None]
    spread = f"{min(speed.rates):,.0f} to {max(speed.rates):,.0f}" if speed.rates else ""
    cells = [
        speed.contender,
        f"{speed.rate:,.0f}" if speed.rates else "-",
        spread,
        f"{own / speed.rate:.2f}x" if speed.rates and own == own else "",
        f"{share:.1%} ({speed.convention})" if share else "",
        f"{speed.peak_gib:.1f}" if speed.peak_gib else "",
        ", ".join(apart),
        speed.note,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Write the page from the results that are kept."""
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    head = (
        "# Benchmarks\n\nUseful tokens (padding not counted) or pairs per second, the median of "
        "several windows of training steps; contenders of a table ran in turn in one call on one "
        "machine. Made by `python -m benchmarks.speed` from `docs/benchmarks/`.\n\n"
    )
    PAGE.write_text(head + "\n".join(page_of(job) for job in jobs), encoding="utf-8")


if __name__ == "__main__":
    main()
