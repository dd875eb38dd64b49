"""Base and adapter as one model, which counts as good only once it is read back and agrees."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nbhelpers.common.json_models import read_lines, read_raw
from nbhelpers.common.result_files import ExportFile, Generation, Result
from nbhelpers.errors import ConfigError, DataError, RequirementMissed
from nbhelpers.jobs.agreement import (
    MAX_TEXTS,
    Agreement,
    Rows,
    Text,
    agreement,
    distributions,
    prepare,
)
from nbhelpers.jobs.cards import CARD, adapter_card
from nbhelpers.jobs.export import draft, push, require_ours, require_push, sign
from nbhelpers.jobs.generate import continuations, dressed, end_tokens
from nbhelpers.jobs.load import Loaded, choose_device, choose_precision, load_trained
from nbhelpers.jobs.models.causal_batches import pad_token
from nbhelpers.jobs.public import public_settings, scrub
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.facts import file_sha256
from nbhelpers.use.trained import ADAPTER_WEIGHTS, FACTS_NAME, Trained, require_adapter

# Lowest top-1 agreement and highest mean KL (nats) of a merge, by the precision of its weights.
# Source: SmolLM2-135M, r = 16, an update of 2 % of each weight's norm, 869 tokens of code. fp32:
# 100 %, 3e-8; fp16: 100 %, 3e-5; bf16: 97.5 %, 1.7e-3, where bf16 alone, without a merge, is
# 98.3 % and 1.1e-3 away from fp32.
LIMITS = {
    "fp32": {"top1": 0.999, "kl": 1e-4},
    "fp16": {"top1": 0.99, "kl": 5e-4},
    "bf16": {"top1": 0.95, "kl": 5e-3},
}
BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2}
DISK_MARGIN = 1.03  # tokenizer, card, headers
SHARD = "2GB"
ANSWER_TOKENS = 48  # of an answer to a prompt that has no reference
Report = Callable[[str], None]


def merge_adapter(
    trained: Trained,
    *,
    out: Path,
    prompts: Sequence[str] | None,
    device: str,
    report: Report,
    push_to: str | None = None,
    private: bool = True,
    token: str | None = None,
) -> dict[str, Any]:
    """Merge, write aside, read back, compare, rename, and push it where a repository is named.

    Returns:
        The figures, and `url` (None where nothing was pushed).

    Raises:
        ConfigError: `out` holds something else, the disk is too small, there are no texts, or the
            hub refuses.
        DataError: The adapter is damaged or changes nothing.
        RequirementMissed: The merged model does not agree with base and adapter.
    """
    if push_to is not None:
        require_push(push_to, token)
    facts = _merge(trained, out=out, prompts=prompts, device=device, report=report, place=push_to)
    url = None
    if push_to is not None:
        report(f"pushes to {push_to}")
        files = [*read_raw(ExportFile, out / FACTS_NAME)["files"], FACTS_NAME]
        message = "Merged model, tokenizer and model card"
        url = push(out, push_to, files, token=token, private=private, message=message)
    return facts | {"url": url}


def _merge(
    trained: Trained,
    *,
    out: Path,
    prompts: Sequence[str] | None,
    device: str,
    report: Report,
    place: str | None,
) -> dict[str, Any]:
    adapter = require_adapter(trained, "merge")
    where = choose_device(device)
    precision = choose_precision(trained.settings, where)
    asked = {"adapter": file_sha256(adapter / ADAPTER_WEIGHTS), "precision": precision}
    if earlier := _earlier(out, asked):
        return earlier | {"reused": True}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} exists, and is not this merge.", fix="name another folder, or delete this one"
        )
    failed = require_ours(out.with_name(f"{out.name}.failed"))
    require_disk(out, _expected_bytes(trained, precision))
    report(f"loads the base in {precision}")
    loaded = load_trained(
        trained, device=where, quantised=False, precision=precision, report=report
    )
    rows = prepare(
        _texts(trained, prompts, loaded),
        loaded.tokenizer,
        seq_len=trained.settings.seq_len,
        vocabulary=loaded.model.config.vocab_size,
    )
    reference = distributions(loaded.model, rows)
    with loaded.model.disable_adapter():
        effect = agreement(reference, distributions(loaded.model, rows))
    with draft(out) as part:
        report(f"merges and writes {part}")
        size = _write_merged(loaded, trained.template, part)
        del loaded
        _free()
        report("reads the merged model back and compares")
        merged = _distributions_of(_as_model(trained, part), rows, where, precision=precision)
        measured, on_training = agreement(reference, merged), None
        if trained.settings.method == "qlora":
            report("compares with the 4-bit base of the training")
            on_training = agreement(_distributions_of(trained, rows, where, quantised=True), merged)
        facts = {
            "run_id": trained.run.name if trained.run else trained.name,
            "adapter": trained.settings.adapter,
            "precision": precision,
            "size_bytes": size,
            **asdict(measured),
            "adapter_kl": effect.kl,
            "samples": len(rows),
            "held_out": prompts is None,
            "limits": LIMITS[precision],
            "training_base": asdict(on_training) if on_training else None,
            "reused": False,
        }
        _describe(trained, part, asked, facts, place)
        require_agreement(measured, facts, part, failed)
    return facts


def _as_model(trained: Trained, folder: Path) -> Trained:
    """The merged folder as a base without an adapter."""
    update = {"model": str(folder), "model_revision": None, "method": "base", "pretrain_steps": 0}
    settings = trained.settings.model_copy(update=update | {"random_weights": False})
    kind = {"kind": "merged", "adapter": None, "run": None, "template": ""}
    return Trained(name=folder.name, settings=settings, **kind)


def _distributions_of(
    trained: Trained,
    rows: list[Rows],
    device: torch.device,
    *,
    precision: str | None = None,
    quantised: bool = False,
) -> torch.Tensor:
    """Load a model, return its distributions, and give its memory back."""
    loaded = load_trained(trained, device=device, quantised=quantised, precision=precision)
    log_probabilities = distributions(loaded.model, rows)
    del loaded
    _free()
    return log_probabilities


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _earlier(out: Path, asked: dict[str, str]) -> dict[str, Any] | None:
    """The figures of the same merge, when its folder is whole."""
    facts = ExportFile.read(out / FACTS_NAME)
    if facts is None or facts.asked != asked or not isinstance(facts.files, dict):
        return None
    files = facts.files.items()
    is_whole = all((out / n).is_file() and (out / n).stat().st_size == s for n, s in files)
    return facts.merge or None if files and is_whole else None


def _expected_bytes(trained: Trained, precision: str) -> int:
    """Size of the merged weights as the run's result tells the parameters; 0 when unknown."""
    result = Result.read(trained.run / RESULT_NAME) if trained.run else None
    return int(result.model.parameters or 0) * BYTES_OF[precision] if result else 0


