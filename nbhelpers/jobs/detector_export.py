"""A trained detector as a folder for others: weights, tokenizer, threshold, card, and ONNX.

The folder gets its name only after it was read back and agrees with the trained model on programs;
else nothing is left behind. Nothing in it is pickled, and no path of this machine stands in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import DetectorFile, Result
from nbhelpers.errors import DataError
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import detector_agreement as agree
from nbhelpers.jobs import drafts
from nbhelpers.jobs.cards import CARD
from nbhelpers.jobs.detector_cards import write_card
from nbhelpers.jobs.export import TOKENIZER_FILES, digest, push, require_place, require_push
from nbhelpers.jobs.load_detector import Loaded, load_detector
from nbhelpers.jobs.outcome import library_versions
from nbhelpers.jobs.public import (
    CALIBRATION,
    copy_calibration,
    public_detector_settings,
    public_result,
    scrub_names,
    scrubbed,
)
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.trained import FACTS_FILE, FACTS_NAME, TrainedDetector

KIND = "detector"
WEIGHTS = "model.safetensors"
COMMIT_MESSAGE = "Detector, tokenizer and model card"
BATCH_SIZE = 8
Report = Callable[[str], None]


def export_detector(
    trained: TrainedDetector,
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
        onnx: Also write `model.onnx` and a program that uses it without torch.
        api: In the place of the hub's client; for tests.
        report: Called with a line of text at each step.

    Returns:
        Its files, its address on the hub (or None), and what was measured.

    Raises:
        ConfigError: `out` holds something else, a package is missing, or the hub refuses.
        DataError: The checkpoint is damaged.
        RequirementMissed: What was written does not agree with the trained model.
    """
    if push_to is not None:
        require_push(push_to, token)
    if onnx:
        from nbhelpers.jobs.onnx import require_onnx

        require_onnx()
    require_place(out, trained.name, kind=KIND)
    if (trained.folder / ck.MANIFEST).is_file() and (problem := ck.verify(trained.folder)):
        raise DataError(f"The checkpoint is damaged: {problem}.", fix="name another checkpoint")
    part = drafts.require_ours(out.with_name(f"{out.name}.part"))
    drafts.start(part)
    try:
        facts = _write(trained, part, onnx=onnx, push_to=push_to, report=report)
        drafts.open_up(part)
        if out.exists():
            shutil.rmtree(out)  # an earlier export of ours, with no file of anybody else
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    options = {"token": token, "private": private, "api": api, "message": COMMIT_MESSAGE}
    url = push(out, push_to, facts["files"], **options) if push_to else None
    return facts | {"url": url}


def _write(
    trained: TrainedDetector, part: Path, *, onnx: bool, push_to: str | None, report: Report
) -> dict[str, Any]:
    settings = agree.run_settings(trained.run)
    result = _result(trained)
    _copy(trained, part, result)
    report("reading both back and comparing them")
    model = load_detector(trained.folder, device="cpu")
    programs = agree.find_programs(trained.run, settings)
    expected = model.score(list(programs.codes), batch_size=BATCH_SIZE)
    copy = load_detector(part, device="cpu")
    copy_scores = copy.score(list(programs.codes), batch_size=BATCH_SIZE)
    batches = -(-len(programs.codes) // BATCH_SIZE)
    rows = [
        agree.agreement(
            "safetensors", expected, copy_scores, batches=batches, limit=agree.RELOAD_LIMIT
        ).require()
    ]
    if onnx:
        report("writing the graph")
        rows.append(_onnx(copy, part, programs.codes, expected))
    facts = {
        "name": trained.name,
        "repo_id": push_to,
        "settings": public_detector_settings(settings),
        "detector": read_raw(DetectorFile, part / FACTS_FILE),
        "point": result.get("operating_point"),
        "calibration": read_json(part / CALIBRATION),
        "parameters": sum(p.numel() for p in copy.model.parameters()),
        "agreement": [row.to_dict() for row in rows],
        "programs": programs.where,
        "onnx": onnx,
        "versions": library_versions(*(("onnx", "onnxruntime") if onnx else ())),
    }
    write_card(part, result, facts)
    files = _sign(trained, part, facts["agreement"])
    return {"files": files, "agreement": facts["agreement"], "programs": programs.where}


def _result(trained: TrainedDetector) -> dict[str, Any]:
    """What may be told of `result.json`: of the run, or of a folder that was exported before."""
    for folder in (trained.scored, trained.folder):
        if folder is not None and (record := read_raw(Result, folder / RESULT_NAME)):
            return public_result(record)
    return {}


def _copy(trained: TrainedDetector, part: Path, result: dict[str, Any]) -> None:
    """Write weights, configuration, tokenizer and what is known of the model."""
    source = trained.folder
    _require_plain_names(source / WEIGHTS)
    shutil.copy2(source / WEIGHTS, part / WEIGHTS)  # byte by byte: a calibration names its hash
    for pattern in ("config.json", *TOKENIZER_FILES):
        for path in source.glob(pattern):
            shutil.copy2(path, part / path.name)
    scrub_names(part)
    facts = read_raw(DetectorFile, source / FACTS_FILE)
    facts |= {"run_id": result.get("run_id") or facts.get("run_id") or trained.name}
    facts |= {"operating_point": result.get("operating_point")}
    facts |= {"calibration": copy_calibration(trained, part)}
    write_json(part / FACTS_FILE, scrubbed(facts))
    if result:
        Result.write(part / RESULT_NAME, result)


def _require_plain_names(path: Path) -> None:
    """Stop on names that a wrapper of the training left in the weights.

    Raises:
        DataError: There are such names, or the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        fix = "copy the folder again, or name another checkpoint"
        raise DataError(f"{path} cannot be read: {error}", fix=fix) from error
    wrapped = [name for name in names if {"_orig_mod", "module"} & set(name.split("."))]
    if wrapped:
        raise DataError(
            f"{path} holds names of a wrapped model, such as {wrapped[0]}.",
            fix="train again with this version: its checkpoints hold plain names",
        )


def _onnx(
    copy: Loaded, part: Path, codes: tuple[str, ...], expected: agree.Scores
) -> agree.Agreement:
    """Write the graph and run it on every batch; each has to say what the trained model said."""
    from nbhelpers.jobs.onnx import graph_scores, write_example, write_graph

    write_graph(copy, part)
    write_example(copy, part)
    steps = []
    for group, onnx_scores in graph_scores(part, codes):
        wanted = expected[0][group], expected[1][group]
        steps.append(
            agree.agreement("ONNX", wanted, onnx_scores, batches=1, limit=agree.ONNX_LIMIT)
        )
    return agree.Agreement(
        form="ONNX",
        programs=len(codes),
        batches=len(steps),
        logit=max(step.logit for step in steps),
        vector=max(step.vector for step in steps),
        limit=agree.ONNX_LIMIT,
    ).require()


def _sign(trained: TrainedDetector, part: Path, measured: list[dict[str, Any]]) -> list[str]:
    """Write what the folder tells about itself; return the names of its files."""
    files = sorted(path.name for path in part.iterdir() if path.name != FACTS_NAME)
    facts = {
        "schema": 1,
        "kind": KIND,
        "name": trained.name,
        "agreement": measured,
        "files": files,
        "card_sha256": digest(part / CARD),
    }
    write_json(part / FACTS_NAME, facts)
    return sorted([*files, FACTS_NAME])
