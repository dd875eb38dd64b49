"""Micro-steps of adapters replayed as CUDA graphs: two launches in place of some thousand.

On short samples a GPU computes a block sooner than a CPU can launch it. So a forward and a backward
pass through the blocks are captured once for each shape of a micro-batch, and replayed from then
on. The loss, whose number of supervised tokens varies, stays outside, and so do random numbers:
dropout reads seeds. All graphs share one memory pool: a micro-step's activations lie where those of
the one before lay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nbhelpers.jobs.models.causal_batches import Layout, MicroBatch, send
from nbhelpers.jobs.models.causal_forward import (
    BLOCK_LISTS,
    TrainingForward,
    block_arrays,
    block_mask,
    by_kind,
    cross_entropy_sum,
    dense_mask,
    sliding_window,
)

LISTS = 1 + len(BLOCK_LISTS)  # arrays of one mask
ALIGNED = 64  # an input begins at a multiple of so many int32: compiled code wants 16 bytes

Replay = Callable[[], None]


@dataclass(slots=True, kw_only=True)
class _Graph:
    """One shape of micro-batch: what is filled in, what is replayed, what is read."""

    numbers: Tensor  # (n,) int32: all inputs end to end
    states: Tensor  # (rows * width, hidden)
    slope: Tensor  # the same: gradient of the loss by the states
    forward: Replay | None = None
    backward: Replay | None = None
    in_forward: tuple[int, int] = (0, 0)  # bytes in the graph: at the peak, held at its end
    in_backward: tuple[int, int] = (0, 0)


class GraphedSteps:
    """Forward and backward passes of micro-batches as CUDA graphs, one pair for each shape.

    Args:
        forward: How the model computes; its blocks may be compiled.
        parameters: The trained ones, fp32. Their gradients lie in one buffer.
        device: A GPU; on a CPU nothing is captured, and each replay computes.
        most_tokens: Of a micro-batch, padding included.

    Where `captures` is false, further shapes are launched singly.
    """

    def __init__(
        self,
        forward: TrainingForward,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        *,
        most_tokens: int,
    ) -> None:
        self.forward, self.parameters, self.device = forward, list(parameters), device
        self.captures = True
        sizes = [p.numel() for p in self.parameters]
        self._all = torch.zeros(sum(sizes), device=device)
        parts = zip(self._all.split(sizes), self.parameters, strict=True)
        self._gradients = [part.view_as(p) for part, p in parts]
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        size = (2, most_tokens, forward.model.config.hidden_size)
        self._states, self._slopes = torch.zeros(size, dtype=forward.dtype, device=device)

    def micro_step(
        self,
        batch: MicroBatch,
        factor: float,
        mark: Callable[[str, tuple[int, int]], None] = lambda *_: None,
    ) -> Tensor:
        """Add the gradients of a micro-batch to the parameters'; return its summed loss.

        Args:
            batch: On the host.
            factor: Of the loss before it is differentiated.
            mark: Called with `forward` and `backward` where these end, and the bytes of each in
                its graph, at the peak and held at its end.
        """
        arrays = self._arrays(batch)
        key = tuple(array.shape for array in arrays)
        if key not in self._graphs:
            make = self._capture if self.captures else self._singly
            self._graphs[key] = make(arrays)
        return self._run(self._graphs[key], arrays, batch, factor, mark)

    def average(self) -> None:
        """Average the gradients over processes, as DDP would have."""
        torch.distributed.all_reduce(self._all, op=torch.distributed.ReduceOp.SUM)
        self._all /= torch.distributed.get_world_size()

    def check(self, batch: MicroBatch) -> float:
        """Return how far a micro-step's gradients, replayed, are from those of single launches.

        As the norm of the difference over the norm, 0 where nothing is learned; NaN where one is
        not finite. The same code, inputs and dropout; the parameters' gradients are gone
        afterwards.
        """
        gradients = []
        for is_replayed in (False, True):
            torch.manual_seed(0)
            arrays = self._arrays(batch)
            if is_replayed:
                self.micro_step(batch, 1.0)
            else:
                self._run(self._singly(arrays), arrays, batch, 1.0, lambda *_: None)
            gradients.append(self._all.clone())
            for parameter in self.parameters:
                parameter.grad = None
        singly, replayed = gradients
        apart, whole = (replayed - singly).norm(), singly.norm()
        return float(apart / whole) if apart != 0 or not torch.isfinite(whole) else 0.0

    def _run(
        self,
        graph: _Graph,
        arrays: list[np.ndarray],
        batch: MicroBatch,
        factor: float,
        mark: Callable[[str, tuple[int, int]], None],
    ) -> Tensor:
        self._attach()
        numbers = torch.from_numpy(_end_to_end(arrays))
        if self._pool is not None:
            numbers = numbers.pin_memory()
        graph.numbers.copy_(numbers, non_blocking=True)
        self.forward.draw()
        at, targets = (send(tensor, self.device) for tensor in batch.learned)
        graph.forward()
        loss, slope = self._loss(graph.states, at, targets, factor)
        mark("forward", graph.in_forward)
        graph.slope.zero_()
        graph.slope.index_copy_(0, at, slope)
        graph.backward()
        mark("backward", graph.in_backward)
        return loss

    def _attach(self) -> None:
        """Begin with gradients of zero after `zero_grad` has taken the last ones away."""
        if self.parameters[0].grad is None:
            self._all.zero_()
            for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
                parameter.grad = gradient

    def _arrays(self, batch: MicroBatch) -> list[np.ndarray]:
        """Return the inputs: ids, positions and segments (rows, width), then those of the masks."""
        layout = batch.layout
        arrays = [x.numpy() for x in (batch.ids, layout.positions, layout.segments)]
        if self.forward.kernel == "flex":
            window = sliding_window(layout, self.forward.model.config)
            for reach in (None,) if window is None else (None, window):
                arrays += block_arrays(layout, reach)
        return arrays

    def _mask(self, positions: Tensor, segments: Tensor, lists: list[Tensor]) -> Any:
        config, dtype = self.forward.model.config, self.forward.dtype
        if self.forward.kernel != "flex":
            layout = Layout(segments, positions)
            window = getattr(config, "sliding_window", None)
            return by_kind(config, *(dense_mask(layout, reach, dtype) for reach in (None, window)))
        full = block_mask(lists[:LISTS])
        return by_kind(config, full, block_mask(lists[LISTS:]) if lists[LISTS:] else full)

    def _lay_out(self, arrays: list[np.ndarray]) -> tuple[_Graph, list[Tensor]]:
        """Return a shape whose passes are launched singly, and where they keep their states."""
        numbers = send(torch.from_numpy(_end_to_end(arrays)), self.device)
        places = zip(_places(arrays), arrays, strict=False)
        views = [numbers[at : at + array.size].view(array.shape) for at, array in places]
        ids, positions, segments, *lists = views
        model, count, outputs = self.forward.model.model, ids.numel(), []
        self._slopes.zero_()
        graph = _Graph(numbers=numbers, states=self._states[:count], slope=self._slopes[:count])

        def forward() -> None:
            mask = self._mask(positions, segments, lists)
            called = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
            with self._autocast():
                outputs.append(model(input_ids=ids, **called).last_hidden_state)
            graph.states.copy_(outputs[0].detach().flatten(0, 1))

        def backward() -> None:
            states = outputs.pop()
            with self._autocast():
                gradients = torch.autograd.grad(
                    states, self.parameters, graph.slope.view_as(states), allow_unused=True
                )
            pairs = zip(self._gradients, gradients, strict=True)
            sums = [(total, part) for total, part in pairs if part is not None]
            torch._foreach_add_(*(list(side) for side in zip(*sums, strict=True)))

        graph.forward, graph.backward = forward, backward
        return graph, outputs

    def _singly(self, arrays: list[np.ndarray]) -> _Graph:
        return self._lay_out(arrays)[0]

    def _capture(self, arrays: list[np.ndarray]) -> _Graph:
        """Return a shape whose passes are replayed; on a GPU nothing is computed yet."""
        graph, outputs = self._lay_out(arrays)
        if self._pool is None:
            return graph
        forward, backward = graph.forward, graph.backward
        if not self._graphs:
            self._warm_up(forward, backward)
        try:
            self._capture_both(graph, forward, backward)
        except RuntimeError:  # code for this shape was not there
            outputs.clear()
            self._warm_up(forward, backward)
            self._capture_both(graph, forward, backward)
        return graph

    def _autocast(self) -> torch.autocast:
        # Without its cache: a weight that was cast in one graph is not there in the next.
        dtype = self.forward.dtype
        is_half = dtype != torch.float32
        return torch.autocast(self.device.type, dtype, enabled=is_half, cache_enabled=False)

    def _warm_up(self, *functions: Replay) -> None:
        """Call functions once, so that their code is compiled; slopes are 0 and add nothing."""
        for function in functions:
            function()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the graphs have memory of their own

    def _capture_both(self, graph: _Graph, forward: Replay, backward: Replay) -> None:
        outside = torch.cuda.memory_allocated(self.device)
        graph.forward, graph.in_forward = self._captured(forward, outside)
        graph.backward, graph.in_backward = self._captured(backward, outside)
        torch.cuda.reset_peak_memory_stats(self.device)  # what was counted lies in the graphs now

    def _captured(self, function: Replay, outside: int) -> tuple[Replay, tuple[int, int]]:
        """Return what does what a function does, with one launch, and what it needs in its graph.

        Args:
            outside: Bytes allocated before the micro-step.

        Returns:
            The launch; bytes beside `outside`, at the peak and held at the end.

        Raises:
            RuntimeError: Something must be compiled first, which no capture allows.
        """
        graph = torch.cuda.CUDAGraph()
        # Relaxed: code that is loaded at its first use may be loaded here.
        how = {"pool": self._pool, "capture_error_mode": "relaxed"}
        with torch.compiler.set_stance("fail_on_recompile"), torch.cuda.graph(graph, **how):
            torch.cuda.reset_peak_memory_stats(self.device)
            function()
            peak = torch.cuda.max_memory_allocated(self.device)
        held = torch.cuda.memory_allocated(self.device)
        return graph.replay, (peak - outside, held - outside)

    def _loss(
        self, states: Tensor, at: Tensor, targets: Tensor, factor: float
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss, and `factor` times its gradient by the supervised states."""
        model = self.forward.model
        learned = states.index_select(0, at).requires_grad_()
        cap = getattr(model.config, "final_logit_softcapping", None)
        loss = cross_entropy_sum(learned, model.lm_head.weight, targets, soft_cap=cap)
        (slope,) = torch.autograd.grad(loss * factor, learned)
        return loss.detach(), slope


def _places(arrays: list[np.ndarray]) -> list[int]:
    """Return where each array begins in the buffer, and its end."""
    return list(accumulate((-(-a.size // ALIGNED) * ALIGNED for a in arrays), initial=0))


def _end_to_end(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays in one of int32, each where `_places` says."""
    places = _places(arrays)
    numbers = np.zeros(places[-1], dtype=np.int32)
    for at, array in zip(places, arrays, strict=False):
        numbers[at : at + array.size] = array.reshape(-1)
    return numbers