def require_disk(out: Path, need_bytes: int) -> None:
    """Stop where the disk cannot hold so many bytes more.

    Raises:
        ConfigError: It cannot; names the sizes.
    """
    place = next(p for p in (out, *out.parents) if p.is_dir())
    free, need = shutil.disk_usage(place).free, int(need_bytes * DISK_MARGIN)
    if free < need:
        raise ConfigError(
            f"The merged model needs {need / 2**30:.1f} GiB of disk at {place}; "
            f"{free / 2**30:.1f} GiB are free.",
            fix="free space, or name a folder on another disk",
        )


def _texts(trained: Trained, prompts: Sequence[str] | None, loaded: Loaded) -> list[Text]:
    if prompts is not None:
        dressed_prompts = [
            dressed(text, trained.template, loaded.tokenizer) for text in prompts[:MAX_TEXTS]
        ]
        how = {"template": trained.template, "limit": ANSWER_TOKENS}
        answers = continuations(loaded, dressed_prompts, **how)
        texts = [Text(*pair) for pair in zip(dressed_prompts, answers, strict=True)]
    else:
        texts = _generated(trained) or _held_out(trained, loaded.tokenizer)
    if not texts:
        raise ConfigError(
            f"There are no texts to measure the merge of {trained.name} on.",
            fix="give prompts=[...]: some instructions like those that it will be asked",
        )
    return texts


