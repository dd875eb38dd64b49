"""What was trained as a folder for others, with tokenizer and card; and its way to the hub.

A folder is written aside and gets its name when it is whole; else nothing is left behind. Nothing
in it is pickled, and no path of this machine stands in it. A further kind of folder is one more
`Exporter` and a template for its card.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.common.files import is_file, read_json, write_json
from nbhelpers.common.hub_errors import explain_push, network_errors
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import DetectorFile, ExportFile, Record, Result
from nbhelpers.data.hub import is_repo_id
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import agreement
from nbhelpers.jobs.cards import CARD, adapter_card, clones_card, detector_card
from nbhelpers.jobs.load import (
    WEIGHTS,
    LoadedClones,
    LoadedDetector,
    load_clones,
    load_detector,
    require_whole,
)
from nbhelpers.jobs.open_forms import (
    ENCODER,
    MODELING,
    Opened,
    encoder_states,
    pair_scores,
    sentence_vectors,
    whole_scores,
    write_forms,
)
from nbhelpers.jobs.outcome import library_versions
from nbhelpers.jobs.public import (
    is_public,
    public_result,
    public_settings,
    scrub,
    without_paths,
)
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.calibrate import load_calibration
from nbhelpers.use.facts import CALIBRATION, file_sha256
from nbhelpers.use.trained import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CLONES_FILE,
    FACTS_FILE,
    FACTS_NAME,
    AnyTrained,
    Trained,
    TrainedClones,
    TrainedDetector,
    require_adapter,
)

# Of a checkpoint, only what a reader of the folder needs: no optimizer, no training state.
TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja", "generation_config.json"),
)
BATCH_SIZE = 8
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a folder is written for: `onnx`, a graph too; `repo_id`, its name on the hub."""

    onnx: bool
    repo_id: str | None
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """What differs between the kinds of folders.

    `write` fills an empty folder and returns what `nbhelpers.json` tells of it beside its files.
    """

    kind: str
    contents: str
    write: Callable[[Any, Path, Options], dict[str, Any]]


def export_folder(
    trained: AnyTrained,
    *,
    out: Path,
    onnx: bool = False,
    push_to: str | None = None,
    private: bool = True,
    token: str | None = None,
    api: Any = None,
    report: Report = lambda text: None,
) -> dict[str, Any]:
    """Write the folder, measure it, and push it where a repository is named.

    Args:
        onnx: Also write a detector's `model.onnx` and a program that uses it without torch.
        api: In the place of the hub's client; for tests.
        report: Called with a line of text at each step.

    Returns:
        `files`, `url` (None where nothing was pushed), and what `nbhelpers.json` tells.

    Raises:
        ConfigError: No adapter, `out` holds something else, a package is missing, or the hub
            refuses.
        DataError: The checkpoint is damaged.
        RequirementMissed: A detector's folder does not agree with the trained model.
    """
    exporter = EXPORTERS[trained.job]
    if isinstance(trained, Trained):
        require_adapter(trained, "export")
    if push_to is not None:
        require_push(push_to, token)
    if onnx:
        from nbhelpers.jobs.onnx import require_onnx

        require_onnx()
    require_place(out, trained.name, kind=exporter.kind)
    with draft(out) as part:
        options = Options(onnx=onnx, repo_id=push_to, report=report)
        facts = exporter.write(trained, part, options)
        files = sign(part, exporter.kind, name=trained.name, **facts)
    url = None
    if push_to is not None:
        message = f"{exporter.contents} and model card"
        options = {"token": token, "private": private, "api": api, "message": message}
        url = push(out, push_to, files, **options)
    return {"files": files, "url": url, "kind": exporter.kind, **facts}


# ------------------------------------------------------------------------------------------------
# A folder written aside, and what it tells about itself.


