"""Answers of a causal model: batched, left-padded, greedy, handed on as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from nbhelpers.jobs.adapters import require_context
from nbhelpers.models.causal_forward import generating, generation_kernel
from nbhelpers.models.causal_text import prompt_ids


class Answer(NamedTuple):
    """What a model wrote: text without its end, tokens with it, whether it ended by itself."""

    text: str
    new_tokens: int
    stopped: bool


def generate_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    max_new_tokens: int,
    batch_size: int,
    precision: str,
    told: Callable[[int, Answer], None] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Return one greedy answer per prompt, in the order given.

    Longest prompts go first, in batches of like length, so that a run that does not fit fails at
    once. Rows are padded on the left: an answer begins right behind its prompt.

    Args:
        model: In evaluation mode, on its device; with adapters or without.
        stop_ids: Tokens that end an answer.
        precision: bf16, fp16 or fp32; adapters in fp32 need autocast beside a 16-bit base.
        told: Called with (number of the prompt, answer) as soon as it is there.
        report: Called with (done, total); may raise to stop.

    Raises:
        ConfigError: Prompt and answer exceed the model's positions.
    """
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    encoded = prompt_ids(tokenizer, prompts)
    require_context(max(map(len, encoded), default=0), max_new_tokens, bare.config)
    order = sorted(range(len(encoded)), key=lambda i: (-len(encoded[i]), i))
    answers: list[Answer | None] = [None] * len(encoded)
    device, done = next(model.parameters()).device, 0
    with _numbers(device, precision), for_generation(bare):
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            made = _batch(
                model,
                [encoded[i] for i in part],
                stop_ids=stop_ids,
                pad_id=pad_id,
                max_new_tokens=max_new_tokens,
                device=device,
            )
            for number, tokens in zip(part, made, strict=True):
                answers[number] = answer = _answer(tokenizer, tokens, stop_ids)
                if told is not None:
                    told(number, answer)
            done += len(part)
            if report is not None:
                report(done, len(order))
    return [answer for answer in answers if answer is not None]


def _numbers(device: torch.device, precision: str) -> Any:
    if precision == "fp32":
        return nullcontext()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(device.type, dtype=dtype)


@contextmanager
def for_generation(bare: Any) -> Iterator[None]:
    """Generate with a kernel that works with a cache, and with no default of the model's own.

    A model may come with sampling, beams, penalties or a least length; greedy is what scores name.
    """
    from transformers import GenerationConfig

    before, bare.generation_config = bare.generation_config, GenerationConfig()
    try:
        with generating(bare, generation_kernel(bare.config.model_type)):
            yield
    finally:
        bare.generation_config = before


@torch.inference_mode()
def _batch(
    model: Any,
    prompts: list[list[int]],
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    max_new_tokens: int,
    device: torch.device,
) -> list[list[int]]:
    """Return the new tokens of each prompt, padding behind the end included."""
    width = max(len(ids) for ids in prompts)
    ids = torch.full((len(prompts), width), pad_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    out = model.generate(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=True,
        eos_token_id=list(stop_ids),
        pad_token_id=pad_id,
    )
    return [row.tolist() for row in out[:, width:].cpu()]


def _answer(tokenizer: Any, tokens: list[int], stop_ids: Sequence[int]) -> Answer:
    ends = [at for at, token in enumerate(tokens) if token in stop_ids]
    stopped = bool(ends)
    written = tokens[: ends[0]] if stopped else tokens
    text = tokenizer.decode(written, skip_special_tokens=True)
    return Answer(text=text, new_tokens=len(written) + stopped, stopped=stopped)
