"""A small detector training in one or several processes, for tests.

It uses the job's own loop, task and model on made-up programs. What it writes: the final weights,
and where asked the gradients of one optimizer step.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from training_probe import encoder

from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.jobs.detector import parameter_groups
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState, seed_everything
from nbhelpers.jobs.models.detector import DetectorModel
from nbhelpers.jobs.models.inputs import TokenTable
from nbhelpers.plan import split_batch

LANGUAGES = ("python", "java")


def made_up_inputs(programs: int, *, unlabelled: int = 0) -> Any:
    """Programs of 3 to 22 random tokens, three to a task, with one edited form of most of them."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 23, 2 * programs)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(4, 60, offsets[-1]).astype(np.int32)
    table = TokenTable(ids=ids, offsets=offsets, bos_id=0, eos_id=2, pad_id=1, seq_len=24)
    labels = ["ai" if at % 2 else "human" for at in range(programs)]
    rows = tuple(
        CodeRow(
            id=str(at),
            code="x",
            language=LANGUAGES[at % 2],
            label=None if at < unlabelled else labels[at],
            task=f"task {at // 3}",
            author="",
            generator="",
            source="made up",
            licence="",
            date="",
            place=f"row {at}",
        )
        for at in range(programs)
    )
    count = programs // 4
    splits = {"train": np.arange(count, programs), "valid": np.arange(count)}
    form = programs + splits["train"]
    form[::5] = -1  # every fifth cannot be edited

    def labels_of(split: str) -> np.ndarray:
        numbers = {"human": 0, "ai": 1, None: -1}
        return np.array([numbers[rows[row].label] for row in splits[split]])

    return SimpleNamespace(
        data=SimpleNamespace(rows=rows, splits=splits),
        table=table,
        rows=np.arange(programs),
        forms={"rename": form},
        labels=labels_of,
        split_rows=lambda split: [rows[row] for row in splits[split]],
    )


def make_trainer(config: dict[str, Any]) -> tuple[Trainer, DetectorModel]:
    """Return the trainer of a configuration and its bare model."""
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    settings = SimpleNamespace(**config["settings"])
    torch.set_default_dtype(getattr(torch, config.get("dtype", "float32")))
    seed_everything(settings.seed)
    dropout = config.get("dropout", 0.0)
    model = DetectorModel(
        encoder("graph", dropout),
        dropout=dropout,
        projection_size=settings.projection_size,
        pooling="mean",
        similarity_pooling=config.get("similarity_pooling", "rarity"),
        objective=settings.objective,
    )
    inputs = made_up_inputs(config["programs"], unlabelled=config.get("unlabelled", 0))
    task = DetectorTask(settings, inputs, accelerator, model)
    groups = parameter_groups(model, settings, task)
    kind = torch.optim.SGD if config["optimizer"] == "sgd" else torch.optim.AdamW
    task.start_epoch(0)
    wrapped, prepared = accelerator.prepare(model, kind(groups, lr=settings.learning_rate))

    def rewrap() -> Any:
        accelerator._models.clear()
        return accelerator.prepare_model(accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False))

    hooks = Hooks(
        emit=lambda *a, **k: None,
        save=lambda *a, **k: None,
        wants_stop=lambda: False,
        save_is_due=lambda: False,
        peak_bytes=lambda: 0,
        step_context=lambda step: nullcontext(),
        rewrap=rewrap if accelerator.num_processes > 1 else None,
    )
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=settings,
        plan=split_batch(
            settings.global_batch_size,
            config["per_device"],
            accelerator.num_processes,
            allow_uneven=True,
        ),
        hooks=hooks,
    )
    return trainer, model


def main(config: dict[str, Any]) -> None:
    """Train, or differentiate one optimizer step; rank 0 writes."""
    trainer, model = make_trainer(config)
    out = Path(config["out"])
    if config.get("only_gradients"):
        state = TrainState()
        micro = trainer._backward(trainer.task.global_batches(0)[0], state)
        tensors = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
        total = trainer.accelerator.reduce(torch.stack(micro.losses).sum(0), "sum")
        facts: dict[str, Any] = {"losses": total.tolist()}
    else:
        state = trainer.fit(TrainState())
        tensors, facts = model.state_dict(), {"state": state.to_dict()}
    if trainer.accelerator.is_main_process:
        save_file({k: v.contiguous() for k, v in tensors.items()}, out)
        out.with_suffix(".json").write_text(json.dumps(facts))
