"""Fine-tuning of a causal model by adapters: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from nbhelpers.budget.formulas import COMPILE_PAYS_TOKENS, CausalExtent, finetune_ledger
from nbhelpers.budget.shapes import find_shape
from nbhelpers.data.coding_tasks import CodingTask, load_tasks
from nbhelpers.data.instructions import InstructionData, load_instructions
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.context import Forecast, RunContext
from nbhelpers.jobs.finetune_evaluate import (
    check_prompts,
    evaluate_all,
    prompt_lengths,
    tasks_may_run,
)
from nbhelpers.jobs.finetune_task import AdapterTask, Inputs, longest_first, train_adapter
from nbhelpers.jobs.forecast import Simulate, largest_rows
from nbhelpers.jobs.models.causal import (
    Adapted,
    add_adapter,
    count_parameters,
    load_base,
    load_tokenizer,
)
from nbhelpers.jobs.models.causal_batches import TextTable, tokenise_samples
from nbhelpers.jobs.models.causal_forward import (
    choose_attention,
    generation_kernel,
    has_triton,
)
from nbhelpers.jobs.training import Training
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.schema import FinetuneSettings

ROOM_SHARE = 0.8  # of the card, for a short run without compiling


def check(settings: FinetuneSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    needed = {"evaluate": settings.evaluate != "none", "trl": not settings.has_own_loop}
    missing = [name for name in needed if needed[name] and find_spec(name) is None]
    problems = [f"{name} is not installed: pip install {name}" for name in missing]
    if settings.method == "base" and settings.evaluate == "none":
        problems.append(
            "method=base trains nothing and evaluate=none scores nothing: set evaluate=text"
        )
    if settings.attention == "flex" and not has_triton():
        problems.append("attention=flex needs Triton, which is not installed: set attention=auto")
    if settings.compile_layers == "on" and not has_triton():
        problems.append("compile_layers=on needs Triton, which is not installed: set it to auto")
    return problems


def build_data(context: RunContext) -> Inputs:
    """Read the rows, make prompts, tokenise each split, and read the problems of pass@1.

    Raises:
        DataError: Rows that cannot be used.
        ConfigError: A template that the model does not have.
    """
    s = context.settings
    tokenizer = load_tokenizer(s)
    data = load_instructions(
        s.data,
        revision=s.data_revision,
        template=s.template,
        on_bad_rows=s.on_bad_rows,
        train_fraction=s.train_fraction,
        max_train_samples=s.max_train_samples,
        valid_samples=s.valid_samples,
        eval_samples=s.eval_samples,
        split_seed=s.split_seed,
        seed=s.seed,
        remove_duplicates=s.remove_duplicates,
        supervise=s.supervise,
        tokenizer=tokenizer,
    )
    context.warn_all(data.warnings)
    if tokenizer is None:
        texts = [sample.prompt + sample.completion for sample in data.splits["train"]]
        tokenizer = load_tokenizer(s, texts)
    tables = {
        name: tokenise_samples(
            samples,
            tokenizer,
            seq_len=s.seq_len,
            template=data.template,
            report=context.progress(f"tokenise {name}"),
        )
        for name, samples in data.splits.items()
    }
    _tell_cut(context, tables)
    refusal = _refusal(context)
    tasks = {} if refusal else _tasks(context, data, tokenizer)
    return Inputs(data=data, tables=tables, tokenizer=tokenizer, tasks=tasks, refusal=refusal)


def _tell_cut(context: RunContext, tables: dict[str, TextTable]) -> None:
    table, limit = tables["train"], context.settings.seq_len
    if table.cut:
        share = table.cut / max(1, len(table))
        context.warn(
            f"{table.cut} train answers ({share:.1%}) are longer than seq_len={limit} and are cut; "
            "a cut answer teaches no end."
        )
    if table.dropped:
        context.warn(
            f"{table.dropped} train rows have a prompt of seq_len={limit} tokens or more and are "
            "left out."
        )


def _refusal(context: RunContext) -> str:
    """Say why generated programs are not run here, though asked for; nothing where they are."""
    if context.settings.evaluate != "all":
        return ""
    may, reason = tasks_may_run(context.settings)
    if may:
        return ""
    context.warn(f"pass@1 is not measured: {reason}")
    return reason


def _tasks(
    context: RunContext, data: InstructionData, tokenizer: Any
) -> dict[str, list[CodingTask]]:
    s = context.settings
    if s.evaluate != "all":
        return {}
    return {
        name: load_tasks(
            name,
            mbpp_data=s.mbpp_data,
            limit=s.max_task_problems,
            template=data.template,
            tokenizer=tokenizer,
            on_bad_rows=s.on_bad_rows,
            warn=context.warn,
        )
        for name in s.tasks
    }


def forecast(context: RunContext, inputs: Inputs, simulate: Simulate) -> Forecast:
    """Return the simulated memory of the largest batch, and whether blocks are to be compiled.

    Long runs gain time by compiling, and large micro-batches need the room.
    """
    s, shape = context.settings, find_shape(context.settings)
    if s.method != "base" and not s.has_own_loop:  # it draws its batches as it likes
        longest = longest_first(inputs.tables["train"])[: context.plan.per_device_train_batch_size]
        return Forecast(budget=simulate(batch_shapes(context, inputs, [longest])))
    if s.method == "base" or shape is None:
        return Forecast()
    device = context.accelerator.device
    kernel = choose_attention(s.attention, shape.family, device)
    task = AdapterTask(
        s,
        context.plan,
        inputs.tables,
        None,
        context.accelerator,
        kernel=kernel,
        precision=context.precision,
        is_compiled=s.compile_layers != "off",
    )
    needs_room, is_compiled = False, s.compile_layers == "on"
    if s.compile_layers == "auto" and kernel == "flex" and has_triton():
        is_compiled = int(task.costs.sum()) * s.epochs >= COMPILE_PAYS_TOKENS
        needs_room = not is_compiled
    size_of = partial(_training_bytes, context, shape, kernel, is_compiled)
    parts = largest_rows(context, task, size_of=size_of)
    shapes, budget = batch_shapes(context, inputs, parts), None
    if needs_room:
        # Of all steps: a resumed run computes as it did before.
        longest = largest_rows(context, task, of_whole_run=True, size_of=size_of)
        whole = batch_shapes(context, inputs, longest)
        plain = simulate(whole, compile_layers="off")
        room = ROOM_SHARE * context.hardware.gpu.memory_total_bytes
        is_compiled = plain is None or plain.total_bytes > room
        budget = plain if shapes == whole and not is_compiled else None
    if budget is None and parts:
        budget = simulate(shapes, compile_layers="on" if is_compiled else "off")
    return Forecast(budget=budget, is_compiled=is_compiled)


def _training_bytes(
    context: RunContext, shape: Any, kernel: str, is_compiled: bool, extent: CausalExtent
) -> int:
    """Return the bytes of a micro-batch by formulas: a supervised token's logits count too."""
    lines = finetune_ledger(
        context.settings,
        context.plan,
        shape,
        precision=context.precision,
        kernel=kernel,
        is_compiled=is_compiled,
        extent=extent,
    )
    return sum(line.size_bytes for line in lines)


