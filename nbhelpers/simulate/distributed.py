"""Data parallelism on the simulated card: the memory of DDP's buckets, without other processes.

Source: torch/csrc/distributed/c10d/reducer.cpp and torch/nn/parallel/distributed.py of torch 2.11:
one bucket at first; after the first backward pass buckets in the order in which gradients came, a
first of 1 MiB and others of 25 MiB (all of `bucket_cap_mb` where that is set), each for one type of
parameter. With `find_unused_parameters` they are made so at once, and stay. NCCL's own memory lies
outside the allocator (`Card.nccl_bytes`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbhelpers.simulate.opaque_patches import Patches
from nbhelpers.simulate.state import COMMUNICATION

if TYPE_CHECKING:
    from nbhelpers.simulate.state import State
    from nbhelpers.simulate.tracker import Tracker

FIRST_BUCKET, MIB = 1 << 20, 1 << 20
# Parameters and buffers are sent in pieces of this size when the model is wrapped.
BROADCAST = 250 << 20


def bucket_sizes(parameters: list[torch.Tensor], limits: list[int]) -> list[int]:
    """Return the bytes of each bucket, in the order of `parameters`.

    Args:
        limits: Bytes at which the first, second, ... bucket of a type closes; the last stays.
    """
    sizes: list[int] = []
    filled: dict[Any, int] = {}
    closed: dict[Any, int] = {}
    for each in parameters:
        kind = each.dtype
        filled[kind] = filled.get(kind, 0) + each.numel() * each.element_size()
        if filled[kind] >= limits[min(closed.get(kind, 0), len(limits) - 1)]:
            sizes.append(filled.pop(kind))
            closed[kind] = closed.get(kind, 0) + 1
    return sizes + list(filled.values())


class _Buckets:
    """The buckets of one wrapped model."""

    def __init__(self, tracker: Tracker, module: nn.Module, options: dict[str, Any]) -> None:
        self.tracker, self.as_views = tracker, bool(options.get("gradient_as_bucket_view"))
        cap = options.get("bucket_cap_mb")
        self.limits = [FIRST_BUCKET, 25 * MIB] if cap is None else [int(cap * MIB)]
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.arrived: list[torch.Tensor] = []
        stays = options.get("find_unused_parameters") and not options.get("static_graph")
        self.syncs, self.rebuilt = True, bool(stays)
        self.held = self._take(
            list(reversed(self.parameters)), self.limits if stays else [sys.maxsize]
        )
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._arrives)

    def _take(self, order: list[torch.Tensor], limits: list[int]) -> list[Any]:
        return [
            self.tracker.state.allocate(size, COMMUNICATION, "DDP bucket")
            for size in bucket_sizes(order, limits)
        ]

    def _arrives(self, parameter: torch.Tensor) -> None:
        if self.as_views and self.syncs and parameter.grad is not None:
            # The gradient becomes a view of its bucket.
            with torch._C.DisableTorchFunction():
                self.tracker.release(parameter.grad)
        if not self.rebuilt:
            self.arrived.append(parameter)

    def before_forward(self) -> None:
        """Make the buckets anew, once, in the order in which gradients came."""
        if self.rebuilt or len(self.arrived) < len(self.parameters):
            return
        self.rebuilt = True
        for handle in self.held:
            self.tracker.state.free(handle)
        self.held = self._take(self.arrived[: len(self.parameters)], self.limits)


def _wrap(tracker: Tracker) -> dict[str, Any]:
    """The methods of DistributedDataParallel as the simulation runs them."""

    def init(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.device_ids, self.output_device = options.get("device_ids"), None
        self.device, self.device_type = torch.device("cuda", 0), "cuda"
        self.dim, self.is_multi_device_module = 0, False
        self.find_unused_parameters = bool(options.get("find_unused_parameters"))
        self.gradient_as_bucket_view = bool(options.get("gradient_as_bucket_view"))
        self.static_graph = bool(options.get("static_graph"))
        self.broadcast_buffers = options.get("broadcast_buffers", True)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.process_group = options.get("process_group")
        self.mixed_precision = options.get("mixed_precision")
        if self.mixed_precision is not None:
            tracker.state.refuse("DDP mixed_precision", "it keeps copies that are not modelled")
        _broadcast(tracker, [*module.parameters(), *module.buffers()])
        self.__dict__["_buckets"] = _Buckets(tracker, module, options)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._buckets.before_forward()
        buffers = list(self.module.buffers())
        if self.broadcast_buffers and buffers and self.require_forward_param_sync:
            _broadcast(tracker, buffers)
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        self._buckets.syncs = self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self._buckets.syncs = self.require_backward_grad_sync = True

    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        tracker.state.refuse("DDP communication hook", "what it allocates is not known")

    return {
        "__init__": init,
        "forward": forward,
        "no_sync": no_sync,
        "register_comm_hook": hook,
        "_set_static_graph": lambda self: None,
        "train": lambda self, mode=True: (nn.Module.train(self, mode), self)[1],
        "__getstate__": lambda self: self.__dict__,
    }


def _broadcast(tracker: Tracker, tensors: list[torch.Tensor]) -> None:
    """Send tensors joined in pieces, as `_broadcast_coalesced` does."""
    joined: dict[Any, int] = {}
    for each in tensors:
        size = each.numel() * each.element_size()
        if joined.get(each.dtype, 0) and joined[each.dtype] + size > BROADCAST:
            tracker.state.temporary(joined.pop(each.dtype), what="DDP broadcast")
        joined[each.dtype] = joined.get(each.dtype, 0) + size
    for size in joined.values():
        tracker.state.temporary(size, what="DDP broadcast")


class _Work:
    """A collective that is done."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _collective(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
    return _Work() if async_op else None


