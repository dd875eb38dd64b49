"""Promise: fused blocks and means compute what the plain ones do, dropout by its hash included.

Needs Triton: on a GPU, or on a CPU with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

pytest.importorskip("triton")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET")):
    pytest.skip("no GPU, and TRITON_INTERPRET is not set", allow_module_level=True)

from nbhelpers.jobs.models import encoding
from nbhelpers.jobs.models.fused_blocks import between, new_seeds
from nbhelpers.jobs.models.inputs import TextBucket, packed_slots

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, INNER, EPS = 37, 48, 112, 1e-5
CLOSE = 1e-5 if DEVICE.type == "cpu" else 2e-3  # products of fp32 are TF32's on a GPU


def is_kept(seeds: Tensor, p: float) -> Tensor:
    """(TOKENS, HIDDEN) bool by the hash that the kernels draw dropout from."""
    first, second = seeds.tolist()
    x = torch.arange(TOKENS * HIDDEN, device=DEVICE)
    x = (x * 0x9E3779B1 + first) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13) ^ second) * 0xC2B2AE35) & 0xFFFFFFFF
    return ((x ^ (x >> 16)) >= int(p * 2**32)).view(TOKENS, HIDDEN)


def results(compute: Callable[[], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Return the outputs in a row, and the gradient of each leaf of a weighted sum of them."""
    for leaf in leaves:
        leaf.grad = None
    out = compute()
    (out * torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)).sum().backward()
    return [out.detach(), *(leaf.grad.clone() for leaf in leaves)]


def agree(one: list[Tensor], other: list[Tensor]) -> None:
    for x, y in zip(one, other, strict=True):
        assert (x - y).norm() <= CLOSE * y.norm()


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("is_last", [False, True])
def test_between_two_attentions(p: float, is_last: bool) -> None:
    torch.manual_seed(0)

    def leaf(*shape: int, scale: float = 0.3, shift: float = 0.0) -> Tensor:
        return (scale * torch.randn(*shape, device=DEVICE) + shift).requires_grad_()

    attention, x = leaf(TOKENS, HIDDEN), leaf(TOKENS, HIDDEN, scale=1.0)
    shapes = [(HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    weights = [each for shape in shapes for each in (leaf(*shape), leaf(shape[0]))]
    norms = [leaf(HIDDEN, scale=0.1, shift=shift) for shift in (1.0, 0.0, 1.0, 0.0)]
    coming = [] if is_last else [leaf(3 * HIDDEN, HIDDEN), leaf(3 * HIDDEN)]
    seeds = new_seeds(1, DEVICE)[0]
    first, second = (is_kept(each, p) / (1 - p) for each in seeds)

    def textbook() -> Tensor:
        tw, tb, mw, mb, ow, ob = weights
        y = layer_norm(first * linear(attention, tw, tb) + x, (HIDDEN,), *norms[:2], EPS)
        inner = linear(gelu(linear(y, mw, mb)), ow, ob)
        y = layer_norm(second * inner + y, (HIDDEN,), *norms[2:], EPS)
        return torch.cat([y, *([linear(y, *coming)] if coming else [])], dim=1)

    def fused() -> Tensor:
        parts = between(attention, x, tuple(weights), tuple(norms), p, EPS, seeds, tuple(coming))
        return torch.cat(parts, dim=1)

    leaves = [attention, x, *weights, *norms, *coming]
    agree(results(fused, leaves), results(textbook, leaves))


def test_means_over_the_tokens_of_each_row() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([5, 40, 2, 17])
    bucket = TextBucket(
        ids=torch.randint(5, 80, (4, 40)),
        last=lengths - 1,
        slots=packed_slots(lengths.numpy(), 40),
    ).to(lambda tensors: [x.to(DEVICE) for x in tensors])
    rarity = torch.rand(80, device=DEVICE)
    rarity[bucket.ids[2, :2]] = 0.0  # a row without any weight
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(DEVICE)
    ragged = encoding.Ragged(ends=ends, longest=40)
    x = torch.randn(int(lengths.sum()), HIDDEN, device=DEVICE, requires_grad=True)
    poolings = ("mean", rarity)
    own = results(lambda: encoding._ragged_means(x, [bucket], poolings, ragged), [x])
    agree(own, results(lambda: encoding._pooled_tokens(x, bucket, poolings), [x]))
