"""Is the simulated allocator PyTorch's? Record a real one on a GPU, and replay it without one.

    python benchmarks/memory_allocator.py record OUT      # on a GPU: two JSON files in OUT
    python benchmarks/memory_allocator.py replay OUT/*.json

The replay gives the same requests in the same order to `nbhelpers.simulate.allocator` and tells how
far reserved bytes and the order of addresses are from the recorded ones.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 2**20
KINDS = ("alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")


def main(arguments: list[str]) -> int:
    """Record, or replay and print a line for each file."""
    what, *places = arguments
    if what == "record":
        for name, setting in (("plain", "False"), ("expandable", "True")):
            settings = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{setting}"}
            path = Path(places[0]) / f"allocator-{name}.json"
            command = [sys.executable, __file__, "child", str(path)]
            subprocess.run(command, check=True, env=os.environ | settings)
        return 0
    if what == "child":
        Path(places[0]).write_text(json.dumps(record()), encoding="utf-8")
        return 0
    for place in places:
        found = replay(json.loads(Path(place).read_text(encoding="utf-8")))
        print(Path(place).name, json.dumps(found))
    return 0


def record() -> dict[str, Any]:
    """Return the events of a random history and of some training steps on this GPU."""
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    _random_history(torch)
    _training(torch)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    told = [
        (KINDS.index(e["action"]), e["addr"], e["size"]) for e in events if e["action"] in KINDS
    ]
    stats = torch.cuda.memory_stats()
    peaks = {n: stats[f"{n}_bytes.all.peak"] for n in ("allocated", "reserved")}
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return {
        "torch": torch.__version__,
        "expandable": conf.endswith("True"),
        **peaks,
        "events": told,
    }


def _random_history(torch: Any) -> None:
    chance, live = random.Random(0), []
    for _ in range(4000):
        if live and chance.random() < 0.48:
            live.pop(chance.randrange(len(live)))
        else:
            size = int(2 ** chance.uniform(4, 27))
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def _training(torch: Any) -> None:
    """Blocks of a small transformer at changing lengths, with AdamW."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for length in (512, 300, 520, 128, 400, 512):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(16, length, 768, device="cuda")).float().square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def replay(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return how far the simulated allocator is from the recorded one."""
    from nbhelpers.simulate.allocator import CachingAllocator

    allocator = CachingAllocator(expandable_segments=recorded["expandable"])
    blocks: dict[int, Any] = {}
    real = worst = 0
    same = total = 0
    bases: dict[int, int] = {}  # real address minus simulated, of blocks that stand alike
    for kind, address, size in recorded["events"]:
        name = KINDS[kind]
        if name == "alloc":
            blocks[address] = block = allocator.malloc(size)
            total += 1
            same += bases.setdefault(address - block.address, total) != total
            worst = max(worst, abs(allocator.reserved - real) / max(real, 1))
        elif name == "free_completed" and address in blocks:
            allocator.free(blocks.pop(address))
        elif name in ("segment_alloc", "segment_map"):
            real += size
        elif name in ("segment_free", "segment_unmap"):
            real -= size
    return {
        "torch": recorded["torch"],
        "requests": total,
        "reserved": recorded["reserved"],
        "reserved_simulated": allocator.peak_reserved,
        "largest_gap_of_reserved": worst,
        "allocated": recorded["allocated"],
        "allocated_simulated": allocator.peak_allocated,
        "share_at_known_offsets": same / max(total, 1),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
