"""What the process that holds a model can do: load, ask, compare, merge, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.data.templates import render_question, resolve_template
from nbhelpers.errors import ConfigError, Stopped
from nbhelpers.jobs.adapters import Loaded, choose_device, load_trained, require_context, set_token
from nbhelpers.jobs.generate import for_generation
from nbhelpers.models.causal_text import prompt_ids, stop_tokens
from nbhelpers.trained import RAW, Trained

if TYPE_CHECKING:
    from nbhelpers.jobs.serve import Line


def operations(line: Line) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the operations of one process by name; `load` comes before `ask` and `compare`."""
    held: dict[str, Served] = {}

    def load(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
        held["model"] = Served(line, Trained.from_dict(trained), **options)
        return held["model"].loaded.to_dict()

    def ask(**options: Any) -> dict[str, Any]:
        return {"answers": held["model"].ask(**options)}

    def compare(**options: Any) -> dict[str, Any]:
        return held["model"].compare(**options)

    return {"load": load, "ask": ask, "compare": compare, "merge": _merge(line), "export": _export}


def _merge(line: Line) -> Callable[..., dict[str, Any]]:
    def merge(trained: dict[str, Any], token: str | None, **options: Any) -> dict[str, Any]:
        from nbhelpers.jobs.merge import merge_adapter

        set_token(token)
        given = Trained.from_dict(trained)
        options["out"] = Path(options["out"])
        return merge_adapter(given, report=line.report, **options)

    return merge


def _export(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
    from nbhelpers.jobs.export import export_adapter

    options["out"] = Path(options["out"])
    return export_adapter(Trained.from_dict(trained), **options)


class Served:
    """One loaded model and how it is asked."""

    def __init__(
        self, line: Line, trained: Trained, *, adapter: bool, device: str, token: str | None
    ) -> None:
        """Load it; takes as long as reading the weights does."""
        set_token(token)
        self.line, self.trained = line, trained
        self.loaded: Loaded = load_trained(
            trained,
            device=choose_device(device),
            quantised=trained.settings.method == "qlora",
            with_adapter=adapter,
            report=line.report,
        )

    def ask(
        self,
        prompts: list[str],
        *,
        max_new_tokens: int | None,
        temperature: float,
        seed: int | None,
        raw: bool,
    ) -> list[str]:
        """Return an answer to each prompt.

        Raises:
            Stopped: It was cancelled.
            ConfigError: A prompt is too long.
        """
        limit = max_new_tokens or self.trained.settings.max_new_tokens
        template = self.trained.template
        how = RAW if raw else template
        texts = [dressed(prompt, how, self.loaded.tokenizer) for prompt in prompts]
        if seed is not None:
            torch.manual_seed(seed)
        size, answers = self.trained.settings.generation_batch_size, []
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            answers += continuations(
                self.loaded,
                batch,
                template=template,
                limit=limit,
                temperature=temperature,
                stop=self._stop,
            )
            if self.line.is_cancelled():
                raise Stopped("The answer was stopped.", fix="ask again")
        return answers

    def compare(self, **options: Any) -> dict[str, Any]:
        """Return the answers of the base and of the tuned model.

        Raises:
            ConfigError: No adapter is loaded.
        """
        if self.loaded.check is None:
            raise ConfigError(
                f"{self.trained.name} was loaded without an adapter: there is nothing to compare.",
                fix="load a run of method=lora or qlora, with adapter=True",
            )
        with self.loaded.model.disable_adapter():
            base = self.ask(**options)
        return {"base": base, "tuned": self.ask(**options)}

    def _stop(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Say for each row that it ends, once the request is cancelled."""
        return torch.full((len(ids),), self.line.is_cancelled(), device=ids.device)


def dressed(prompt: str, template: str, tokenizer: Any) -> str:
    """Return an instruction in the template's form; `none` is no form.

    Raises:
        ConfigError: There is no such template, or the tokenizer has none for `chat`.
    """
    used = resolve_template(template, "instruction", tokenizer)
    return render_question(prompt, "", used, tokenizer)


@torch.inference_mode()
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
    from transformers import StoppingCriteriaList

    tokenizer, model = loaded.tokenizer, loaded.model
    prompts = prompt_ids(tokenizer, texts)
    width, pad = max(map(len, prompts)), pad_token(tokenizer)
    require_context(width, limit, model.config)
    rows = [[pad] * (width - len(ids)) + ids for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    how = decoding(model, tokenizer, template, limit, temperature)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    with for_generation(bare):
        made = model.generate(  # (batch, prompt and new tokens)
            input_ids=torch.tensor(rows, device=loaded.device),
            attention_mask=torch.tensor(mask, device=loaded.device),  # 1: a token, 0: padding
            generation_config=how,
            stopping_criteria=StoppingCriteriaList([stop] if stop else []),
        )
    return tokenizer.batch_decode(made[:, width:].tolist(), skip_special_tokens=True)


def pad_token(tokenizer: Any) -> int:
    """Return the id that fills rows; never told from an end token by its number."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def end_tokens(model: Any, tokenizer: Any, template: str) -> list[int]:
    """Return the ids that end an answer: the training's and the model's own."""
    own = model.generation_config.eos_token_id
    found = [*stop_tokens(tokenizer, template), *(own if isinstance(own, list) else [own])]
    return list(dict.fromkeys(int(token) for token in found if token is not None))


def decoding(model: Any, tokenizer: Any, template: str, limit: int, temperature: float) -> Any:
    """Return greedy decoding at temperature 0, else sampling from the whole distribution."""
    from transformers import GenerationConfig

    plain = {"max_new_tokens": limit, "num_beams": 1, "use_cache": True}
    plain |= {"eos_token_id": end_tokens(model, tokenizer, template)}
    plain |= {"pad_token_id": pad_token(tokenizer)}
    if temperature == 0:
        return GenerationConfig(do_sample=False, **plain)
    return GenerationConfig(do_sample=True, temperature=temperature, top_k=0, top_p=1.0, **plain)
