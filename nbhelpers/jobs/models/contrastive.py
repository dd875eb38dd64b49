"""The supervised contrastive loss, whole or in parts whose gradients are those of the whole.

A loss over all pairs of a batch is not a sum over its micro-batches: it changes when the batch is
split over GPUs or over time. So the vectors of the whole batch are gathered first, the loss and its
gradient with respect to them are computed once, and each micro-batch is then differentiated with
its own rows of that gradient.

Source: Khosla et al. 2020, "Supervised Contrastive Learning", equation 2 (the sum over positives
outside the logarithm); gradient caching: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch
Size under Memory Limited Setup".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nbhelpers.jobs.models.encoding import wide


def contrastive_losses(vectors: Tensor, groups: Tensor, temperature: float) -> Tensor:
    """Return (n,) at least fp32: the loss of each row, 0 for a row without a positive.

    A positive of a row is another row of its group; every other row is in the denominator. The row
    itself is in neither.

    Args:
        vectors: (n, d) of length 1.
        groups: (n,) int64; rows of one number belong together.
        temperature: Cosines are divided by it.

    >>> x = torch.nn.functional.normalize(torch.eye(3), dim=1)
    >>> contrastive_losses(x, torch.tensor([0, 0, 1]), 1.0)
    tensor([0.6931, 0.6931, 0.0000])
    """
    vectors = wide(vectors)
    scores = vectors @ vectors.T / temperature  # (n, n)
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    total = scores.masked_fill(itself, float("-inf")).logsumexp(1)  # (n,)
    positive = (groups[:, None] == groups[None, :]) & ~itself
    count = positive.sum(1)
    ratio = torch.where(positive, scores - total[:, None], 0.0)
    return ratio.sum(1).abs() / count.clamp(min=1)  # a sum of logarithms: never above 0


def anchors(groups: np.ndarray) -> int:
    """Return how many rows have a positive.

    >>> anchors(np.array([0, 0, 1]))
    2
    """
    _, sizes = np.unique(groups, return_counts=True)
    return int(sizes[sizes > 1].sum())


def cached_gradient(
    vectors: Tensor, groups: Tensor, temperature: float, count: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the mean loss over anchors, and the losses.

    Args:
        vectors: (n, d) of the whole batch; they are taken as numbers, without a graph.
        count: Rows with a positive (`anchors`), known on the CPU: nothing waits for the GPU here.

    Returns:
        (n, d) gradient and (n,) losses, at least fp32; without anchors all are zero.
    """
    leaf = wide(vectors.detach()).requires_grad_()
    with torch.enable_grad():
        losses = contrastive_losses(leaf, groups, temperature)
        (gradient,) = torch.autograd.grad(losses.sum() / max(1, count), leaf)
    return gradient, losses.detach()
