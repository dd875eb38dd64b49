"""See every operation of a step, and give its results memory on the simulated card."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nbhelpers.simulate import kernels
from nbhelpers.simulate.data_dependent import DATA_DEPENDENT, run_data_dependent
from nbhelpers.simulate.kernels_matmul import claim_workspace
from nbhelpers.simulate.shadow import ABSORBING, FILLED, Shadows, filled_values, settled
from nbhelpers.simulate.shortcuts import SLOW, shortcut
from nbhelpers.simulate.state import (
    ACTIVATIONS,
    ATTENTION,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    LOAD,
    LOGITS,
    OPTIMIZER,
    STEP,
    TEMPORARIES,
    WEIGHTS,
    State,
    Unpredictable,
)

aten = torch.ops.aten
_node = torch._C._current_autograd_node
_ATTENTION_OPS = ("scaled_dot_product", "_flash_attention", "_efficient_attention", "flex_")
# The size of a storage may change without a new one being made.
_RESIZING = {aten.resize_.default, aten.resize_as_.default, aten.set_.source_Tensor}


class Tracker(TorchDispatchMode):
    """Follows storages on the simulated card from birth to death.

    A storage without data is on the card unless all that it came from is on the host: while the
    model is built, the host's tensors have no data either (`on_host`).
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.shadows = Shadows()
        self.live: dict[int, list[Any]] = {}  # storage key: [handle, bytes, weak reference]
        self.hosts: dict[int, Any] = {}  # storage key of a host tensor without data
        self.pending: tuple[int, int, int, str, str] | None = None
        self.building = True
        self.to_card = False  # a factory or copy that asks for the card runs now
        self.backward_seen = False
        self.in_optimizer = False
        self.steps_in_backward = False  # the optimizer steps inside a hook of the backward pass
        self.vocabulary = 0
        self.has_draws = False  # random numbers on the card are known as one draw of them
        self.score_sizes: set[int] = set()

    # ---------------------------------------------------------------- where a tensor is

    def put(self, tensor: torch.Tensor, category: str | None = None) -> None:
        """Give a tensor memory on the card, if it has none."""
        self._flush()
        self._track(tensor, category or self._category(tensor, None), "")

    def relabel(self, tensor: torch.Tensor, category: str) -> None:
        """Say what a tensor is for."""
        if tensor.layout is not torch.strided:
            return
        entry = self.live.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            self._flush()
            self.state.relabel(entry[0], category)

    def release(self, tensor: torch.Tensor) -> None:
        """Take a storage off the card while the tensor lives on: it is a view of other memory."""
        entry = self.live.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            self._flush()
            self.state.free(entry[0])
            entry[0] = None

    # ---------------------------------------------------------------- birth and death

    def _track(
        self,
        tensor: torch.Tensor,
        category: str,
        what: str,
        added_to: int | None = None,
        size: int | None = None,
    ) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or key in self.hosts:
            return
        size = storage.nbytes() if size is None else size
        entry = [None, size, weakref.ref(storage, functools.partial(self._dies, key))]
        self.live[key] = entry
        old = self.live.get(added_to) if added_to is not None else None
        if old is not None and old[1] == size:
            self.pending = (added_to, key, size, category, what)
        else:
            entry[0] = self.state.allocate(size, category, what)

    def _flush(self) -> None:
        """Give the last sum memory of its own: what it added up lives on."""
        if self.pending is not None:
            (_, key, size, category, what), self.pending = self.pending, None
            entry = self.live.get(key)
            if entry is not None:
                entry[0] = self.state.allocate(size, category, what)

    def _dies(self, key: int, _: Any) -> None:
        entry = self.live.pop(key, None)
        if self.shadows:
            self.shadows.forget(key)
        if entry is None:
            return
        pending = self.pending
        if pending is not None:
            if pending[0] == key:  # nobody else held the first term: CUDA adds in place
                self.pending = None
                self.live[pending[1]][0] = entry[0]
                return
            if pending[1] == key:
                self.pending = None
                return
            self._flush()
        if entry[0] is not None:
            self.state.free(entry[0])

    def _host_dies(self, key: int, _: Any) -> None:
        self.hosts.pop(key, None)
        self.shadows.forget(key)

    def mark_host(self, tensor: torch.Tensor) -> None:
        """Say that a tensor without data is in main memory."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.hosts and key not in self.live:
            self.hosts[key] = weakref.ref(storage, functools.partial(self._host_dies, key))

    # ---------------------------------------------------------------- causes and phases

    def _category(self, tensor: torch.Tensor, func: Any) -> str:
        state = self.state
        if self.building:
            return WEIGHTS
        phase = state.forced_phase or state.phase_now
        if phase == STEP:
            return OPTIMIZER if self.in_optimizer else TEMPORARIES
        shape = tensor.shape
        if self.vocabulary and shape and shape[-1] == self.vocabulary:
            return LOGITS
        if func is not None:
            name = func._schema.name
            if func in (aten._softmax.default, aten._safe_softmax.default) and len(shape) >= 3:
                self.score_sizes.add(tensor.numel())
            if any(part in name for part in _ATTENTION_OPS):
                return ATTENTION
            if len(shape) >= 3 and tensor.numel() in self.score_sizes:
                return ATTENTION
        return ACTIVATIONS if phase != BACKWARD else TEMPORARIES

    def _set_phase(self, args: tuple[Any, ...]) -> None:
        state = self.state
        in_backward = _node() is not None
        if self.building:
            state.phase_now = LOAD
        elif self.in_optimizer and (self.steps_in_backward or not torch.is_grad_enabled()):
            state.phase_now = STEP
        elif in_backward:
            state.phase_now, self.backward_seen = BACKWARD, True
        elif self.backward_seen and not torch.is_grad_enabled() and self._after_backward(args):
            state.phase_now = STEP
        else:
            state.phase_now = FORWARD

    def _after_backward(self, args: tuple[Any, ...]) -> bool:
        """Whether gradients are worked on: clipped or unscaled, before the optimizer's step."""
        if self.state.phase_now == STEP:
            return True
        for tensor in tensors_in(args):
            entry = self.live.get(tensor.untyped_storage()._cdata) if tensor.is_meta else None
            if entry is not None and entry[0] is not None and entry[0][1] == GRADIENTS:
                return True
        return False

    # ---------------------------------------------------------------- every operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on shapes, then give its results and its temporaries memory."""
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("pin_memory"):  # there is no driver that could pin
            kwargs = kwargs | {"pin_memory": False}
        if func is aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]  # to main memory, as hooks that offload do
        if _is_composite(func):  # as they come under inference_mode: see what they are made of
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        self._set_phase(args)
        shadowed = None
        if self.shadows or func in DATA_DEPENDENT:
            shadowed = self._shadowed(func, args, kwargs)
        if func in DATA_DEPENDENT:
            out = run_data_dependent(self, func, args, kwargs, shadowed)
        else:
            try:
                out = shortcut(func, args, kwargs)
                if out is SLOW:
                    out = func(*args, **kwargs)
            except NotImplementedError as error:
                name = str(func)
                self.state.refuse(name, "it has no rule for shapes alone")
                raise Unpredictable(name) from error
        self._flush()
        if isinstance(out, torch.Tensor) and out.layout is not torch.strided:
            self.state.refuse("sparse tensors", "their indices and values are not followed")
        tensors = tensors_in(out)
        if not tensors or not any(t.is_meta for t in tensors):
            return out
        on_host = self._on_host(args, kwargs)
        if on_host:
            for tensor in tensors:
                self.mark_host(tensor)
        else:
            self._born(func, args, kwargs, tensors, out)
        if func in FILLED:
            self._keep_filled(func, args, kwargs, tensors[0])
        elif shadowed is not None:
            self._keep_values(shadowed[0], tensors)
        elif self.shadows and func._schema.is_mutable:
            for tensor in tensors:
                self.shadows.forget(tensor.untyped_storage()._cdata)
        return out

    def _on_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether results stay in main memory: nothing that they come from is on the card."""
        if self.to_card or not (self.building or self.hosts):
            return False
        tensors = tensors_in((args, kwargs))
        metas = [t for t in tensors if t.is_meta]
        if not metas:
            return self.building
        return all(t.untyped_storage()._cdata in self.hosts for t in metas)

    def _born(self, func: Any, args: Any, kwargs: Any, tensors: list[Any], out: Any) -> None:
        state = self.state
        if not kernels.is_known(func):
            state.refuse(str(func), "nobody looked at what its kernel allocates")
        if text := kernels.note(func):
            state.guessed[func._schema.name + " (inside)"] = f"{func}: {text}"
        added_to = None
        if func is aten.add.Tensor and state.phase_now == BACKWARD:
            added_to = _added_to(args[0], args[1])
        call = kernels.Call(
            func,
            args,
            kwargs,
            out,
            state.card,
            torch.are_deterministic_algorithms_enabled(),
        )
        what = func._schema.name
        inside = what + " (inside)"
        handles: list[Any] = []
        ahead, after = kernels.events(call)
        self._play(ahead, handles, inside)
        sizes = kernels.outputs(call)
        metas = [t for t in tensors if t.is_meta]
        if func is aten.native_dropout.default:
            metas.reverse()  # the mask comes first (Dropout.cu: dropout_cuda)
        for number, tensor in enumerate(metas):
            size = sizes[number] if sizes is not None and number < len(sizes) else None
            self._track(tensor, self._category(tensor, func), what, added_to, size)
        if func in _RESIZING:
            self._resized(metas[0])
        claim_workspace(self.state, func)
        self._play(after, handles, inside)
        for handle in handles:
            state.free(handle)

    def _play(self, events: Sequence[int], handles: list[Any], what: str) -> None:
        """Take and give back what happens inside a kernel: +n bytes, -n the latest of n bytes."""
        for size in events:
            if size > 0:
                handles.append(self.state.allocate(size, TEMPORARIES, what))
            elif size < 0:
                for handle in reversed(handles):
                    if handle is not None and handle[2] == -size:
                        self.state.free(handle)
                        handles.remove(handle)
                        break

    def _resized(self, tensor: torch.Tensor) -> None:
        entry = self.live.get(tensor.untyped_storage()._cdata)
        size = tensor.untyped_storage().nbytes()
        if entry is not None and size > entry[1]:
            handle = self.state.allocate(size, TEMPORARIES, "resize_")
            self.state.free(entry[0])
            entry[0], entry[1] = handle, size

    # ---------------------------------------------------------------- values beside shapes

    def _shadowed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the operation's result on real values, or None if these are not known."""
        tensors = tensors_in((args, kwargs))
        if not tensors or not any(t.is_meta for t in tensors):
            return None
        if not self.shadows.known(tensors):
            return settled(self.shadows, func, args) if func in ABSORBING else None
        try:
            return (self.shadows.run(func, args, kwargs),)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return None

    def _keep_filled(self, func: Any, args: Any, kwargs: Any, tensor: torch.Tensor) -> None:
        if not tensor.is_meta or self.shadows.has(tensor):
            return  # of a part of a tensor with values, the part has been filled already
        is_brief = self.building or self.in_optimizer
        values = filled_values(func, args, kwargs, tensor, is_brief=is_brief)
        if values is not None:
            self.shadows.keep(tensor, values)

    def _keep_values(self, real: Any, tensors: list[Any]) -> None:
        for tensor, values in zip(tensors, tensors_in(real), strict=False):
            if tensor.is_meta and not self.shadows.has(tensor):
                self.shadows.keep(tensor, values)


