"""Promise: what a GPU's compiler cannot do is told before training, and a slower way is taken."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from causal_tiny import PAD, tiny_base, tiny_table
from contexts import make_context

from nbhelpers.jobs import finetune_task
from nbhelpers.jobs.equivalence import rehearse
from nbhelpers.jobs.models.causal_batches import make_batch
from nbhelpers.jobs.models.causal_forward import TrainingForward

pytestmark = pytest.mark.slow  # torch and transformers are imported

CPU = SimpleNamespace(device=torch.device("cpu"), autocast=nullcontext)


def adapted() -> SimpleNamespace:
    """A model with one trained parameter, as an adapter would be."""
    base = tiny_base()
    base.model.model.norm.weight.requires_grad_()
    return SimpleNamespace(base=base, model=base.model, bare=base.model)


def forward_of(model: Any) -> TrainingForward:
    return TrainingForward(model, kernel="eager", loss="chunked", dtype=torch.float32)


def batch() -> Any:
    return make_batch(tiny_table(), np.arange(3), pad_id=PAD, packed=False)


def test_a_pass_that_works_leaves_no_gradient():
    tuned = adapted()
    done = rehearse(tuned, forward_of(tuned.model), batch(), accelerator=CPU, compiled=False)
    assert done == ""
    assert all(parameter.grad is None for parameter in tuned.model.parameters())
    assert "forward" not in vars(tuned.model)


def test_a_failing_compiler_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    tuned = adapted()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel\nand many more lines")

    monkeypatch.setattr(torch, "compile", broken)
    told = rehearse(tuned, forward_of(tuned.model), batch(), accelerator=CPU, compiled=True)
    assert told == "RuntimeError: no kernel"
    monkeypatch.undo()
    assert not rehearse(tuned, forward_of(tuned.model), batch(), accelerator=CPU, compiled=False)


def test_want_of_memory_is_no_fault_of_the_compiler(monkeypatch: pytest.MonkeyPatch):
    tuned = adapted()

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(torch, "compile", full)
    with pytest.raises(torch.OutOfMemoryError):
        rehearse(tuned, forward_of(tuned.model), batch(), accelerator=CPU, compiled=True)


def test_a_loss_that_is_not_finite_is_told():
    tuned = adapted()
    with torch.no_grad():
        tuned.model.model.norm.weight.fill_(float("nan"))
    told = rehearse(tuned, forward_of(tuned.model), batch(), accelerator=CPU, compiled=False)
    assert "not finite" in told


@pytest.mark.parametrize(
    ("fails", "expected", "warnings"),
    [
        ((), ("flex", True, True), 0),
        ((True,), ("flex", True, False), 1),
        ((True, False), ("eager", False, False), 2),
    ],
)
def test_the_ways_are_tried_in_turn(monkeypatch, fails, expected, warnings):
    context = make_context(accelerator=CPU)
    task = SimpleNamespace(
        settings=SimpleNamespace(packing=True, gradient_checkpointing=False),
        adapted=None,
        forward=None,
        kernel="flex",
        global_batches=lambda epoch: [np.arange(3)],
        micro_batches=lambda batch_rows: [batch_rows],
        host_batch=lambda rows: None,
        is_graphed=False,
    )

    def pretended(*_: Any, compiled: bool, **__: Any) -> str:
        return "it fails" if compiled in fails else ""

    monkeypatch.setattr(finetune_task, "rehearse", pretended)
    found = finetune_task.rehearsed(context, task, is_compiled=True)
    assert found == expected
    assert len(context.warnings) == warnings


@pytest.mark.parametrize(
    ("outcome", "words", "others"),
    [
        (0.0, "", None),
        (RuntimeError("stream is capturing"), "capturing", None),
        (0.5, "0.5 apart", None),
        (float("nan"), "nan apart", None),
        (0.0, "", 0),
        (0.0, "another rank", 1),
        (0.5, "0.5 apart", 0),
    ],
)
def test_graphs_are_tried_first_and_left_out_where_they_fail(monkeypatch, outcome, words, others):
    """`others`: ranks beside this one on which they fail."""
    context, learned = make_context(accelerator=CPU), torch.nn.Linear(1, 1)
    if others is not None:
        summed = SimpleNamespace(device=CPU.device, reduce=lambda tensor, how: tensor + others)
        context = make_context(accelerator=summed, plan=SimpleNamespace(world_size=2))

    def check(batch: Any) -> float:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    task = SimpleNamespace(
        settings=SimpleNamespace(packing=True),
        adapted=SimpleNamespace(model=learned),
        forward=SimpleNamespace(active=lambda compiled: nullcontext()),
        kernel="flex",
        global_batches=lambda epoch: [np.arange(3)],
        micro_batches=lambda batch_rows: [batch_rows],
        host_batch=lambda rows: None,
        graphs=SimpleNamespace(check=check),
        is_graphed=True,
    )
    monkeypatch.setattr(finetune_task, "rehearse", lambda *_, **__: "")
    assert finetune_task.rehearsed(context, task, is_compiled=True) == ("flex", True, True)
    works = not words
    assert task.is_graphed is works and hasattr(task, "graphs") is works  # nor their memory
    assert len(context.warnings) == (not works)
    assert all(words in text for text in context.warnings)
