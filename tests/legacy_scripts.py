"""A small clone script of the kind that is repaired whole; it runs on CPU, by two processes too."""

from __future__ import annotations

from pathlib import Path

# Marked lines are those that the repair changes; "# n" words name the faults that stay.
SCRIPT = '''\
"""Trains a tiny pair model; args = parser.parse_args() stands in this text too."""
from __future__ import annotations
import argparse, random
import os
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from transformers import AdamW, get_linear_schedule_with_warmup


class Pairs(Dataset):
    def __init__(self, args, name):
        self.name = name
        self.pairs = [(f"{n}", f"{n * n}", float(n % 2)) for n in range(args.size)]
        if name != "test":
            self.pairs = random.sample(self.pairs, len(self.pairs) // 2)  # sampled

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, place):
        url1, url2, label = self.pairs[place]
        return torch.tensor([float(url1), label]), torch.tensor([label])


def train(args, data, model):
    sampler = RandomSampler(data) if args.local_rank == -1 else DistributedSampler(data)  # epoch
    batches = DataLoader(data, sampler=sampler, batch_size=2)
    args.max_steps = args.epochs * len(batches)
    args.save_steps = len(batches)
    optimizer = AdamW(model.parameters(), lr=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, num_training_steps=args.max_steps)
    if args.local_rank != -1:
        model = DistributedDataParallel(model)
    global_step, best = 0, -1.0
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(batches):
            model.train()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
            if (step + 1) % args.accumulation_steps == 0:  # group
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                global_step += 1
                if args.local_rank in [-1, 0] and global_step % args.save_steps == 0:
                    if args.local_rank == -1 and args.evaluate_during_training:  # single
                        results = evaluate(args, model)
                    if results["score"] > best:
                        best = results["score"]
                        inner = model.module if hasattr(model, "module") else model
                        torch.save(inner.state_dict(), os.path.join(args.output_dir, "model.bin"))


def evaluate(args, model):
    data = Pairs(args, "valid")
    sampler = SequentialSampler(data) if args.local_rank == -1 else DistributedSampler(data)
    threshold = max([0.3, 0.4])
    total = 0
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, sampler=sampler):
            total += len(model(x))
    assert total == len(data), "a share of the pairs is evaluated"
    return {"score": total, "threshold": threshold}


def test(args, model, threshold=0.0):
    data = Pairs(args, "test")
    if args.local_rank == -1:
        sampler = SequentialSampler(data)
    else:
        sampler = DistributedSampler(data)
    model.eval()
    found = [model(x).item() > threshold for x, _ in DataLoader(data, sampler=sampler)]
    with open(os.path.join(args.output_dir, "predictions.txt"), "w") as file:
        for (url1, url2, _), one in zip(data.pairs, found):
            file.write(f"{url1} {url2} {int(one)}\\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)  # args.local_rank == -1
    parser.add_argument("--evaluate_during_training", action="store_true")
    parser.add_argument("--accumulation_steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--output_dir", default=".")
    args = parser.parse_args()
    if args.local_rank != -1:
        torch.distributed.init_process_group(backend="gloo")
    random.seed(3)
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    if args.local_rank == 0:
        torch.distributed.barrier()
    train(args, Pairs(args, "train"), model)
    if args.local_rank in [-1, 0]:
        model.load_state_dict(torch.load(os.path.join(args.output_dir, "model.bin")))
        test(args, model, threshold=0.5)  # half


if __name__ == "__main__":
    main()
'''

# A script of another style: the rank is 0 by default, and a flag says whether there are others.
HAND_WRITTEN = """\
import argparse, os
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
def test(model, batches):
    model.eval()
    return sum(model(x).sum().item() for x in batches)
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", default=0, type=int)
args = parser.parse_args()
args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
torch.cuda.set_device(args.local_rank)
if args.distributed:
    torch.distributed.init_process_group("nccl", init_method="env://")
sampler = torch.utils.data.DistributedSampler(train_set) if args.distributed else None
if args.distributed:
    model = DDP(model, device_ids=[args.local_rank])
for epoch in range(3):
    for x in torch.utils.data.DataLoader(train_set, sampler=sampler):
        model(x).sum().backward()
    if args.local_rank == 0:
        if test(model, valid_batches) > best:
            torch.save(model.state_dict(), "best.pt")
"""

# What the repair makes of the first, by hand.
_READ = """\
    args = parser.parse_args()
    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:
        args.local_rank = int(os.environ["LOCAL_RANK"])
"""
REPAIRS = (
    ("    args = parser.parse_args()\n    if", _READ + "    if"),
    ("import argparse, random\n", "from datetime import timedelta\nimport argparse, random\n"),
    ("= len(batches)\n    opt", "= max(1, len(batches) // args.accumulation_steps)\n    opt"),
    ("args.local_rank == -1 and args.eval", "args.local_rank in [-1, 0] and args.eval"),
    (
        "evaluate(args, model)\n",
        "evaluate(args, model.module if args.local_rank != -1 else model)\n",
    ),
    (
        "SequentialSampler(data) if args.local_rank == -1",
        "SequentialSampler(data) if args.local_rank in [-1, 0]",
    ),
    (
        "if args.local_rank == -1:\n        sampler",
        "if args.local_rank in [-1, 0]:\n        sampler",
    ),
    ('backend="gloo"', 'backend="gloo", timeout=timedelta(hours=24)'),
)


def repaired_by_hand(text: str = SCRIPT) -> str:
    """Return the script with every repair made; each occurs exactly once."""
    for old, new in REPAIRS:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def script(*changes: tuple[str, str]) -> str:
    """Return the script with pieces of its text exchanged; each must be there."""
    text = SCRIPT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def write(folder: Path, text: str | bytes, name: str = "run.py") -> Path:
    """Write a script byte for byte."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
