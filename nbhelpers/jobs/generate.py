"""Answers of a causal model: batched, left-padded, greedy, handed on as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from nbhelpers.data.templates import Row, render, resolve_template
from nbhelpers.jobs.load import Loaded, require_context
from nbhelpers.jobs.models.causal_batches import pad_token, prompt_ids, stop_tokens
from nbhelpers.jobs.models.causal_forward import generating, generation_kernel


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
    how = _decoding(stop_ids, pad_id, max_new_tokens)
    with _numbers(device, precision), for_generation(bare):
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            batch_tokens = _new_tokens(model, [encoded[i] for i in part], how)
            for number, tokens in zip(part, batch_tokens, strict=True):
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
        with generating(bare, generation_kernel(bare)):
            yield
    finally:
        bare.generation_config = before


@torch.inference_mode()
def _new_tokens(
    model: Any,
    prompts: list[list[int]],
    how: Any,
    *,
    stop: Callable[..., torch.Tensor] | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, padding behind the end included.

    Args:
        how: See `_decoding`.
        stop: Asked at each token which rows end, (batch,) bool.
    """
    from transformers import StoppingCriteriaList

    width, device = max(map(len, prompts)), next(model.parameters()).device
    rows = [[how.pad_token_id] * (width - len(ids)) + ids for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]  # 1: a token, 0: padding
    sequences = model.generate(  # (batch, prompt and new tokens)
        input_ids=torch.tensor(rows, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=how,
        stopping_criteria=StoppingCriteriaList([stop] if stop else []),
    )
    return sequences[:, width:].tolist()


def _decoding(stop_ids: Sequence[int], pad_id: int, limit: int, temperature: float = 0.0) -> Any:
    """Return greedy decoding at temperature 0, else sampling from the whole distribution."""
    from transformers import GenerationConfig

    plain = {"max_new_tokens": limit, "num_beams": 1, "use_cache": True}
    plain |= {"eos_token_id": list(stop_ids), "pad_token_id": pad_id}
    if temperature == 0:
        return GenerationConfig(do_sample=False, **plain)
    return GenerationConfig(do_sample=True, temperature=temperature, top_k=0, top_p=1.0, **plain)


def _answer(tokenizer: Any, tokens: list[int], stop_ids: Sequence[int]) -> Answer:
    ends = [at for at, token in enumerate(tokens) if token in stop_ids]
    stopped = bool(ends)
    written = tokens[: ends[0]] if stopped else tokens
    text = tokenizer.decode(written, skip_special_tokens=True)
    return Answer(text=text, new_tokens=len(written) + stopped, stopped=stopped)


def dressed(prompt: str, template: str, tokenizer: Any, system: str = "") -> str:
    """Return an instruction, below a system text if any, in the template's form; `none` is no form.

    Raises:
        ConfigError: There is no such template, or the tokenizer has none for `chat`.
    """
    row = Row("instruction", "", prompt)
    if system:
        row = Row("chat", "", turns=(("system", system), ("user", prompt)))
    return render(row, resolve_template(template, row.form, tokenizer), tokenizer)[0]


def continuations(
    loaded: Loaded,
    texts: list[str],
    *,
    template: str,
    limit: int,
    temperature: float = 0.0,
    stop: Callable[..., torch.Tensor] | None = None,
) -> list[str]:
    """Return what a model writes after each text, generated as one batch, padded on the left.

    Raises:
        ConfigError: A text is too long.
    """
    tokenizer, model = loaded.tokenizer, loaded.model
    prompts = prompt_ids(tokenizer, texts)
    require_context(max(map(len, prompts)), limit, model.config)
    ends = end_tokens(model, tokenizer, template)
    how = _decoding(ends, pad_token(tokenizer), limit, temperature)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    with for_generation(bare):
        sequences = _new_tokens(model, prompts, how, stop=stop)
    return tokenizer.batch_decode(sequences, skip_special_tokens=True)


def end_tokens(model: Any, tokenizer: Any, template: str) -> list[int]:
    """Return the ids that end an answer: the training's and the model's own."""
    own = model.generation_config.eos_token_id
    ids = [*stop_tokens(tokenizer, template), *(own if isinstance(own, list) else [own])]
    return list(dict.fromkeys(int(token) for token in ids if token is not None))
