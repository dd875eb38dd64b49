"""An adapter as a folder for others, base and adapter as one model, and the way to the hub."""

from __future__ import annotations

import gc
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nbhelpers.common.files import write_json
from nbhelpers.common.json_models import read_lines, read_raw
from nbhelpers.common.result_files import ExportFile, Generation, Result
from nbhelpers.data.hub import is_repo_id
from nbhelpers.errors import ConfigError, DataError, RequirementMissed
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import drafts
from nbhelpers.jobs.agreement import (
    MAX_TEXTS,
    Agreement,
    Rows,
    Text,
    agreement,
    distributions,
    prepare,
)
from nbhelpers.jobs.cards import CARD, write_card
from nbhelpers.jobs.generate import continuations, dressed, end_tokens, pad_token
from nbhelpers.jobs.load import Loaded, choose_device, choose_precision, load_trained
from nbhelpers.jobs.public import public_settings, scrub
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.trained import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    FACTS_NAME,
    Trained,
    require_adapter,
)

# ------------------------------------------------------------------------------------------------
# An adapter as a folder for others, with tokenizer and card; and its way to the hub.


# Of a checkpoint, only what a reader of the folder needs: no optimizer, no training state.
TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja", "generation_config.json"),
)
COMMIT_MESSAGE = "Adapter, tokenizer and model card"


def export_adapter(
    trained: Trained,
    *,
    out: Path,
    push_to: str | None = None,
    private: bool = True,
    token: str | None = None,
    api: Any = None,
) -> dict[str, Any]:
    """Write the folder, and push it where a repository is named; return its files and address.

    Args:
        api: In the place of the hub's client; for tests.

    Raises:
        ConfigError: No adapter, `out` holds something else, or the hub refuses.
        DataError: The checkpoint is damaged.
    """
    source = require_adapter(trained, "export")
    if push_to is not None:
        require_push(push_to, token)
    require_place(out, trained.name, kind="adapter")
    if (source / ck.MANIFEST).is_file() and (problem := ck.verify(source)):
        raise DataError(f"The checkpoint is damaged: {problem}.", fix="name another checkpoint")
    part = drafts.require_ours(out.with_name(f"{out.name}.part"))
    drafts.start(part)
    try:
        files = _write(trained, source, part, push_to)
        drafts.open_up(part)
        if out.exists():
            shutil.rmtree(out)  # an earlier export of ours, with no file of anybody else
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    url = push(out, push_to, files, token=token, private=private, api=api) if push_to else None
    return {"files": files, "url": url}


def require_place(out: Path, name: str, *, kind: str) -> None:
    """Refuse a folder with anything but an earlier export of the same run in it.

    Raises:
        ConfigError: It holds something else, or its card was changed since.
    """
    if not out.exists():
        return
    facts = read_raw(ExportFile, out / FACTS_NAME)
    there = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    is_ours = facts.get("kind") == kind and facts.get("name") == name
    foreign = there - {FACTS_NAME, *(facts.get("files") or [])} if is_ours else there
    if not foreign and _card_was_edited(out, facts):
        raise ConfigError(
            f"{out / CARD} was changed since it was written, and would be lost.",
            fix="name another folder, or move the card away first",
        )
    if foreign:
        foreign_names = ", ".join(sorted(foreign)[:8])
        raise ConfigError(
            f"{out} exists and holds what is no export of {name}: {foreign_names}.",
            fix="name another folder, or empty this one",
        )


def _card_was_edited(out: Path, facts: dict[str, Any]) -> bool:
    card, written = out / CARD, facts.get("card_sha256")
    return bool(written) and card.is_file() and digest(card) != written


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(trained: Trained, source: Path, part: Path, push_to: str | None) -> list[str]:
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        shutil.copy2(source / name, part / name)
    for pattern in TOKENIZER_FILES:
        for path in source.glob(pattern):
            shutil.copy2(path, part / path.name)
    scrub(part, trained.settings)
    write_card(part, trained, repo_id=push_to)
    files = sorted(path.name for path in part.iterdir() if path.name != FACTS_NAME)
    facts = {
        "schema": 1,
        "kind": "adapter",
        "name": trained.name,
        "template": trained.template,
        "settings": public_settings(trained.settings),
        "files": files,
        "card_sha256": digest(part / CARD),
    }
    write_json(part / FACTS_NAME, facts)
    return sorted([*files, FACTS_NAME])