def batch_shapes(context: RunContext, inputs: Inputs, parts: list[np.ndarray]) -> dict[str, Any]:
    """Return what decides the memory of micro-batches, of scoring and of generation.

    Returns:
        {vocab, samples, parts, valid, prompts}: words of the model where the tokenizer is made from
        the data, else None; tokens of each sample of the micro-batches, and of its prompt; how many
        samples each has; the same of the held-out samples that are scored at once; tokens of the
        prompts that are answered at once.
    """
    s, is_scored = context.settings, not context.is_probe
    valid, size = inputs.tables.get("valid"), s.per_device_eval_batch_size
    held_out = [] if valid is None or not is_scored else valid.sizes(longest_first(valid)[:size])
    prompts = [
        sorted(lengths, reverse=True)[: s.generation_batch_size]
        for lengths in prompt_lengths(context, inputs).values()
    ]
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return {
        "vocab": len(inputs.tokenizer) if s.model in FINETUNE.models.embedded else None,
        "samples": inputs.tables["train"].sizes(rows),
        "parts": [len(part) for part in parts],
        "valid": held_out,
        "prompts": max(prompts, key=lambda lengths: lengths[0] * len(lengths), default=[]),
    }


def build_model(context: RunContext, inputs: Inputs) -> Adapted:
    """Return the frozen base with fresh adapters, those of a checkpoint, or (`base`) none.

    Raises:
        ConfigError: A model, a target module, an attention or a length that does not do.
        DataError: A checkpoint that does not fit its base.
    """
    s, device = context.settings, context.accelerator.device
    if s.model == "smoke" and device.type == "cpu":
        torch.set_num_threads(1)  # a second thread costs more than it gives on matrices this small
    base = load_base(
        s,
        precision=context.precision,
        device=device,
        quantised=s.method == "qlora",
        tokenizer=inputs.tokenizer,
        report=context.pretraining(),
    )
    asked = s.attention
    if asked == "auto" and not s.has_own_loop:
        asked = generation_kernel(base.model)
    base.facts["attention"] = choose_attention(asked, base.config.model_type, device)
    base.facts["loss"] = "plain" if s.loss == "plain" or not s.has_own_loop else "chunked"
    check_prompts(context, inputs, base.config)
    total = count_parameters(base.model)
    model, check = base.model, None
    if context.checkpoint is not None:
        from nbhelpers.jobs.load import attach

        model, check = attach(base.model, context.checkpoint.parent, base.tokenizer)
    elif s.method != "base":
        if base.facts["attention"] == "flex" and device.type == "cpu":
            text = "attention=flex cannot train on a CPU: PyTorch has no backward pass for it there"
            raise ConfigError(f"{text}.", fix="set attention=auto")
        model = add_adapter(base, s)
    facts = _adapter_facts(s, model, is_found=check is not None)
    facts["total_parameters"] = total + facts["trainable_parameters"]  # as peft counts
    if check is not None:
        facts["check"] = check.to_dict()
    return Adapted(base=base, model=model, facts=facts)