def require_place(out: Path, name: str, *, kind: str) -> None:
    """Refuse a folder with anything but an earlier export of the same run in it.

    Raises:
        ConfigError: It holds something else, or its card was changed since.
    """
    if not out.exists():
        return
    facts = read_raw(ExportFile, out / FACTS_NAME)
    names = set(_sizes(out)) if out.is_dir() else {out.name}
    is_ours = facts.get("kind") == kind and facts.get("name") == name
    foreign = names - {FACTS_NAME, *(facts.get("files") or [])} if is_ours else names
    if foreign:
        listed = ", ".join(sorted(foreign)[:8])
        raise ConfigError(
            f"{out} exists and holds what is no export of {name}: {listed}.",
            fix="name another folder, or empty this one",
        )
    card, written = out / CARD, facts.get("card_sha256")
    if written and card.is_file() and file_sha256(card) != written:
        raise ConfigError(
            f"{card} was changed since it was written, and would be lost.",
            fix="name another folder, or move the card away first",
        )


def require_ours(folder: Path) -> Path:
    """Return a folder that may be replaced: nothing lies there, or what this package wrote.

    Raises:
        ConfigError: Something else lies there.
    """
    if folder.exists() and not (folder / FACTS_NAME).is_file():
        raise ConfigError(
            f"{folder} is needed for a while, and something else lies there.",
            fix=f"move {folder.name} away, or name another folder to write",
        )
    return folder


@contextmanager
def draft(out: Path) -> Iterator[Path]:
    """Give an empty folder `<out>.part` that becomes `out` at a good end, and else is removed.

    An earlier folder at `out` is replaced: what may be replaced is asked before.

    Raises:
        ConfigError: Something of somebody else is called `<out>.part`.
    """
    part = require_ours(out.with_name(f"{out.name}.part"))
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_json(part / FACTS_NAME, {"schema": 1, "kind": "draft"})
    try:
        yield part
        mode = (part / FACTS_NAME).stat().st_mode & 0o666
        for name in _sizes(part):  # safetensors 0.8 makes its files readable for the owner alone
            (part / name).chmod(mode)
        shutil.rmtree(out, ignore_errors=True)
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def sign(part: Path, kind: str, **facts: Any) -> list[str]:
    """Write `nbhelpers.json`, what a folder tells about itself; return the names of its files."""
    sizes = _sizes(part)
    sizes.pop(FACTS_NAME, None)
    card = file_sha256(part / CARD)
    write_json(
        part / FACTS_NAME, {"schema": 1, "kind": kind, **facts, "files": sizes, "card_sha256": card}
    )
    return sorted([*sizes, FACTS_NAME])


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file by its path below the folder."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): path.lstat().st_size for path in files}


def _copy(source: Path, part: Path, *patterns: str) -> None:
    for pattern in (*patterns, *TOKENIZER_FILES):
        for path in source.glob(pattern):
            shutil.copy2(path, part / path.name)


# ------------------------------------------------------------------------------------------------
# An adapter.


