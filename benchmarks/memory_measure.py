"""Measure configurations of the memory grid on a GPU, one forked child each.

    python benchmarks/memory_measure.py OUT [NAME ...] [--room GIB] [--seconds S]
    python benchmarks/memory_measure.py OUT NAME@14.3 ...      the allocator may have 14.3 GiB
    python benchmarks/memory_measure.py OUT NAME+expandable    with segments that grow

Without names all are run. A JSON line per configuration is appended to OUT/measured.jsonl; the
allocator's events of the last step are kept in OUT/events/NAME.json.gz. Several children run side
by side as far as `--room` (or the GPU's memory) and the sizes predicted in `--sizes` allow.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import memory_cases

GIB = 2**30
UNKNOWN_GIB = 34.0  # of a configuration without a prediction
CHILD_S = 150.0
STEPS = 3
_MODULES = ("gemma2", "llama", "qwen2", "qwen3", "mistral", "phi", "mixtral", "gpt2", "starcoder2")
_MODULES += ("roberta", "bert", "modernbert", "deberta_v2", "vit", "t5", "whisper")


def load_libraries() -> None:
    """Import in the parent what every child needs; nothing here touches CUDA or bitsandbytes."""
    # Asking CUDA how many GPUs there are, as imports do, would leave forked children without it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import importlib

    import peft  # noqa: F401

    for name in _MODULES:
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def add_bitsandbytes() -> None:
    """Make bitsandbytes importable in this child, and let PEFT look for it again."""
    import importlib

    site = Path(os.environ.get("BNB_SITE", ".bnb_site")).resolve()
    if site.is_dir():
        sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    from peft import import_utils

    for name in ("is_bnb_available", "is_bnb_4bit_available"):
        getattr(import_utils, name).cache_clear()
    sys.modules.pop("peft.tuners.lora.bnb", None)


class Phases:
    """Peak of the allocator by phase of a step, told by backward() and the optimizer.

    What a stretch of time was is known when it ends: before backward() it was the forward.
    """

    def __init__(self) -> None:
        import torch

        self.cuda, self.attention = torch.cuda, {}
        self.peaks: dict[str, int] = {}
        self.reserved = 0
        original = torch.Tensor.backward

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> None:
            self.close("forward")
            if not self.attention:
                self.attention = attention_nodes(tensor.grad_fn)
            original(tensor, *args, **kwargs)
            self.close("backward")

        torch.Tensor.backward = backward

    def close(self, name: str) -> None:
        """End a stretch of time as the phase `name`."""
        peak = self.cuda.max_memory_allocated()
        self.peaks[name] = max(self.peaks.get(name, 0), peak)
        self.reserved = max(self.reserved, self.cuda.max_memory_reserved())
        self.cuda.reset_peak_memory_stats()

    def take(self) -> dict[str, int]:
        """Return the peaks since the last call, and forget them."""
        peaks, self.peaks = self.peaks, {}
        return peaks


def attention_nodes(node: Any) -> dict[str, int]:
    """Count the attention kernels in an autograd graph (not inside checkpoints)."""
    seen, todo, found = set(), [node], {}
    while todo:
        at = todo.pop()
        if at is None or at in seen:
            continue
        seen.add(at)
        if "Attention" in (name := at.name()):
            found[name] = found.get(name, 0) + 1
        todo += [following for following, _ in at.next_functions]
    return found or {"none": len(seen)}


def measure(name: str, out: Path) -> dict[str, Any]:
    """Build and train one configuration; returns what the allocator told."""
    import torch

    case = memory_cases.find_case(name)
    if memory_cases.is_quantised(case):
        add_bitsandbytes()
    if memory_cases.is_expandable(name):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    found: dict[str, Any] = {"context_start_bytes": outside_allocator()}
    total = torch.cuda.get_device_properties(0).total_memory
    if cap := memory_cases.cap_of(name):
        torch.cuda.set_per_process_memory_fraction(cap * GIB / total)
    try:
        run(case, found, None if cap else out / "events" / f"{name}.json.gz")
        found["ok"] = True
    except torch.cuda.OutOfMemoryError as error:
        found |= {"ok": False, "error": "OutOfMemory", "text": str(error)[:300]}
    stats = torch.cuda.memory_stats()
    found |= {k: stats.get(k) for k in ("num_alloc_retries", "num_ooms")}
    found["context_end_bytes"] = outside_allocator()
    return found | {"device": torch.cuda.get_device_name(0), "total_bytes": total}


def outside_allocator() -> int:
    """Bytes in use on the GPU, but for what this process's allocator reserved."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def run(case: dict[str, Any], found: dict[str, Any], events: Path | None) -> None:
    """Run build and the steps, filling `found`; the last step's events go to a file."""
    import torch

    from benchmarks.memory_cases_steps import make

    build, step = make(case)
    started = time.monotonic()
    built = build()
    torch.cuda.synchronize()
    found["build_s"] = time.monotonic() - started
    phases = Phases()
    phases.close("load")
    found["built_bytes"] = torch.cuda.memory_allocated()
    found["built_reserved_bytes"] = torch.cuda.memory_reserved()
    found["steps"] = []
    for number in range(STEPS):
        last = number == STEPS - 1 and events is not None
        before = torch.cuda.memory_allocated()
        if last:
            torch.cuda.memory._record_memory_history(
                enabled="all", context=None, stacks="python", max_entries=1_000_000
            )
        started = time.monotonic()
        loss = float(step(*built))
        phases.close("optimizer")
        found["steps"].append(
            {"phases": phases.take(), "loss": loss, "s": time.monotonic() - started}
            | {"before_bytes": before, "after_bytes": torch.cuda.memory_allocated()}
        )
        if last:
            write_events(events, before)
    found["attention"] = phases.attention
    found["allocated_bytes"] = max(max(each["phases"].values()) for each in found["steps"])
    found["reserved_bytes"] = phases.reserved