def _gather_objects(objects: list[Any], value: Any, *_: Any, **__: Any) -> None:
    objects[:] = [value] * len(objects)


_COLLECTIVES = """all_reduce broadcast reduce barrier all_gather all_gather_into_tensor gather
reduce_scatter reduce_scatter_tensor scatter all_to_all all_to_all_single broadcast_object_list
monitored_barrier"""


def _answers(state: State) -> dict[str, Any]:
    """What each function of `torch.distributed` does in a group of `state.world_size`."""
    running = {"group": state.world_size > 1}

    def begin(*args: Any, **kwargs: Any) -> None:
        running["group"] = True
        asked = kwargs.get("world_size", -1)
        state.world_size = max(state.world_size, asked if isinstance(asked, int) else 1)
        state.uses_nccl = True

    def end(*args: Any, **kwargs: Any) -> None:
        running["group"] = False

    return dict.fromkeys(_COLLECTIVES.split(), _collective) | {
        "init_process_group": begin,
        "destroy_process_group": end,
        "is_initialized": lambda: running["group"],
        "get_world_size": lambda *_, **__: state.world_size,
        "get_rank": lambda *_, **__: 0,
        "get_backend": lambda *_, **__: "nccl",
        "new_group": lambda *_, **__: None,
        "all_gather_object": _gather_objects,
    }


def _wrap_alone(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`DataParallel` with one device: the module itself."""
    nn.Module.__init__(self)
    self.module, self.device_ids, self.dim = module, [0], 0


def _forward_alone(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    return self.module(*inputs, **kwargs)


@contextlib.contextmanager
def fresh_accelerate() -> Iterator[None]:
    """Give Accelerate's shared state back as it was: it remembers devices for a whole process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = (AcceleratorState, GradientState, PartialState)
    before = [dict(each._shared_state) for each in states]
    for each in states:
        each._shared_state.clear()
    try:
        yield
    finally:
        for each, values in zip(states, before, strict=True):
            each._shared_state.clear()
            each._shared_state.update(values)


@contextlib.contextmanager
def fake_distributed(tracker: Tracker) -> Iterator[None]:
    """Let `torch.distributed` answer as in a group of `State.world_size` processes."""
    import torch.distributed as dist

    if not dist.is_available():
        yield
        return
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    with Patches() as patches:
        patches.enter_context(fresh_accelerate())
        patches.put(DataParallel, "__init__", _wrap_alone)
        patches.put(DataParallel, "forward", _forward_alone)
        patches.put_known(dist, _answers(tracker.state))
        for name, method in _wrap(tracker).items():
            patches.put(DistributedDataParallel, name, method)
        yield