def require_push(repo_id: str, token: str | None) -> None:
    """Stop before anything is written where a push cannot work.

    Raises:
        ConfigError: The name is no `owner/name`, or there is no token.
    """
    if not is_repo_id(repo_id):
        raise ConfigError(f"push_to={repo_id!r} is no repository's name.", fix="write OWNER/NAME")
    if not token:
        raise ConfigError(
            f"Pushing to {repo_id} needs a token, and none is set.",
            fix="set HF_TOKEN, as a secret on Colab or Kaggle or in the environment, to a token "
            "that may write",
        )


def push(
    folder: Path,
    repo_id: str,
    files: list[str],
    *,
    token: str | None,
    private: bool,
    api: Any = None,
    message: str = COMMIT_MESSAGE,
) -> str:
    """Upload the named files of a folder as a model repository; return its address.

    Raises:
        ConfigError: The hub cannot be reached or refuses; no message holds the token.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    api = api or hub.HfApi(token=token)
    # The base of the hub's HTTP errors belongs to the HTTP client in use.
    network = (OSError, ValueError, errors.HfHubHTTPError.__mro__[1])
    try:
        url = api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            repo_type="model",
            folder_path=str(folder),
            allow_patterns=files,
            commit_message=message,
        )
    except network as error:
        raise _refused(repo_id, folder, error) from None  # its chain may quote request headers
    return str(url)


def _refused(repo_id: str, folder: Path, error: Exception) -> ConfigError:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    written = f"The folder is written: {folder}."
    if isinstance(error, errors.OfflineModeIsEnabled):
        why, fix = "offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE"
    elif isinstance(error, errors.HFValidationError):
        why, fix = "the hub takes no such name", "write OWNER/NAME"
    elif status in (401, 403):
        why = f"the hub refuses the token (HTTP {status})"
        fix = "use a token that may write to this owner's repositories"
    elif status is not None:
        why, fix = f"the hub answers HTTP {status}", "check owner/name, or try again later"
    else:
        why, fix = f"the hub cannot be reached ({type(error).__name__})", "check the network"
    return ConfigError(f"{repo_id} was not pushed: {why}. {written}", fix=fix)


# ------------------------------------------------------------------------------------------------
# Base and adapter as one model, which counts as good only once it is read back and agrees.


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
Tell = Callable[[str], None]


def merge_adapter(
    trained: Trained, *, out: Path, prompts: Sequence[str] | None, device: str, report: Tell
) -> dict[str, Any]:
    """Merge, write aside, read back, compare, and rename; return the figures.

    Raises:
        ConfigError: `out` holds something else, the disk is too small, or there are no texts.
        DataError: The adapter is damaged or changes nothing.
        RequirementMissed: The merged model does not agree with base and adapter.
    """
    adapter = require_adapter(trained, "merge")
    where = choose_device(device)
    precision = choose_precision(trained.settings, where)
    asked = {"adapter": _digest(adapter / ADAPTER_WEIGHTS), "precision": precision}
    if earlier := _earlier(out, asked):
        return earlier | {"reused": True}
    _require_place(out)
    part = drafts.require_ours(out.with_name(f"{out.name}.part"))
    drafts.require_ours(out.with_name(f"{out.name}.failed"))
    require_disk(out, _expected_bytes(trained, precision))
    report(f"loads the base in {precision}")
    loaded = load_trained(
        trained, device=where, quantised=False, precision=precision, report=report
    )
    texts = _texts(trained, prompts, loaded)
    rows = prepare(
        texts,
        loaded.tokenizer,
        seq_len=trained.settings.seq_len,
        vocabulary=loaded.model.config.vocab_size,
    )
    reference = distributions(loaded.model, rows)
    with loaded.model.disable_adapter():
        effect = agreement(reference, distributions(loaded.model, rows))
    report(f"merges and writes {part}")
    size = _write_merged(loaded, trained.template, part, out)
    del loaded
    _free()
    measured, on_training = _measure(trained, part, rows, reference, where, precision, report)
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
    _finish(trained, part, asked, facts)
    _settle(part, out, measured, facts)
    return facts


def _measure(
    trained: Trained,
    part: Path,
    rows: list[Rows],
    reference: torch.Tensor,
    device: torch.device,
    precision: str,
    report: Tell,
) -> tuple[Agreement, Agreement | None]:
    """Compare the folder, read back, with base and adapter; and with the 4-bit base of QLoRA."""
    report("reads the merged model back and compares")
    update = {"model": str(part), "model_revision": None, "method": "base", "pretrain_steps": 0}
    settings = trained.settings.model_copy(update=update | {"random_weights": False})
    folder = Trained(
        name=part.name, kind="merged", adapter=None, run=None, settings=settings, template=""
    )
    merged = load_trained(folder, device=device, quantised=False, precision=precision)
    theirs = distributions(merged.model, rows)
    del merged
    _free()
    measured, on_training = agreement(reference, theirs), None
    if trained.settings.method == "qlora":
        report("compares with the 4-bit base of the training")
        tuned = load_trained(trained, device=device, quantised=True)
        on_training = agreement(distributions(tuned.model, rows), theirs)
        del tuned
        _free()
    return measured, on_training


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _earlier(out: Path, asked: dict[str, str]) -> dict[str, Any] | None:
    """The figures of the same merge, when its folder is whole."""
    facts = ExportFile.read(out / FACTS_NAME)
    if facts is None or facts.asked != asked or not isinstance(facts.files, dict):
        return None
    files = facts.files.items()
    is_whole = all((out / n).is_file() and (out / n).stat().st_size == s for n, s in files)
    return facts.merge or None if files and is_whole else None


def _require_place(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} exists, and is not this merge.", fix="name another folder, or delete this one"
        )


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


def _write_merged(loaded: Loaded, template: str, part: Path, out: Path) -> int:
    """Fold the adapter into the base and write the folder; returns the bytes of its weights."""
    model = fold(loaded.model)
    require_disk(out, sum(t.numel() * t.element_size() for t in model.parameters()))
    drafts.start(part)
    ends = end_tokens(model, loaded.tokenizer, template)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    model.generation_config.pad_token_id = pad_token(loaded.tokenizer)
    model.config.use_cache = True  # a training switches it off
    try:
        model.save_pretrained(part, max_shard_size=SHARD)
        loaded.tokenizer.save_pretrained(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
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


def _finish(trained: Trained, part: Path, asked: dict[str, str], facts: dict[str, Any]) -> None:
    """Write the card and the facts of the folder, without paths of this machine."""
    from nbhelpers.jobs.cards import write_card

    scrub(part, trained.settings)
    write_card(part, trained, merge=facts)
    there = sorted(path for path in part.iterdir() if path.is_file())
    files = {path.name: path.stat().st_size for path in there if path.name != FACTS_NAME}
    folder_facts = {
        "schema": 1,
        "kind": "merged",
        "run_id": facts["run_id"],
        "template": trained.template,
        "settings": public_settings(trained.settings),
        "asked": asked,
        "merge": facts,
        "files": files,
    }
    write_json(part / FACTS_NAME, folder_facts)
    drafts.open_up(part)


def _settle(part: Path, out: Path, measured: Agreement, facts: dict[str, Any]) -> None:
    """Give the folder its name, or the name of a failure."""
    limits, effect = facts["limits"], facts["adapter_kl"]
    agrees = measured.top1 >= limits["top1"] and measured.kl <= limits["kl"]
    if agrees and measured.kl < effect:  # else rounding has eaten what the adapter does
        if out.exists():
            out.rmdir()  # empty: looked at before
        part.replace(out)
        return
    failed = out.with_name(f"{out.name}.failed")
    shutil.rmtree(failed, ignore_errors=True)
    part.replace(failed)
    raise RequirementMissed(
        f"The merged model does not agree with base and adapter: top-1 {100 * measured.top1:.2f} % "
        f"(limit {100 * limits['top1']:.2f} %), mean KL {measured.kl:.3g} nats (limit "
        f"{limits['kl']:g}; the adapter itself changes {effect:.3g}), on {measured.positions} "
        f"tokens. It lies in {failed}.",
        fix="use the adapter as it is (load, export), or merge on a CPU, where weights are fp32",
    )