def _write_adapter(trained: Trained, part: Path, options: Options) -> dict[str, Any]:
    source, settings = require_adapter(trained, "export"), trained.settings
    require_whole(source)
    _copy(source, part, ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    scrub(part, settings.model, settings.model_revision)
    result = read_raw(Result, trained.run / RESULT_NAME) if trained.run else {}
    card = adapter_card(trained, result, repo_id=options.repo_id)
    (part / CARD).write_text(card, encoding="utf-8")
    published = public_settings(settings.model_dump(mode="json"))
    return {"template": trained.template, "settings": published}


# ------------------------------------------------------------------------------------------------
# A detector: kept only if it agrees with the trained model on programs.


def _write_detector(trained: TrainedDetector, part: Path, options: Options) -> dict[str, Any]:
    require_whole(trained.folder)
    result = _detector_result(trained)
    _copy_detector(trained, part, result)
    options.report("reading both back and comparing them")
    record = Record.read(trained.run / "run.json") if trained.run else None
    settings = record.preset.settings if record else {}
    codes = agreement.find_programs()
    expected = load_detector(trained.folder).score(codes, batch_size=BATCH_SIZE)
    member = _member(result)
    opened = write_forms(load_detector(part), part, member=member)
    copy = load_detector(part)
    forms = {"safetensors": copy.score(codes, batch_size=BATCH_SIZE)}
    forms |= {MODELING: whole_scores(part, copy, codes)}
    if "sentence-transformers" in opened.forms:
        forms["sentence-transformers"] = expected[0], sentence_vectors(part, copy.texts(codes)[0])
    has_vectors = copy.model.projector is not None
    agreements = [
        _agreement(
            form,
            expected if form == "safetensors" or has_vectors else (expected[0], scores[1]),
            scores,
            len(codes),
        )
        for form, scores in forms.items()
    ]
    agreements += _encoder_agreement(opened, part, copy, codes)
    parameters = sum(parameter.numel() for parameter in copy.model.parameters())
    if options.onnx:
        options.report("writing the graph")
        agreements.append(_write_onnx(copy, part, codes, expected))
    facts = {
        "name": trained.name,
        "repo_id": options.repo_id,
        "settings": public_settings(settings),
        "detector": read_raw(DetectorFile, part / FACTS_FILE),
        "point": result.get("operating_point"),
        "calibration": read_json(part / CALIBRATION),
        "parameters": parameters,
        "agreement": agreements,
        "programs": agreement.ORIGIN,
        "onnx": options.onnx,
        "forms": opened.forms,
        "left_out": opened.left_out,
        "member": member,
        "versions": library_versions(*(("onnx", "onnxruntime") if options.onnx else ())),
    }
    (part / CARD).write_text(detector_card(result, facts), encoding="utf-8")
    return _told(opened, agreements, member)


def _told(opened: Opened, agreements: list[dict[str, Any]], member: str = "") -> dict[str, Any]:
    """What `nbhelpers.json` tells: how the folder can be opened, and how equal that is."""
    facts = {"agreement": agreements, "programs": agreement.ORIGIN}
    facts |= {"opened_by": list(opened.forms), "left_out": opened.left_out}
    return facts | ({"member": member} if member else {})


def _member(result: dict[str, Any]) -> str:
    """Return which member of a run's score its model is; "" where its logits are the score."""
    uses = (result.get("score") or {}).get("uses")
    return "" if uses in (None, "", "encoder") else "encoder"


def _agreement(
    form: str, expected: agreement.Scores, scores: agreement.Scores, programs: int
) -> dict[str, Any]:
    """Return how equal a form is; the same weights through our code may differ least."""
    limit = agreement.RELOAD_LIMIT if form == "safetensors" else agreement.FORM_LIMIT
    batches = -(-programs // BATCH_SIZE)
    pairs = [(expected, scores)]
    return agreement.compare_scores(form, pairs, programs=programs, limit=limit, batches=batches)


def _encoder_agreement(
    opened: Opened, part: Path, copy: LoadedDetector | LoadedClones, codes: list[str]
) -> list[dict[str, Any]]:
    if ENCODER not in opened.forms:
        return []
    ours, theirs = encoder_states(part, copy, codes)
    nothing = np.full(1, np.nan)
    return [_agreement(ENCODER, (nothing, ours), (nothing, theirs), len(codes))]


def _detector_result(trained: TrainedDetector | TrainedClones) -> dict[str, Any]:
    """What may be told of `result.json`: of the run, or of a folder that was exported before."""
    for folder in (trained.scored, trained.folder):
        if folder is not None and (result := read_raw(Result, folder / RESULT_NAME)):
            return public_result(result)
    return {}


def _copy_detector(trained: TrainedDetector, part: Path, result: dict[str, Any]) -> None:
    """Write weights, configuration, tokenizer and what is known of the model."""
    source = trained.folder
    _copy(source, part, WEIGHTS, "config.json")  # a calibration names the weights' hash
    if trained.stack is not None:
        _copy(trained.stack.parent, part, trained.stack.name)
    scrub(part)
    facts = read_raw(DetectorFile, source / FACTS_FILE)
    facts |= {"run_id": result.get("run_id") or facts.get("run_id") or trained.name}
    facts |= {"operating_point": result.get("operating_point")}
    facts |= {"calibration": _copy_calibration(trained, part)}
    write_json(part / FACTS_FILE, without_paths(facts))
    if result:
        Result.write(part / RESULT_NAME, result)


def _copy_calibration(trained: TrainedDetector, part: Path) -> dict[str, Any] | None:
    """Write the calibration of a run beside its model, where there is one; return it."""
    home = trained.scored or trained.folder
    if not is_file(home / CALIBRATION):
        return None
    calibration = load_calibration(home / CALIBRATION).to_dict()
    if not is_public(calibration.get("source")):
        calibration["source"] = "known-human code of the one who exported this"
    write_json(part / CALIBRATION, without_paths(calibration))
    return calibration


def _write_onnx(
    copy: LoadedDetector, part: Path, codes: list[str], expected: agreement.Scores
) -> dict[str, Any]:
    """Write the graph and run it on every batch; each has to say what the trained model said."""
    from nbhelpers.jobs.onnx import graph_scores, write_example, write_graph

    write_graph(copy, part)
    write_example(copy, part)
    pairs = (
        ((expected[0][rows], expected[1][rows]), scores)
        for rows, scores in graph_scores(part, codes)
    )
    limit = agreement.ONNX_LIMIT
    return agreement.compare_scores("ONNX", pairs, programs=len(codes), limit=limit)


# ------------------------------------------------------------------------------------------------
# A clone model: likewise, on pairs of functions.


def _write_clones(trained: TrainedClones, part: Path, options: Options) -> dict[str, Any]:
    require_whole(trained.folder)
    result = _detector_result(trained)
    _copy(trained.folder, part, WEIGHTS, "config.json")
    scrub(part)
    if result:
        Result.write(part / RESULT_NAME, result)
    facts = trained.model_dump(include={"seq_len", "data_flow_length", "grammar_compat"})
    facts |= {"format": 1, "run_id": result.get("run_id") or trained.name}
    write_json(part / CLONES_FILE, without_paths(facts))
    options.report("reading both back and comparing them")
    copied = trained.model_copy(update={"folder": part, "run": None, "kind": "export"})
    codes = agreement.find_programs("java")
    expected = _pairs(load_clones(trained), codes)
    opened = write_forms(load_clones(copied), part, member="")
    copy = load_clones(copied)
    forms = {"safetensors": _pairs(copy, codes), MODELING: pair_scores(part, copy, codes, "java")}
    agreements = [_agreement(form, expected, scores, len(codes)) for form, scores in forms.items()]
    agreements += _encoder_agreement(opened, part, copy, codes)
    known = facts | {
        "name": trained.name,
        "repo_id": options.repo_id,
        "parameters": sum(parameter.numel() for parameter in copy.model.parameters()),
        "agreement": agreements,
        "programs": agreement.ORIGIN,
        "forms": opened.forms,
        "left_out": opened.left_out,
        "versions": library_versions(),
    }
    (part / CARD).write_text(clones_card(result, known), encoding="utf-8")
    return _told(opened, agreements)


def _pairs(loaded: LoadedClones, codes: list[str]) -> agreement.Scores:
    """Return (n * n,) margins of all pairs, and (n, hidden) states."""
    states, _ = loaded.encode(codes, ["java"] * len(codes), batch_size=BATCH_SIZE)
    p = loaded.probabilities(states, states).double().flatten()
    return p.logit().cpu().numpy(), states.cpu().numpy()


EXPORTERS = {
    "finetune": Exporter(kind="adapter", contents="Adapter, tokenizer", write=_write_adapter),
    "detector": Exporter(kind="detector", contents="Detector, tokenizer", write=_write_detector),
    "clones": Exporter(kind="clones", contents="Clone model, tokenizer", write=_write_clones),
}


# ------------------------------------------------------------------------------------------------
# The way to the hub.


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
    message: str,
    api: Any = None,
) -> str:
    """Upload the named files of a folder as a model repository; return its address.

    Raises:
        ConfigError: The hub cannot be reached or refuses; no message holds the token.
    """
    from huggingface_hub import HfApi

    api = api or HfApi(token=token)
    try:
        url = api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            repo_type="model",
            folder_path=str(folder),
            allow_patterns=files,
            commit_message=message,
        )
    except network_errors() as error:
        why, fix = explain_push(error)
        text = f"{repo_id} was not pushed: {why}. The folder is written: {folder}."
        raise ConfigError(text, fix=fix) from None  # its chain may quote request headers
    return str(url)