def _adapter_facts(s: FinetuneSettings, model: Any, *, is_found: bool) -> dict[str, Any]:
    """Say what lies on the base; of a checkpoint that was found, what its configuration says."""
    name, method, r, alpha, modules = s.adapter, s.method, s.lora_r, s.alpha, s.lora_target_modules
    if is_found:
        config = model.peft_config[model.active_adapter]
        method = "qlora" if s.method == "qlora" else "lora"
        r, alpha, targets = config.r, float(config.lora_alpha), config.target_modules
        name = f"{'qlora-' if method == 'qlora' else ''}r{r}"
        modules = [targets] if isinstance(targets, str) else sorted(targets)
    has_one = method != "base"
    return {
        "name": name,
        "method": method,
        "r": r if has_one else None,
        "alpha": alpha if has_one else None,
        "target_modules": list(modules) if has_one else [],
        "trainable_parameters": sum(
            p.numel() for n, p in model.named_parameters() if ".lora_" in n
        ),
    }


def train(context: RunContext, inputs: Inputs, model: Adapted) -> Training | None:
    """Train the adapters; the model ends as it is after the last step. `base` trains nothing."""
    if context.settings.method == "base":
        return None
    if not context.settings.has_own_loop:
        from nbhelpers.jobs.finetune_trl import train_trl  # TRL is slow to import

        return train_trl(context, inputs, model)
    return train_adapter(context, inputs, model)


def evaluate(
    context: RunContext, inputs: Inputs, model: Adapted, training: Training | None
) -> None:
    """Generate answers, score them, and write generations and the result."""
    evaluate_all(context, inputs, model, training)