def _generated(trained: Trained) -> list[Text]:
    """Prompts and references of the run's own evaluation."""
    if trained.run is None:
        return []
    rows = read_lines(Generation, trained.run / "generations.jsonl")
    of_test = (row for row in rows if row["split"] == "test")
    texts = (Text(row["prompt"], row.get("reference") or row["answer"]) for row in of_test)
    return list(islice(texts, MAX_TEXTS))


def _held_out(trained: Trained, tokenizer: Any) -> list[Text]:
    """Test samples of the run's data, for a run that evaluated nothing."""
    if trained.run is None:
        return []
    from nbhelpers.data.instructions import load_instructions

    s = trained.settings
    names = ("train_fraction", "max_train_samples", "valid_samples", "eval_samples", "split_seed")
    names += ("seed", "remove_duplicates", "on_bad_rows", "template")
    options = {name: getattr(s, name) for name in names}
    data = load_instructions(s.data, revision=s.data_revision, tokenizer=tokenizer, **options)
    return [Text(sample.prompt, sample.completion) for sample in data.splits["test"][:MAX_TEXTS]]


def _write_merged(loaded: Loaded, template: str, part: Path) -> int:
    """Fold the adapter into the base and write the folder; returns the bytes of its weights."""
    model = fold(loaded.model)
    require_disk(part, sum(t.numel() * t.element_size() for t in model.parameters()))
    ends = end_tokens(model, loaded.tokenizer, template)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    model.generation_config.pad_token_id = pad_token(loaded.tokenizer)
    model.config.use_cache = True  # a training switches it off
    model.save_pretrained(part, max_shard_size=SHARD)
    loaded.tokenizer.save_pretrained(part)
    return sum(path.stat().st_size for path in part.glob("*.safetensors"))


def fold(model: Any) -> Any:
    """Return the base with the adapter added to its weights.

    peft adds in place: the fp32 product of A and B meets the 16-bit weight before the sum is
    rounded, once. Its `safe_merge` would round the product first.

    Raises:
        DataError: A merged weight is NaN or infinite, which fp16 can make.
    """
    merged = model.merge_and_unload(safe_merge=False)
    wrong = [n for n, t in merged.named_parameters() if not bool(torch.isfinite(t).all())]
    if wrong:
        raise DataError(
            f"Merging made {len(wrong)} weights NaN or infinite, {wrong[0]} first.",
            fix="use an earlier checkpoint, or merge on a CPU, where the weights are fp32",
        )
    return merged


def _describe(
    trained: Trained, part: Path, asked: dict[str, str], facts: dict[str, Any], place: str | None
) -> None:
    """Write the card and the facts of the folder, without paths of this machine."""
    scrub(part)
    result = read_raw(Result, trained.run / RESULT_NAME) if trained.run else {}
    card = adapter_card(trained, result, repo_id=place, merge=facts)
    (part / CARD).write_text(card, encoding="utf-8")
    sign(
        part,
        "merged",
        run_id=facts["run_id"],
        template=trained.template,
        settings=public_settings(trained.settings.model_dump(mode="json")),
        asked=asked,
        merge=facts,
    )


def require_agreement(measured: Agreement, facts: dict[str, Any], part: Path, failed: Path) -> None:
    """Keep a merged folder under the name of a failure where it does not answer as it should.

    Raises:
        RequirementMissed: It does not.
    """
    limits, effect = facts["limits"], facts["adapter_kl"]
    agrees = measured.top1 >= limits["top1"] and measured.kl <= limits["kl"]
    if agrees and measured.kl < effect:  # else rounding has eaten what the adapter does
        return
    shutil.rmtree(failed, ignore_errors=True)
    part.replace(failed)
    raise RequirementMissed(
        f"The merged model does not agree with base and adapter: top-1 {100 * measured.top1:.2f} % "
        f"(limit {100 * limits['top1']:.2f} %), mean KL {measured.kl:.3g} nats (limit "
        f"{limits['kl']:g}; the adapter itself changes {effect:.3g}), on {measured.positions} "
        f"tokens. It lies in {failed}.",
        fix="use the adapter as it is (load, export), or merge on a CPU, where weights are fp32",
    )