def write_events(path: Path, before: int) -> None:
    """Write the recorded events: ["a", bytes, number], ["f", bytes, number], ["s" or "u", bytes].

    A free's number is that of its allocation, -1 where that was before the step.
    """
    import gzip

    import torch

    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    numbers: dict[int, int] = {}
    events: list[list[Any]] = []
    for entry in trace:
        action, size, address = entry["action"], entry["size"], entry.get("addr")
        if action == "alloc":
            numbers[address] = len(events)
            events.append(["a", size, len(events)])
        elif action == "free_completed":
            events.append(["f", size, numbers.pop(address, -1)])
        elif action.startswith("segment"):
            events.append(["s" if "alloc" in action or action == "segment_map" else "u", size])
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"before_bytes": before, "events": events}, file, separators=(",", ":"))


def versions() -> dict[str, str]:
    """Versions of the libraries that decide how much memory a step takes."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in (
        "torch",
        "transformers",
        "peft",
        "trl",
        "accelerate",
        "bitsandbytes",
        "liger-kernel",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def child(name: str, out: Path, pipe: int) -> None:
    """Measure in this process, hand the result to the parent, and end."""
    import torch

    if torch._C._cuda_isInBadFork():  # the parent touched CUDA after all: begin anew
        os.set_inheritable(pipe, True)
        again = [sys.executable, "-m", "benchmarks.memory_measure", str(out), name]
        os.execv(sys.executable, [*again, "--pipe", str(pipe)])
    found: dict[str, Any] = {"name": name}
    started = time.monotonic()
    try:
        found |= measure(name, out)
    except Exception as error:
        found |= {"ok": False, "error": type(error).__name__, "text": str(error)[:600]}
        found["traceback"] = traceback.format_exc()[-1500:]
    found |= {"wall_s": time.monotonic() - started, "versions": versions()}
    with os.fdopen(pipe, "wb") as file:
        file.write(json.dumps(found).encode())
    os._exit(0)


class Pool:
    """Children side by side, as many as the room on the GPU allows; results as JSON lines."""

    def __init__(self, out: Path, options: argparse.Namespace, sizes: dict[str, float]) -> None:
        self.out, self.options, self.sizes = out, options, sizes
        self.running: dict[int, dict[str, Any]] = {}
        self.end = time.monotonic() + options.seconds
        out.mkdir(parents=True, exist_ok=True)
        self.file = (out / "measured.jsonl").open("a", encoding="utf-8")

    def gib(self, name: str) -> float:
        """Room that a child is given: the cap, else what was predicted, and its context."""
        return (
            memory_cases.cap_of(name) or 1.06 * self.sizes.get(name.partition("+")[0], UNKNOWN_GIB)
        ) + 1.0

    def run(self, names: list[str]) -> None:
        """Run all; what does not start before the time is over is named."""
        # Alone first: what a context takes can only be read where nobody else is.
        for name in names[: self.options.alone]:
            self.start(name)
            self.wait_all()
        todo = names[self.options.alone :]
        while todo and time.monotonic() < self.end:
            used = sum(each["gib"] for each in self.running.values())
            free = [n for n in todo if not self.running or used + self.gib(n) <= self.options.room]
            if free and len(self.running) < self.options.at_once:
                todo.remove(free[0])
                self.start(free[0])
            else:
                self.wait()
        self.wait_all()
        for name in todo:
            self.keep({"name": name, "ok": False, "error": "NotRun"})

    def start(self, name: str) -> None:
        """Fork a child."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            child(name, self.out, write)
        os.close(write)
        self.running[read] = {"pid": pid, "name": name, "gib": self.gib(name), "data": b""}
        self.running[read]["until"] = time.monotonic() + CHILD_S

    def wait_all(self) -> None:
        """Wait until no child runs."""
        while self.running:
            self.wait()

    def wait(self) -> None:
        """Read from the children until one has something; stop those that take too long."""
        for pipe in select.select(list(self.running), [], [], 2.0)[0]:
            data = os.read(pipe, 1 << 20)
            if data:
                self.running[pipe]["data"] += data
            else:
                self.finish(pipe)
        for entry in self.running.values():
            if time.monotonic() > entry["until"]:
                os.kill(entry["pid"], signal.SIGKILL)

    def finish(self, pipe: int) -> None:
        """Take a child's result."""
        os.close(pipe)
        entry = self.running.pop(pipe)
        os.waitpid(entry["pid"], 0)
        try:
            self.keep(json.loads(entry["data"]))
        except ValueError:  # it was killed before it had written all
            self.keep({"name": entry["name"], "ok": False, "error": "Died"})

    def keep(self, found: dict[str, Any]) -> None:
        """Append a result, and print its line."""
        self.file.write(json.dumps(found) + "\n")
        self.file.flush()
        told = f"{found.get('error')}: {found.get('text', '')[:160]}"
        if "allocated_bytes" in found:
            told = f"{found['allocated_bytes'] / GIB:7.3f} {found['reserved_bytes'] / GIB:7.3f}"
        print(f"{found['name']:44s} {told}  {found.get('wall_s', 0):.1f} s", flush=True)


def room_of_gpu() -> float:
    """GiB of the first GPU that are free, read without CUDA."""
    import pynvml

    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return memory.free / GIB - 2.0


def read_sizes(path: Path | None) -> dict[str, float]:
    """Return predicted reserved GiB by configuration."""
    if path is None or not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["predictions"]
    return {row["name"]: row["reserved_bytes"] / GIB for row in rows if row.get("reserved_bytes")}


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--room", type=float, help="GiB for all children together")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--alone", type=int, default=2, help="how many run alone at first")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--sizes", type=Path, help="predictions, for what fits side by side")
    parser.add_argument("--pipe", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pipe is not None:
        child(options.names[0], options.out, options.pipe)
    options.room = options.room or room_of_gpu()
    load_libraries()
    Pool(options.out, options, read_sizes(options.sizes)).run(options.names or [*memory_cases.ALL])


if __name__ == "__main__":
    main()