def _added_to(first: Any, second: Any) -> int | None:
    """The key of the storage that the backward pass adds to in place on CUDA; None: to a new one.

    Source: torch/csrc/autograd/input_buffer.cpp, which cannot do so while a mode looks on. The
    gradient of a weight that is used transposed is a view of its shape: measured with tied
    embeddings, the sum is a new tensor then.
    """
    if not isinstance(second, torch.Tensor) or not first.is_meta:
        return None
    if first.shape != second.shape or first.dtype != second.dtype:
        return None
    if first._is_view() and first._base.shape == first.shape:
        return None
    return first.untyped_storage()._cdata


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether an operation has no kernel of its own but is made of others."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has(func.name(), "CompositeImplicitAutograd") and not func._schema.is_mutable
    except RuntimeError:  # a question about sizes, as nested tensors ask
        return False


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in arguments or results: nested lists and tuples, one level of dictionaries."""
    if isinstance(tree, torch.Tensor):
        return [tree] if tree.layout is torch.strided else []
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    tensors: list[torch.Tensor] = []
    for each in tree:
        if isinstance(each, torch.Tensor):
            if each.layout is torch.strided:
                tensors.append(each)
        elif isinstance(each, (list, tuple, dict)):
            tensors.extend(tensors_in(each))
    return tensors
