"""Small trainings of adapters, in this process or in several.

They use the job's own loop, batches, loss and order on a tiny Gemma 2 with made-up samples.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from causal_tiny import VOCAB, tiny_base, tiny_table
from contexts import make_context
from trained_on_disk import NEUTRAL

from nbhelpers.jobs.finetune_evaluate import _answers, _Question
from nbhelpers.jobs.finetune_task import AdapterTask, learning, prepare
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState
from nbhelpers.jobs.models.causal import Adapted, add_adapter, keep_as_stored, quantise
from nbhelpers.plan import split_batch
from nbhelpers.presets.schema import FinetuneSettings

SAMPLES = 17  # with a global batch of 8, the last step of an epoch has one
SETTINGS = {
    "model": "smoke",
    "epochs": 2,
    "global_batch_size": 8,
    "per_device_train_batch_size": 8,
    "seq_len": 48,
    "learning_rate": 0.5,
    "lr_schedule": "linear",
    "warmup_ratio": 0.2,
    "weight_decay": 0.01,
    "seed": 3,
    "lora_r": 4,
    "lora_target_modules": ["q_proj", "v_proj", "down_proj"],
    "packing": True,
    "max_new_tokens": 8,
    "generation_batch_size": 2,
}
SPECIAL = ("<pad>", "<bos>", "<eos>")


@dataclass
class Probed:
    """What a training left behind; `seen` has the rows of each optimizer step, in its order."""

    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    state: TrainState
    seen: list[list[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)  # tensors before the first step
    model: Any = None
    trainer: Any = None


def settings(**changes: Any) -> FinetuneSettings:
    """Settings for the tiny model."""
    return FinetuneSettings.model_validate(NEUTRAL | SETTINGS | changes)


def tiny_tokenizer() -> Any:
    """Return a tokenizer of whole words: `w3` is the token 3."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), VOCAB))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def adapted(given: FinetuneSettings, *, warm: bool = True) -> Any:
    """Return the tiny base with adapters; `warm`: B is not zero, so that A has a gradient."""
    base = tiny_base(scale=3.0)
    base.tokenizer = tiny_tokenizer()
    if given.method == "qlora":
        quantise(base.model, torch.float32)
        keep_as_stored(base.model.requires_grad_(False))
    model = add_adapter(base, given)
    if warm:
        draw = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return Adapted(base=base, model=model, facts={})


class _Recording(Trainer):
    """Notes which samples each optimizer step sees, its rate, and the first step's gradients."""

    def _backward(self, batch_rows: np.ndarray, state: TrainState, *, late: bool = False) -> Any:
        found, model = self.hooks.found, self.task.adapted.model
        if not found.seen:
            found.first = trained_tensors(model)
        micro = super()._backward(batch_rows, state, late=late)
        found.seen.append(np.concatenate(micro.rows).tolist())
        found.rates.append(self.optimizer.param_groups[0]["lr"])
        if state.step == 0:
            found.gradients = arrays(trained_tensors(model, gradients=True))
        return micro


class _Hooks(Hooks):
    """The loop's hooks, with what is found."""

    __slots__ = ("found",)


def trained_tensors(model: Any, *, gradients: bool = False) -> dict[str, Any]:
    """Return copies of what is trained, or of its gradients."""
    return {
        name: (parameter.grad if gradients else parameter).detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return tensors in fp64."""
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def train(
    *,
    kernel: str = "eager",
    loss: str = "chunked",
    optimizer: str = "sgd",
    samples: int = SAMPLES,
    warm: bool = True,
    before: Any = None,
    each_step: Any = None,
    graphed: bool = False,
    **changes: Any,
) -> Probed:
    """Train as the job does, in this process's place of the world.

    Args:
        graphed: By the parts that are captured as CUDA graphs on a GPU.
        optimizer: `sgd` in the place of AdamW, which divides rounding noise by itself; or `adamw`.
        before: Called with what was found so far and Accelerate's object, before training.
        each_step: Called with what was found so far, at the end of each optimizer step.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    given = settings(loss=loss, **changes)
    model = adapted(given, warm=warm)
    plan = split_batch(
        given.global_batch_size, given.per_device_train_batch_size, accelerator.num_processes
    )
    task = AdapterTask(
        given,
        plan,
        {"train": tiny_table(samples, longest=given.seq_len)},
        model,
        accelerator,
        kernel=kernel,
        precision="fp32",
        names=[str(row) for row in range(samples)],
    )
    task.is_graphed = graphed
    found = Probed(weights={}, gradients={}, state=TrainState(), model=model)
    hooks = _Hooks(
        emit=lambda *a, **k: None,
        save=lambda state, is_best: found.saved.append(state.step),
        wants_stop=lambda: bool(each_step(found)) if each_step else False,
        save_is_due=lambda: False,
        peak_bytes=lambda: 0,
        step_context=lambda step: nullcontext(),
    )
    hooks.found = found
    prepare(model, given, accelerator)
    if before is not None:
        before(found, accelerator)
    with task.forward.active():
        alone = task.averages_gradients
        wrapped = accelerator.prepare_model(model.model, evaluation_mode=alone)
        prepared = accelerator.prepare_optimizer(OPTIMIZERS[optimizer](model, given))
        found.trainer = _Recording(
            task=task,
            model=wrapped,
            optimizer=prepared,
            accelerator=accelerator,
            settings=given,
            plan=plan,
            hooks=hooks,
        )
        found.trainer.fit(found.state)
    found.weights = arrays(trained_tensors(model.model))
    return found


def _adamw(model: Adapted, given: FinetuneSettings) -> torch.optim.Optimizer:
    from nbhelpers.jobs.training import adamw

    context = make_context(settings=given)
    return adamw(context, learning(model.model))


OPTIMIZERS = {
    "sgd": lambda model, given: torch.optim.SGD(learning(model.model), lr=given.learning_rate),
    "adamw": _adamw,
}


def answers(prompts: list[str], **changes: Any) -> list[list[Any]]:
    """Return what all processes together answer to prompts, as the job asks; rank 0's list."""
    from accelerate import PartialState

    world, given = PartialState(cpu=True), settings(**changes)
    model = adapted(given)
    model.model.eval()
    context = make_context(
        settings=given, rank=world.process_index, plan=split_batch(8, 1, world.num_processes)
    )
    inputs = SimpleNamespace(tokenizer=model.base.tokenizer, data=SimpleNamespace(template="plain"))
    asked = [_Question("test", str(i), prompt, "") for i, prompt in enumerate(prompts)]
    return [list(answer) for answer in _answers(context, model, inputs, asked, "generate")]


def main(configs: list[dict[str, Any]], out: Path) -> None:
    """Do each configuration and write what rank 0 found."""
    told: list[Any] = []
    for config in configs:
        if "prompts" in config:
            told.append(answers(**config))
            continue
        found = train(**config)
        told.append(
            {
                "weights": {k: v.tolist() for k, v in found.weights.items()},
                "gradients": {k: v.tolist() for k, v in found.gradients.items()},
                "state": found.state.to_dict(),
                "seen": found.seen,
                "rates": found.rates,
                "saved": found.saved,
            }
        )
    if found.trainer.accelerator.is_main_process:
        out.write_text(json.dumps(told))
