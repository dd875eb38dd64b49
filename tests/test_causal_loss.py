"""Promise: the loss in chunks is the plain loss, and so are its gradients."""

from __future__ import annotations

import pytest
import torch

from nbhelpers.jobs.models.causal_batches import IGNORED, supervised
from nbhelpers.jobs.models.causal_forward import chunk_size, cross_entropy_sum, plain_loss

pytestmark = pytest.mark.slow  # torch and transformers are imported


def problem(n: int = 70, *, dtype: torch.dtype = torch.float64, scale: float = 1.0):
    torch.manual_seed(0)
    hidden = (scale * torch.randn(n, 16, dtype=torch.float64)).to(dtype).requires_grad_()
    weight = torch.randn(301, 16, dtype=torch.float64).to(dtype)
    return hidden, weight, torch.randint(0, 301, (n,))


@pytest.mark.parametrize("chunk", [1, 7, 64, 70, 1000])
@pytest.mark.parametrize("cap", [None, 30.0, 2.0])
def test_loss_and_gradient_equal_the_plain_ones(chunk: int, cap: float | None):
    hidden, weight, targets = problem()
    ours = cross_entropy_sum(hidden, weight, targets, soft_cap=cap, chunk=chunk)
    (gradient,) = torch.autograd.grad(3.0 * ours, hidden)
    logits = hidden @ weight.T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    plain = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    (wanted,) = torch.autograd.grad(3.0 * plain, hidden)
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_the_exact_gradient(dtype: torch.dtype):
    exact, weight, targets = problem(scale=0.5)
    ours_in = exact.detach().to(dtype).requires_grad_()
    ours = cross_entropy_sum(ours_in, weight.to(dtype), targets, soft_cap=30.0, chunk=32)
    (gradient,) = torch.autograd.grad(ours, ours_in)
    logits = ours_in.detach().double().requires_grad_()
    capped = 30.0 * torch.tanh(logits @ weight.to(dtype).double().T / 30.0)
    plain = torch.nn.functional.cross_entropy(capped, targets, reduction="sum")
    (wanted,) = torch.autograd.grad(plain, logits)
    assert float(ours.detach()) == pytest.approx(float(plain), rel=2e-2)
    assert float((gradient.double() - wanted).norm() / wanted.norm()) < 2e-2


def test_fp16_keeps_gradients_below_its_smallest_numbers():
    """With 301 words a slope of 1e-6 would round to nothing without the scale."""
    hidden, weight, targets = problem(4, dtype=torch.float16, scale=0.01)
    loss = cross_entropy_sum(hidden, weight, targets)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().min() > 0


def test_without_a_gradient_nothing_is_kept():
    hidden, weight, targets = problem()
    with torch.no_grad():
        loss = cross_entropy_sum(hidden, weight, targets)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(
        float(torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")),
        rel=1e-6,
    )


def test_no_target_gives_no_loss_and_no_gradient():
    hidden, weight, _ = problem(3)
    none = torch.zeros(0, dtype=torch.long)
    loss = cross_entropy_sum(hidden[none], weight, none)
    loss.backward()
    assert float(loss) == 0.0
    assert float(hidden.grad.abs().sum()) == 0.0


def test_labels_are_shifted_inside_each_row():
    labels = torch.tensor([[IGNORED, IGNORED, 7, 8], [IGNORED, 5, IGNORED, IGNORED]])
    positions, targets = supervised(labels)
    assert positions.tolist() == [1, 2, 4]
    assert targets.tolist() == [7, 8, 5]


def test_the_plain_loss_is_transformers_own():
    from causal_tiny import tiny_gemma

    model = tiny_gemma()
    ids = torch.randint(3, 300, (2, 20))
    labels = ids.masked_fill(torch.arange(20) < 5, IGNORED)
    out = model(input_ids=ids, labels=labels)
    at, targets = supervised(labels)
    states = model.model(input_ids=ids).last_hidden_state
    ours = plain_loss(model.lm_head(states), at, targets, model.config.final_logit_softcapping)
    assert float(ours) / len(targets) == pytest.approx(float(out.loss), rel=1e-5)


def test_a_chunk_of_gemmas_words_takes_a_gibibyte():
    assert chunk_size(256_000, 2) == 2048
    assert chunk_size(10**9, 4) == 128
