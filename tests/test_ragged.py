"""Promise: blocks on rows end to end, cut at attentions or compiled, compute what plain ones do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_graph_inputs import ALL, LONG, table
from test_graph_model import (
    ours,
    published_state,
    tokenizer,  # noqa: F401
)
from test_graph_model import task as graph_task
from test_models import task, tiny
from torch import Tensor

from nbhelpers.jobs import clones as pair_job
from nbhelpers.jobs.compiling import Compiling
from nbhelpers.jobs.models import clones, encoding
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.encoding import PLAIN, PLAIN_GPT2, BlockMath, encode

HEADS, SIZE = 2, 16


def exact(
    qkv: Tensor,
    bias: Tensor,
    ends: Tensor,
    *,
    heads: int,
    dropout: float = 0.0,
    kept: object = None,
) -> Tensor:
    """Attention of each row by itself, as it is written in textbooks.

    Args:
        bias: (rows, width, width).
        kept: (rows, heads, width, width): what the probabilities are multiplied with.
    """
    rows = []
    for row, (first, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        q, k, v = qkv[first:end].view(end - first, 3, heads, -1).permute(1, 2, 0, 3)
        n = end - first
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 + bias[row, :n, :n]
        p = scores.softmax(-1)
        p = p if kept is None else p * kept[row][:, :n, :n]
        rows.append((p @ v).transpose(0, 1).reshape(n, -1))
    return torch.cat(rows)


def causal(
    qkv: Tensor, ragged: encoding.Ragged, *, heads: int, dropout: float, is_causal: bool
) -> Tensor:
    longest, ends = int(ragged.ends.diff().max()), ragged.ends
    future = torch.ones(longest, longest).triu(1).bool()
    bias = torch.zeros(longest, longest, dtype=qkv.dtype)
    bias = bias.masked_fill(future, float("-inf")) if is_causal else bias
    return exact(qkv, bias.expand(len(ends) - 1, -1, -1), ends, heads=heads)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has the kernels for rows end to end."""
    monkeypatch.setattr(encoding, "has_ragged_kernel", lambda device, dtype: True)
    monkeypatch.setattr(encoding, "_attend_ragged", causal)


