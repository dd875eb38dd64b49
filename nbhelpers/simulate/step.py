"""Run a training step of anybody's code on a simulated card, and tell its memory."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

import torch
from torch import nn

from nbhelpers.budget.formulas import CONTEXT, MemoryLine
from nbhelpers.budget.memory import QLORA_SAFETY_FACTOR, SAFETY_FACTOR, MemoryBudget, verdict_of
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.simulate.cards import Card, find_card
from nbhelpers.simulate.distributed import fake_distributed
from nbhelpers.simulate.fake_cuda import fake_cuda
from nbhelpers.simulate.masquerade import CUDA, Masquerade, transparent_python
from nbhelpers.simulate.patches import patched_torch
from nbhelpers.simulate.state import (
    ADAPTERS,
    CAUSES,
    GRADIENTS,
    LOAD,
    STEP,
    WEIGHTS,
    State,
    Unpredictable,
    current,
    made_current,
)
from nbhelpers.simulate.tracker import Tracker

NOTES = {
    "weights": "parameters that do not learn beside others that do, or all of them, and buffers",
    "adapters": "parameters that learn beside frozen ones",
    "gradients": "of parameters, as far as they are there at the peak",
    "optimizer": "its states, and what its step holds",
    "activations": "kept by the forward pass for the backward pass",
    "logits and loss": "as wide as the vocabulary",
    "attention": "results, score matrices and statistics of attention",
    "temporaries": "gradients of activations, and what kernels take inside",
    "inputs": "the batch",
    "workspace": "cuBLAS keeps it from the first product on",
    "communication": "DDP's buckets",
}
_KERNELS = ("flash", "mem_efficient", "math", "cudnn")  # of attention, as torch switches them
_LIBRARIES = ("torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes")


class Simulation:
    """One build and its steps on one simulated card."""

    def __init__(
        self, card: Card, *, world_size: int = 1, expandable_segments: bool | None = None
    ) -> None:
        if expandable_segments is None:
            expandable_segments = _expandable_by_environment()
        self.state = State(card, expandable_segments=expandable_segments)
        self.state.world_size = world_size
        self.tracker = Tracker(self.state)
        self.mode = Masquerade(self.tracker)
        self.seconds = 0.0
        self.has_four_bits = False  # unpacked weights fragment the memory

    @contextlib.contextmanager
    def running(self) -> Iterator[Simulation]:
        """Let "cuda" mean the simulated card; calls do not nest."""
        from nbhelpers.simulate.opaque import stand_ins

        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.enter_context(made_current(self.state))
            stack.enter_context(_plain_defaults())
            stack.enter_context(fake_cuda(self.state))
            stack.enter_context(patched_torch(self.mode))
            stack.enter_context(transparent_python())
            stack.enter_context(fake_distributed(self.tracker))
            stack.enter_context(stand_ins(self.state))
            stack.enter_context(self._optimizer_phase())
            stack.enter_context(self.mode)
            stack.enter_context(self.tracker)
            yield self
        self.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def _optimizer_phase(self) -> Iterator[None]:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        def before(optimizer: Any, *_: Any) -> None:
            self.tracker.in_optimizer = True
            self.state.see(STEP)
            self.tracker.steps_in_backward = torch._C._current_autograd_node() is not None
            if isinstance(optimizer, torch.optim.LBFGS):
                why = "the values of gradients decide how often it evaluates and what it keeps"
                self.state.refuse("torch.optim.LBFGS", why)

        def after(*_: Any) -> None:
            self.tracker.in_optimizer = self.tracker.steps_in_backward = False

        with register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after):
            yield

    def end_build(self, built: Any) -> None:
        """Say that what stands on the card now is the model."""
        modules = list(dict.fromkeys(_modules(built)))
        for module in modules:
            if not any(p.device == CUDA for p in module.parameters()):
                module.to(CUDA)
        self.tracker.building = False
        named = [p for module in modules for p in module.parameters()]
        self.has_four_bits = any(type(p).__name__ == "Params4bit" for p in named)
        with torch._C.DisableTorchFunction():
            frozen = any(not p.requires_grad and p.is_floating_point() for p in named)
            for parameter in named:
                trains = frozen and parameter.requires_grad
                self.tracker.relabel(parameter, ADAPTERS if trains else WEIGHTS)
            self.tracker.shadows.forget_floats(iter(named))
        for parameter in named:
            if parameter.requires_grad and parameter.is_leaf:
                parameter.register_post_accumulate_grad_hook(self._label_gradient)
        self.tracker.vocabulary = _vocabulary(modules)

    def _label_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            with torch._C.DisableTorchFunction():
                self.tracker.relabel(parameter.grad, GRADIENTS)

    def start_step(self, *, is_last: bool) -> None:
        """Count phases anew; the last step's are the ones that are told."""
        self.tracker.backward_seen = False
        if is_last:
            load = self.state.phases.get(LOAD, 0)
            self.state.phases = {LOAD: load}

    def budget(
        self, capacity_bytes: int | None = None, safety: float | None = None
    ) -> MemoryBudget:
        """Return what was seen as a budget with a verdict."""
        state = self.state
        context = state.card.context_bytes
        if state.world_size > 1 or state.uses_nccl:
            context += state.card.nccl_bytes
        lines = [
            MemoryLine(name=name, size_bytes=state.peak_sums[name], note=NOTES[name])
            for name in CAUSES
            if state.peak_sums.get(name)
        ]
        lines.append(
            MemoryLine(name=CONTEXT, size_bytes=context, note="CUDA, outside the allocator")
        )
        capacity = state.card.memory_total_bytes if capacity_bytes is None else capacity_bytes
        if state.fraction is not None:  # what torch.cuda.set_per_process_memory_fraction allows
            allowed = int(state.fraction * state.card.memory_total_bytes) + context
            capacity = min(capacity, allowed)
        reserved = state.allocator.peak_reserved
        for place, text in state.guessed.items():
            if state.peak_at == place:
                state.refuse(text, "the peak is inside it")
            else:
                state.note(text)
        usual = QLORA_SAFETY_FACTOR if self.has_four_bits else SAFETY_FACTOR
        verdict = verdict_of(
            allocated_bytes=state.peak,
            reserved_bytes=reserved,
            context_bytes=context,
            room_bytes=capacity,
            safety=usual if safety is None else safety,
            is_complete=not state.opaque,
        )
        return MemoryBudget(
            lines=tuple(lines),
            total_bytes=state.peak + context,
            capacity_bytes=capacity,
            verdict=verdict,
            advice=(),
            source="simulation",
            reserved_bytes=reserved,
            phases=tuple(
                MemoryLine(name=name, size_bytes=size, note="peak of allocated bytes")
                for name, size in state.phases.items()
            ),
            opaque=tuple(f"{name}: {why}" for name, why in state.opaque.items()),
            notes=tuple(state.notes),
            versions=library_versions(),
        )


