"""A case of the memory grid as (build, step): training code as a person would write it.

The same two functions run on a GPU and under `simulate_step`; only `device` tells them apart from
a run on a CPU, which the tests make with tiny sizes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.memory_cases_adapters import adapt, prepare, quantise
from benchmarks.memory_cases_data import make_batch
from benchmarks.memory_cases_models import build_network

CHUNK = 1024  # tokens whose logits exist at a time in the chunked loss


def make(case: dict[str, Any], device: str = "cuda") -> tuple[Callable[..., Any], Callable]:
    """Return (build, step) of a complete case (`memory_cases.complete`)."""
    return functools.partial(build, case, device), functools.partial(train_step, case, device)


def build(case: dict[str, Any], device: str) -> tuple[Any, ...]:
    """Make the model, what is called for training, the optimizer, the scaler and the batches."""
    if device == "cuda":
        _choose_kernels(case)
    if case["loss"] == "liger":
        _use_liger(case)
    model = build_network(case, device)
    vocabulary = getattr(getattr(model, "body", model).config, "vocab_size", 2)
    if case["quantise"]:
        quantise(model, case, device)
        if case["prepare"]:
            model = prepare(model, case)
    if case["adapter"]:
        if case["checkpointing"] and not case["quantise"]:
            model.enable_input_require_grads()
        model = adapt(model, case["adapter"])
    if case["checkpointing"] and not (case["quantise"] and case["prepare"]):
        _checkpoint(model, case["checkpointing"])
    model.train()
    called = _call(model, case, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(case, trained)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0) if case["scaler"] else None
    batches = [make_batch(case, vocabulary, seed) for seed in range(case["accumulate"])]
    if case["feed"] == "build":
        batches = [_move(batch, device) for batch in batches]
    return model, called, optimizer, scaler, batches


def _choose_kernels(case: dict[str, Any]) -> None:
    switches = {"flash": torch.backends.cuda.enable_flash_sdp}
    switches["cudnn"] = torch.backends.cuda.enable_cudnn_sdp
    switches["efficient"] = torch.backends.cuda.enable_mem_efficient_sdp
    for name in case["without"]:
        switches[name](False)


def _use_liger(case: dict[str, Any]) -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_gemma2, apply_liger_kernel_to_qwen2

    apply = {"gemma2": apply_liger_kernel_to_gemma2, "qwen2": apply_liger_kernel_to_qwen2}
    whole = case["liger"] == "all"
    gate = {"geglu": whole} if case["family"] == "gemma2" else {"swiglu": whole}
    apply[case["family"]](
        rope=whole, rms_norm=whole, cross_entropy=False, fused_linear_cross_entropy=True, **gate
    )


def _checkpoint(model: nn.Module, how: str) -> None:
    inner = model.body if hasattr(model, "body") else model
    options = {"use_reentrant": how == "reentrant"}
    inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def _call(model: nn.Module, case: dict[str, Any], device: str) -> Any:
    """Return what a step calls: the model, compiled, or under DDP."""
    if case["compile"]:
        return torch.compile(model)
    if not case["ddp"]:
        return model
    from nbhelpers.common.processes import free_port

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"tcp://127.0.0.1:{free_port()}",
            rank=0,
            world_size=1,
        )
    options = {} if case["ddp"] is True else dict(case["ddp"])
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[0] if device == "cuda" else None, **options
    )


def make_optimizer(case: dict[str, Any], trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that the case names."""
    name = case["optimizer"]
    adamw = {"adamw": {}, "adamw_foreach": {"foreach": True}, "adamw_fused": {"fused": True}}
    adamw |= {"adamw_loop": {"foreach": False}, "adamw_amsgrad": {"amsgrad": True}}
    if name in adamw:
        return torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.01, **adamw[name])
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-5, momentum=0.9)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    if name in ("torch_adafactor", "rmsprop", "nadam", "adam"):
        names = {"torch_adafactor": "Adafactor", "rmsprop": "RMSprop", "nadam": "NAdam"}
        return getattr(torch.optim, names.get(name, "Adam"))(trained, lr=1e-5)
    import bitsandbytes as bnb

    return getattr(bnb.optim, name)(trained, lr=1e-5)


def _move(batch: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in batch.items()}


def train_step(
    case: dict[str, Any],
    device: str,
    model: nn.Module,
    called: Any,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    batches: list[dict[str, torch.Tensor]],
) -> torch.Tensor:
    """Train on every micro-batch, then change the weights; returns the last loss."""
    precision = torch.autocast(device, getattr(torch, case["autocast"] or "bfloat16"))
    kept = None
    with _attention_context(case, device):
        for batch in batches:
            if case["feed"] == "step":
                batch = _move(batch, device)
            with precision if case["autocast"] else contextlib.nullcontext():
                loss, kept = _loss(case, model, called, batch, kept)
                loss = loss / len(batches) if len(batches) > 1 else loss
            (loss if scaler is None else scaler.scale(loss)).backward()
    _update(case, model, optimizer, scaler)
    return loss.detach()


def _attention_context(case: dict[str, Any], device: str) -> Any:
    if not case["only"] or device != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, case["only"]))


def _loss(
    case: dict[str, Any], model: nn.Module, called: Any, batch: dict[str, torch.Tensor], kept: Any
) -> tuple[torch.Tensor, Any]:
    """Return the loss, and the outputs where a case keeps them alive through the backward."""
    if case["task"] in ("pairs", "graph"):
        return called(**batch), None
    if case["loss"] == "chunked":
        return chunked_loss(model, batch), None
    if case["loss"] == "logits":  # the labels stay outside, the loss is the user's own
        labels = batch["labels"]
        rest = {name: value for name, value in batch.items() if name != "labels"}
        logits = called(**rest).logits[:, :-1].float()
        flat = logits.reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, labels[:, 1:].reshape(-1)), None
    if case["keep_outputs"]:
        outputs = called(**batch)
        return outputs.loss, outputs
    return called(**batch).loss, None


def chunked_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean loss over the supervised tokens; the logits of a chunk are made again backward."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    rest = {name: value for name, value in batch.items() if name != "labels"}
    hidden = inner.model(**rest).last_hidden_state[:, :-1]
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), batch["labels"][:, 1:].reshape(-1)
    cap, head = getattr(inner.config, "final_logit_softcapping", None), inner.lm_head

    def part(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = head(rows)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return functional.cross_entropy(logits.float(), wanted, ignore_index=-100, reduction="sum")

    total = hidden.new_zeros((), dtype=torch.float32)
    for at in range(0, hidden.shape[0], CHUNK):
        rows, wanted = hidden[at : at + CHUNK], labels[at : at + CHUNK]
        total = total + checkpoint(part, rows, wanted, use_reentrant=False)
    return total / (labels != -100).sum()


def _update(
    case: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any
) -> None:
    if case["clip"]:
        if scaler is not None:
            scaler.unscale_(optimizer)
        trained = [p for p in model.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, case["clip"])
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad(set_to_none=case["set_to_none"])
