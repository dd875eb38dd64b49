"""A small training run in one or several processes, for tests.

It uses the job's own loop, batches and model on made-up functions, and writes the final weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2Model, RobertaConfig, RobertaModel

from nbhelpers.data.pairs import ClonePairs
from nbhelpers.jobs.clones import PairTask
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState, seed_everything
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.inputs import GraphTable, TokenTable
from nbhelpers.plan import split_batch


def made_up_table(functions: int, seed: int = 0) -> TokenTable:
    """Functions of 3 to 30 random tokens."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 31, functions)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(4, 60, offsets[-1]).astype(np.int32)
    return TokenTable(ids=ids, offsets=offsets, bos_id=1, eos_id=2, pad_id=0, seq_len=24)


def made_up_graphs(functions: int, seed: int = 0) -> GraphTable:
    """Functions of 4 to 30 random tokens, with up to 8 nodes, some of them cut off."""
    draw = np.random.default_rng(seed)
    lengths, nodes = draw.integers(4, 31, functions), draw.integers(0, 9, functions)
    ids = [[0, *draw.integers(4, 60, n - 2), 2] for n in lengths]
    start = [draw.integers(1, n - 1, k) for n, k in zip(lengths, nodes, strict=True)]
    is_cut = [draw.random(k) < 0.2 for k in nodes]
    first = [np.where(cut, 0, s) for s, cut in zip(start, is_cut, strict=True)]
    end = [np.where(cut, 0, s + 1) for s, cut in zip(start, is_cut, strict=True)]
    return GraphTable(
        ids=np.concatenate(ids).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        node_start=np.concatenate(first).astype(np.int32),
        node_end=np.concatenate(end).astype(np.int32),
        node_offsets=np.cumsum([0, *nodes]),
        link_from=np.concatenate([np.arange(k) for k in nodes]).astype(np.int32),
        link_to=np.concatenate([draw.integers(0, k, k) for k in nodes if k]).astype(np.int32),
        link_offsets=np.cumsum([0, *nodes]),
        is_cut=np.zeros(len(lengths), dtype=bool),
        pad_id=1,
        unk_id=3,
        seq_len=40,
    )


def encoder(family: str, dropout: float) -> GPT2Model | RobertaModel:
    """A tiny encoder of the family."""
    if family == "gpt2":
        drops = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
        config = GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2, **drops)
        config._attn_implementation = "sdpa"
        return GPT2Model(config)
    config = RobertaConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=42,
        type_vocab_size=1,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config._attn_implementation = "sdpa"
    return RobertaModel(config, add_pooling_layer=False)


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
    family, p = config.get("family", "gpt2"), config["dropout"]
    model = CloneModel(encoder(family, p), dropout=p)
    table = made_up_table(40) if family == "gpt2" else made_up_graphs(40)
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
    inputs = SimpleNamespace(data=data, table=table, found=raw.encoder)  # with `config`
    task = PairTask(settings, inputs, accelerator, raw)
    plan = split_batch(
        settings.global_batch_size,
        config["per_device"],
        accelerator.num_processes,
        allow_uneven=True,
    )
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=settings,
        plan=plan,
        hooks=Hooks(),
    )
    state = trainer.fit(TrainState())
    given, swapped = task.predict(data.splits["valid"])
    if accelerator.is_main_process:
        out = Path(config["out"])
        save_file({k: v.contiguous() for k, v in raw.state_dict().items()}, out)
        facts = {"state": state.to_dict(), "p": given.tolist(), "p_reversed": swapped.tolist()}
        out.with_suffix(".json").write_text(json.dumps(facts))
