"""A small training run in one or several processes, for tests: `training_probe.py CONFIG.json`.

It uses the job's own loop, batches and model on made-up functions, and writes the final weights.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2Model

from nbhelpers.batching import split_batch
from nbhelpers.data.pairs import ClonePairs
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState, seed_everything
from nbhelpers.jobs.pairs import PairTask
from nbhelpers.models.clones import CloneModel
from nbhelpers.models.inputs import TokenTable


def made_up_table(functions: int, seed: int = 0) -> TokenTable:
    """Functions of 3 to 30 random tokens."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 31, functions)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(4, 60, offsets[-1]).astype(np.int32)
    return TokenTable(ids=ids, offsets=offsets, bos_id=1, eos_id=2, pad_id=0, seq_len=24)


def made_up_pairs(count: int, functions: int, seed: int) -> ClonePairs:
    """Random pairs; label 1 when the numbers of the functions have the same parity."""
    draw = np.random.default_rng(seed)
    left, right = draw.integers(0, functions, (2, count)).astype(np.int32)
    return ClonePairs(left=left, right=right, label=((left + right) % 2 == 0).astype(np.int8))


def main(config: dict) -> None:
    """Train and write weights (rank 0) and validation scores."""
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    settings = SimpleNamespace(**config["settings"])
    torch.set_default_dtype(getattr(torch, config.get("dtype", "float32")))
    seed_everything(settings.seed)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2}
    p = config["dropout"]
    drops = {"embd_pdrop": p, "attn_pdrop": p, "resid_pdrop": p}
    gpt = GPT2Config(vocab_size=60, n_positions=32, **drops, **shape)
    gpt._attn_implementation = "sdpa"
    model = CloneModel(GPT2Model(gpt), dropout=p)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
        if config["optimizer"] == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    )
    wrapped, prepared = accelerator.prepare(model, optimizer)
    raw = accelerator.unwrap_model(wrapped)
    data = SimpleNamespace(
        ids=[str(i) for i in range(40)],
        splits={
            "train": made_up_pairs(config["pairs"], 40, seed=1),
            "valid": made_up_pairs(50, 40, seed=2),
        },
    )
    task = PairTask(settings, SimpleNamespace(data=data, table=made_up_table(40)), accelerator, raw)
    plan = split_batch(
        settings.global_batch_size,
        config["per_device"],
        accelerator.num_processes,
        allow_uneven=True,
    )
    hooks = Hooks(
        emit=lambda *a, **k: None,
        save=lambda *a, **k: None,
        wants_stop=lambda: False,
        save_is_due=lambda: False,
        peak_bytes=lambda: 0,
        step_context=lambda step: nullcontext(),
    )
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=settings,
        plan=plan,
        hooks=hooks,
    )
    state = trainer.fit(TrainState())
    given, swapped = task.predict(data.splits["valid"])
    if accelerator.is_main_process:
        out = Path(config["out"])
        save_file({k: v.contiguous() for k, v in raw.state_dict().items()}, out)
        facts = {"state": state.to_dict(), "p": given.tolist(), "p_reversed": swapped.tolist()}
        out.with_suffix(".json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