def simulate_step(
    build: Callable[[], Any],
    step: Callable[..., Any],
    *,
    gpu: str | Gpu | Card,
    steps: int = 2,
    world_size: int = 1,
    expandable_segments: bool | None = None,
    capacity_bytes: int | None = None,
    safety: float | None = None,
) -> MemoryBudget:
    """Predict the memory of a training step by running it without a GPU.

    Both functions are ordinary code for "cuda": inside, a device of that name exists. A model that
    `build` leaves on the CPU is moved; afterwards real modules are as they were, and tensors that
    code kept from inside have no data. Tensors made from real data keep their values, so a padding
    mask decides what it would decide on a GPU.

    Args:
        build: Makes what `step` needs: a model, or a tuple that `step` takes as arguments.
        step: One training step: forward, backward, optimizer. It runs `steps` times, as optimizers
            make their states in the first.
        gpu: A name of `configs/gpus.yaml`, as "t4", or a detected GPU.
        world_size: Processes of data parallel training.
        expandable_segments: Of PyTorch's allocator; None: as `PYTORCH_CUDA_ALLOC_CONF` says.
        capacity_bytes: What the card has; None: the card's memory.
        safety: By how much the card must exceed the reserved bytes for "fits"; None: 1.10, or 1.25
            with weights in 4 bits.

    Returns:
        The budget: lines by cause at the peak, the reserved bytes, the peak of each phase of the
        last step. What cannot be predicted is named in `opaque`, and the verdict is then "unknown",
        or "does not fit" where the known part alone is too much.

    Raises:
        ConfigError: The GPU is not known, `steps` is less than 1, or a simulation runs already.
        Exception: Whatever `build` and `step` raise.
    """
    if current() is not None:
        raise ConfigError(
            "simulate_step was called inside a simulated step.",
            fix="simulate one after the other",
        )
    if steps < 1:
        raise ConfigError(f"steps={steps} is not a number of steps.", fix="set steps to 2 or more")
    simulation = Simulation(
        find_card(gpu) if not isinstance(gpu, Card) else gpu,
        world_size=world_size,
        expandable_segments=expandable_segments,
    )
    with simulation.running():
        try:
            built = _built(build)
            simulation.end_build(built)
            for number in range(steps):
                simulation.start_step(is_last=number == steps - 1)
                _call(step, built)
        except Unpredictable as stopped:
            simulation.state.cut_short(str(stopped))
        except torch.OutOfMemoryError:
            if not simulation.state.too_large:
                raise
            simulation.state.ends_too_large()
    return simulation.budget(capacity_bytes, safety)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries whose code a simulation runs."""
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions["torch"] = torch.__version__.partition("+")[0]
    return versions


def _built(build: Callable[..., Any]) -> Any:
    """Call `build`, with the device if it wants one argument."""
    try:
        inspect.signature(build).bind()
    except TypeError:
        return build(CUDA)
    except ValueError:
        pass
    return build()


def _call(step: Callable[..., Any], built: Any) -> None:
    """Call a step with what was built, or with nothing if it takes nothing."""
    arguments = built if isinstance(built, tuple) else (built,)
    try:
        inspect.signature(step).bind(*arguments)
    except TypeError:
        inspect.signature(step).bind()
        arguments = ()
    except ValueError:
        pass
    step(*arguments)


def _modules(built: Any) -> Iterable[nn.Module]:
    if isinstance(built, nn.Module):
        yield built
    elif isinstance(built, dict):
        for each in built.values():
            yield from _modules(each)
    elif isinstance(built, (list, tuple)):
        for each in built:
            yield from _modules(each)
    elif hasattr(built, "__dict__"):  # a trainer, or whatever else holds the model
        yield from (each for each in vars(built).values() if isinstance(each, nn.Module))


def _vocabulary(modules: list[nn.Module]) -> int:
    """The rows of the largest embedding: logits are as wide."""
    rows = [
        m.num_embeddings for top in modules for m in top.modules() if isinstance(m, nn.Embedding)
    ]
    most = max(rows, default=0)
    return most if most >= 2048 else 0


def _expandable_by_environment() -> bool:
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return "expandable_segments:true" in text.lower().replace(" ", "")


@contextlib.contextmanager
def _plain_defaults() -> Iterator[None]:
    """Give back the settings of torch, and the random numbers, that user code may change."""
    dtype, grad, random = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    anomalies = torch.is_anomaly_enabled()
    autocast = torch.is_autocast_enabled("cuda")
    kernels = [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _KERNELS]
    try:
        yield
    finally:
        for name, is_on in zip(_KERNELS, kernels, strict=True):
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(is_on)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(random)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.autograd.set_detect_anomaly(anomalies)
        torch.set_autocast_enabled("cuda", autocast)