def gradients(model: CloneModel, states: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (states * torch.linspace(-1, 1, states.shape[1], dtype=states.dtype)).sum().backward()
    return {n: p.grad.clone() for n, p in model.encoder.named_parameters() if p.grad is not None}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        assert torch.allclose(gradient, other[name], atol=1e-10), name


def test_gpt2_on_rows_end_to_end_equals_padded_rows(request: pytest.FixtureRequest) -> None:
    model = tiny().double()
    buckets = task(model).batch(np.arange(5)).buckets
    padded = encode(model.encoder, buckets, packed=True)
    expected = gradients(model, padded)
    request.getfixturevalue("kernels")
    states = encode(model.encoder, buckets, packed=True)
    assert torch.allclose(states, padded, atol=1e-12)
    assert_equal(gradients(model, states), expected)


def test_graphs_on_rows_end_to_end_equal_padded_rows(
    tokenizer,  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    functions = table(tokenizer, [*ALL, LONG], seq_len=14, data_flow_length=6, positions=64)
    model = ours(published_state()).double()
    rows = np.arange(len(ALL) + 1)
    apart = [functions.bucket(row[None], int(functions.lengths[row])) for row in rows]
    padded = encode(model.encoder, apart, packed=True)
    expected = gradients(model, padded)
    request.getfixturevalue("kernels")
    math = replace(PLAIN, masked=exact)
    together = [functions.bucket(rows, 20)]
    states = encode(model.encoder, together, packed=True, math=math)
    assert torch.allclose(states, padded, atol=1e-6)  # the padding's weight is fp32
    for name, gradient in gradients(model, states).items():
        assert torch.allclose(gradient, expected[name], atol=1e-4), name


def test_a_lone_column_of_padding_stands_for_all_of_them(tokenizer) -> None:  # noqa: F811
    # The table of positions cuts the code, not the length: there is much padding, and a node whose
    # code was cut off looks at all of it.
    functions = table(tokenizer, [LONG], seq_len=18, data_flow_length=14, positions=20)
    found = functions.bucket(np.array([0]), 32)
    model = ours(published_state())
    with torch.no_grad():
        padded, packed = (
            encode(model.encoder, [found], packed=is_packed) for is_packed in (False, True)
        )
    assert torch.allclose(packed, padded, atol=1e-5)


def test_gpt2s_blocks_cut_at_their_attentions_equal_whole_ones() -> None:
    model = tiny().double()
    buckets = task(model).batch(np.arange(5)).buckets
    expected = gradients(model, encode(model.encoder, buckets, packed=True))
    math = replace(PLAIN_GPT2, between=encoding._gpt2_between)
    assert_equal(gradients(model, encode(model.encoder, buckets, packed=True, math=math)), expected)


@pytest.mark.parametrize(("factor", "is_on"), [(1.0, True), (1.01, False)])
def test_pairs_train_with_compiled_blocks_only_if_their_gradients_are_right(
    monkeypatch: pytest.MonkeyPatch,
    tokenizer,  # noqa: F811
    factor: float,
    is_on: bool,
) -> None:
    bent = BlockMath(PLAIN.before, lambda *args: PLAIN.after(*args) * factor)
    monkeypatch.setattr(clones, "compiled_math", lambda encoder: bent)
    functions = table(tokenizer, ALL, seq_len=14, data_flow_length=6, positions=64)
    job = graph_task(ours(published_state()), functions, "dynamic")
    proofs: list[dict] = []
    job.compiling = Compiling(job.raw, job.compile_blocks, job.accelerator, proofs.append)
    job.start_epoch(0)
    job.start_epoch(1)
    assert [proof["is_on"] for proof in proofs] == [is_on]
    assert (job.raw._math is not None) is is_on and job.compiling.facts()["is_on"] is is_on
    assert all(p.grad is None or not p.grad.any() for p in job.raw.parameters())


def test_a_batch_that_was_made_ahead_is_the_one_that_is_asked_for() -> None:
    job = task(tiny())
    job.prepare(np.array([0, 2]))
    ahead = job._ready[1]
    assert job.batch(np.array([0, 2])) is ahead and job.batch(np.array([0, 2])) is not ahead
    job.prepare(np.array([0, 2]))
    assert len(job.batch(np.array([1])).labels) == 1


# ------------------------------------------------------------------------------------------------
# The kernels themselves: on a GPU, or on a CPU by -m gpu with TRITON_INTERPRET=1.


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kept_by_products(numbers: Tensor, rows: int, width: int, dropout: float) -> Tensor:
    """(rows, heads, width, width): 0 or 1 / (1 - dropout), as the kernels draw it."""
    columns = (len(numbers) - rows * HEADS) // 2
    queries, keys, planes = (
        x.cpu().long() for x in numbers.split([columns, columns, rows * HEADS])
    )
    low = (queries[:width, None] * keys[:width] * planes[:, None, None]) & 0xFFFFFFFF
    is_kept = (low ^ 0x80000000) >= int(dropout * 2**32)
    return (is_kept.float() / (1 - dropout)).view(rows, HEADS, width, width)


def test_dropout_by_products_looks_independent() -> None:
    pytest.importorskip("triton")
    from nbhelpers.jobs.models.masked_attention import dropout_numbers

    rows, width, p = 16, 256, 0.1
    torch.manual_seed(0)
    one, other = (
        kept_by_products(dropout_numbers(width, rows * HEADS, DEVICE), rows, width, p)
        .mul_(1 - p)
        .sub_(1 - p)
        .div_((p * (1 - p)) ** 0.5)
        .flatten(0, 1)
        for _ in range(2)
    )  # (planes, queries, keys) of mean 0 and deviation 1
    pairs = [one @ one.transpose(1, 2), one.transpose(1, 2) @ one]  # of queries, of keys
    pairs.append(one.flatten(1) @ one.flatten(1).T / width**0.5)  # of rows and heads
    sums = [x.triu(1)[x.triu(1) != 0] / width**0.5 for x in pairs]
    sums += [one.sum(1) / width**0.5, one.sum(2) / width**0.5, one.flatten(1).sum(1) / width]
    sums.append((one * other).flatten(1).sum(1) / width)  # of two draws
    for each in sums:  # each as far from 0 as independent draws are
        deviation = (2 / each.numel()) ** 0.5
        assert abs(each.square().mean() - 1) < 5 * deviation + 0.01
    # The products of four corners of a rectangle depend on each other: what is kept does not.
    corners = one * one.roll((3, 5), (1, 2)) * one.roll(3, 1) * one.roll(5, 2)
    assert abs(corners.mean()) < 5 / corners.numel() ** 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_end_to_end_equals_the_textbook(dropout: float, is_masked: bool) -> None:
    pytest.importorskip("triton")
    from nbhelpers.jobs.models.masked_attention import attend_masked, dropout_numbers

    lengths, width = torch.tensor([290, 5, 70]), 296  # three tiles of keys, and one
    torch.manual_seed(0)
    qkv = torch.randn(int(lengths.sum()), 3 * HEADS * SIZE, device=DEVICE).half()
    bias = torch.where(torch.rand(3, width, width, device=DEVICE) < 0.4, 0.0, -1e4)
    bias[:, :, 0] = 0.0
    bias[1, 2] = 0.0
    if not is_masked:
        bias = torch.zeros_like(bias)
    mask = bias.half() if is_masked else None
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(DEVICE)
    gradient = torch.randn(len(qkv), HEADS * SIZE, device=DEVICE).half()
    torch.manual_seed(5)
    numbers = dropout_numbers(width, 3 * HEADS, DEVICE)
    kept = kept_by_products(numbers, 3, width, dropout).to(DEVICE) if dropout else None
    results = []
    for compute in ("kernel", "textbook"):
        x = (qkv if compute == "kernel" else qkv.float()).requires_grad_()
        if compute == "kernel":
            torch.manual_seed(5)
            out = attend_masked(x, mask, ends, heads=HEADS, dropout=dropout, longest=width)
        else:
            out = exact(x, bias, ends, heads=HEADS, kept=kept)
        (grad,) = torch.autograd.grad(out, x, gradient.to(out.dtype))
        results.append((out.float(), grad.float()))
    for own, expected in zip(*results, strict=True):
        assert (own - expected).norm() < 5e-3 * expected.norm()


def test_a_model_is_where_it_trains_before_its_blocks_are_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first epoch's start proves them, before Accelerate moves the model."""
    model, places = tiny(), []
    monkeypatch.setattr(model, "to", lambda device: places.append(device))

    def begun(context: Any, task: Any, model: Any, **_: Any) -> Any:
        assert places == ["the GPU"]
        return SimpleNamespace()

    monkeypatch.setattr(pair_job, "train_task", begun)
    monkeypatch.setattr(pair_job, "_task", lambda *_: task(model))
    context = SimpleNamespace(accelerator=SimpleNamespace(device="the GPU"))
    monkeypatch.setattr(pair_job, "wants_compiling", lambda *_: False)
    monkeypatch.setattr(pair_job, "_learnt_tokens", lambda *_: 0)
    pair_job.train(context, None, model)
    assert places == ["the GPU"]
