"""Promise: a micro-step that is replayed gives the loss and the gradients of the plain one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from causal_tiny import PAD, tiny_base, tiny_table

from nbhelpers.jobs.models.causal import add_adapter
from nbhelpers.jobs.models.causal_batches import make_batch, padded_width
from nbhelpers.jobs.models.causal_forward import TrainingForward
from nbhelpers.jobs.models.causal_graphs import GraphedSteps

pytestmark = pytest.mark.slow  # torch and transformers are imported

BATCHES = (np.arange(5), np.arange(5, 12), np.arange(3), np.arange(2, 6))
ADAPTER = SimpleNamespace(
    lora_target_modules=["q_proj", "down_proj"],
    lora_r=4,
    alpha=8,
    lora_dropout=0.0,
    seed=0,
    model="tiny",
)


def adapted(kernel: str):
    """Return a tiny Gemma with an adapter that is not zero, and how it computes."""
    base = tiny_base(scale=8.0)
    model = add_adapter(base, ADAPTER)
    torch.manual_seed(1)
    learned = [p for p in model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.data += 0.1 * torch.randn_like(parameter)
    forward = TrainingForward(base.model, kernel=kernel, loss="chunked", dtype=torch.float32)
    return model.train(), learned, forward


def plain_gradients(batch, factor: float):
    """Return the loss and gradients of one micro-batch as the model is called."""
    model, learned, forward = adapted("eager")
    with forward.active():
        loss = model(**forward.inputs(batch)).loss
    (loss * factor).backward()
    return float(loss.detach()), [p.grad for p in learned]


@pytest.mark.parametrize("packed", [True, False])
def test_replayed_micro_steps_give_loss_and_gradients_of_the_plain_ones(packed: bool):
    _, learned, forward = adapted("eager")
    with forward.active():
        steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
        for rows in BATCHES:  # the sliding window is shorter than some samples
            how = {"pad_id": PAD, "packed": packed, "is_graphed": packed}
            batch = make_batch(tiny_table(), rows, **how)
            loss = steps.micro_step(batch, 0.25)
            expected, gradients = plain_gradients(batch, 0.25)
            assert float(loss) == pytest.approx(expected, rel=1e-6)
            for parameter, gradient in zip(learned, gradients, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
                parameter.grad = None


def test_gradients_of_micro_steps_add_up_until_they_are_taken_away():
    _, learned, forward = adapted("eager")
    batches = [make_batch(tiny_table(), rows, pad_id=PAD, packed=True) for rows in BATCHES[:2]]
    with forward.active():
        steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
        for batch in batches:
            steps.micro_step(batch, 1.0)
    both = [sum(pair) for pair in zip(*(plain_gradients(b, 1.0)[1] for b in batches), strict=True)]
    for parameter, gradient in zip(learned, both, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_inputs_of_a_shape_are_filled_in_anew():
    """Two batches of one padded width share what was captured for the first."""
    _, learned, forward = adapted("eager")
    with forward.active():
        steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
        for rows in (np.arange(4), np.arange(4, 8)):
            batch = make_batch(tiny_table(), rows, pad_id=PAD, packed=True, is_graphed=True)
            loss = float(steps.micro_step(batch, 1.0))
            assert loss == pytest.approx(plain_gradients(batch, 1.0)[0], rel=1e-6)
    assert len(steps._graphs) == 1


@pytest.mark.parametrize("kernel", ["flex", "eager"])
def test_the_inputs_of_a_kernel_make_its_masks(kernel: str):
    """Flex attention has no backward pass on a CPU: its states are compared."""
    _, learned, forward = adapted(kernel)
    batch = make_batch(tiny_table(), BATCHES[1], pad_id=PAD, packed=True, multiple=128)
    with forward.active(), torch.no_grad():
        steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
        graph = steps._capture(steps._arrays(batch))
        graph.forward()
        expected = forward.hidden(batch.ids, batch.layout).flatten(0, 1)
    torch.testing.assert_close(graph.states, expected, rtol=1e-4, atol=1e-5)


def test_widths_are_few_and_padding_is_small():
    widths = {padded_width(longest, 128, is_graphed=True) for longest in range(1, 16_385)}
    assert len(widths) < 60
    for longest in range(300, 16_385, 7):
        padding = padded_width(longest, 128, is_graphed=True) - longest
        assert padding < 256 or padding <= longest / 16


def test_dropout_is_that_of_compiled_blocks_also_in_a_shape_captured_before_training(
    monkeypatch: pytest.MonkeyPatch,
):
    """The rehearsal captures a shape in a context of its own; its graph reads the seeds' place."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call: real(call, backend="aot_eager"))
    batch = make_batch(tiny_table(), BATCHES[0], pad_id=PAD, packed=True)
    losses = []
    for is_graphed in (False, True):
        base = tiny_base(scale=8.0)
        how = SimpleNamespace(**{**vars(ADAPTER), "lora_dropout": 0.3})
        model = add_adapter(base, how).train()
        learned = [p for p in model.parameters() if p.requires_grad]
        torch.manual_seed(1)
        for parameter in learned:
            parameter.data += 0.1 * torch.randn_like(parameter)
        forward = TrainingForward(base.model, kernel="eager", loss="chunked", dtype=torch.float32)
        with forward.active(compiled=True):
            places = [forward.seeds.data_ptr()]
            steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
            steps.micro_step(batch, 1.0)
        with forward.active(compiled=True):
            places.append(forward.seeds.data_ptr())
            for seed in (3, 4):
                torch.manual_seed(seed)
                if is_graphed:
                    losses.append(float(steps.micro_step(batch, 1.0)))
                else:
                    losses.append(float(model(**forward.inputs(batch)).loss.detach()))
        assert places[0] == places[1]
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-6)
    assert losses[0] != losses[1]


def test_what_is_replayed_is_checked_against_single_launches(monkeypatch: pytest.MonkeyPatch):
    _, learned, forward = adapted("eager")
    batch = make_batch(tiny_table(), BATCHES[0], pad_id=PAD, packed=True)
    with forward.active():
        steps = GraphedSteps(forward, learned, torch.device("cpu"), most_tokens=2048)
        assert steps.check(batch) < 1e-6
        nothing = make_batch(tiny_table(), np.arange(0), pad_id=PAD, packed=True)
        assert steps.check(nothing) == 0  # the stand-in of a rank without samples
        assert all(parameter.grad is None for parameter in learned)
        monkeypatch.setattr(steps, "_graphs", {})
        capture = steps._capture

        def stale(arrays: list[np.ndarray]):
            graph = capture(arrays)
            graph.numbers = graph.numbers.clone()  # filled in where no graph reads
            graph.numbers.zero_()
            views = capture([0 * array for array in arrays])
            graph.forward, graph.backward = views.forward, views.backward
            return graph

        monkeypatch.setattr(steps, "_capture", stale)
        assert not steps.check(batch) < 0.01
