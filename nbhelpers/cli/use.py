"""Commands on data and trained models: audit, detect, similar, clones-of, ask, merge, export."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from nbhelpers.cli.options import (
    RUNS,
    Device,
    RunDir,
    path_option,
    refuse_study,
    table,
    typed_path,
    warn,
)
from nbhelpers.common.processes import shell_command
from nbhelpers.errors import ConfigError, DataError, RequirementMissed

# ------------------------------------------------------------------------------------------------
# The command that audits detection data.


WIDTH = 100
FEATURES_SHOWN = 6


def audit(
    data: Annotated[str, typer.Argument(help="A file, a folder, a hub id, or smoke.")],
    json: Annotated[Path | None, path_option("--json", help="Write all facts here.")] = None,
    html: Annotated[Path | None, path_option("--html", help="Write a page with a figure.")] = None,
    canonical: Annotated[str, typer.Option(help="The form trained on: raw, text, flat.")] = "text",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit on the hub.")] = "",
    known_humans: Annotated[str, typer.Option(help="Code that people are known to have.")] = "",
) -> None:
    """Say whether data can train a detector; exit code 5 when they cannot."""
    from nbhelpers.reports.audits import audit as look
    from nbhelpers.use.results import checked_output

    for path, ending in ((json, ".json"), (html, ".html")):
        if path is not None:
            checked_output(path, [ending])
    result = look(
        data,
        revision=revision or None,
        canonical=canonical,
        known_humans=known_humans or None,
    )
    typer.echo(audit_text(result))
    for path, save in ((json, result.save), (html, result.save_page)):
        if path is not None:
            typer.echo(f"written: {save(path)}")
    if result.is_hopeless:
        raise typer.Exit(DataError.exit_code)


def audit_text(result: Any) -> str:
    """Return an audit as a shell shows it: the verdict with its sentences, and the main tables."""
    lines = [repr(result)]
    parts = {"Read": result.read, "Reasons": result.reasons, "Warnings": result.warnings}
    for title, sentences in parts.items():
        if sentences:
            lines += [f"{title}:", *map(_item, sentences)]
    facts = result.facts
    rows = [
        {"source": one["value"] or "none named", "human": one["human"], "ai": one["ai"]}
        for one in facts["counts"]["source"]
    ]
    features = [_feature(one) for one in facts["features"]]
    parts = ["\n".join(lines), table(rows), table(features[:FEATURES_SHOWN])]
    return "\n\n".join(part for part in parts if part)


def _feature(one: Mapping[str, Any]) -> dict[str, str]:
    """Areas under the ROC curve, as one line of the table."""
    worst = one["slice_canonical"]
    return {
        "feature alone": one["feature"].replace("_", " "),
        "AUC raw": f"{one['raw']:.3f}",
        "AUC canonical": f"{one['canonical']:.3f}",
        "most in": "" if worst is None else f"{one['slice'] or 'no language'} {worst:.3f}",
        "higher in": one["higher_in"],
    }


def _item(sentence: str) -> str:
    return textwrap.fill(
        sentence, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False
    )


# ------------------------------------------------------------------------------------------------
# Commands that use a trained detector or clone model: calibrate, detect, similar, clones-of.


Model = Annotated[
    str, typer.Option("--model", "-m", help="A run, a checkpoint, or an exported folder.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Programs scored at once.")]
Csv = Annotated[Path | None, path_option("--csv", help="Write the table as CSV.")]
Json = Annotated[Path | None, path_option("--json", help="Write everything as JSON.")]
Language = Annotated[str, typer.Option(help="Of every file; default: by its ending.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def calibrate(
    humans: Annotated[
        Path,
        path_option(help="Code that your people are known to have written."),
    ],
    model: Model,
    fpr: Annotated[float, typer.Option(help="False-positive rate to promise.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="How sure the promise holds.")] = 0.95,
    out: Annotated[Path | None, path_option(help="Default: beside the model.")] = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = RUNS,
    quiet: Quiet = False,
) -> None:
    """Fix the threshold on your own people's code; exit code 7 when there is too little of it.

    One whose promise does not hold is written only to a file that --out names.
    """
    from nbhelpers.common.files import is_file
    from nbhelpers.use.calibrate import MAX_FPR
    from nbhelpers.use.detector import load_detector

    with load_detector(model, device=device, run_dir=run_dir, batch_size=batch_size) as detector:
        options = {"target_fpr": fpr, "confidence": confidence, "out": out}
        calibration = detector.calibrate(humans, **options, progress=not quiet)
        place = out or detector.facts.home / "calibration.json"
    typer.echo(calibration.text())
    if calibration.is_met or out is not None:
        typer.echo(f"Written to {place}.")
    else:
        status = f"{place} stays as it is" if is_file(place) else "there is still none"
        typer.echo(f"Not written: the promise does not hold, and {status} (--out FILE keeps it).")
    if calibration.lack:
        less = ceil(1000 * calibration.promised_fpr) / 1000
        other = f", or ask for less: --fpr {less:g}" if less <= MAX_FPR else ""
        raise RequirementMissed(f"{calibration.lack}.", fix=f"add known-human programs{other}")


def detect(
    place: Annotated[
        Path, typer.Argument(metavar="FILE_OR_FOLDER", parser=typed_path, help="Code to score.")
    ],
    model: Model,
    csv: Csv = None,
    json: Json = None,
    calibration: Annotated[
        Path | None, path_option(help="Default: the one beside the model.")
    ] = None,
    evidence: Annotated[Path | None, path_option(help="A folder for a sheet of each file.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 50,
    language: Language = "",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = RUNS,
    quiet: Quiet = False,
) -> None:
    """Score code and rank it; nothing is called AI without a calibration on your own people."""
    from nbhelpers.common.files import is_file
    from nbhelpers.use.detector import load_detector
    from nbhelpers.use.results import checked_output

    outputs = [checked_output(path) for path in _outputs(csv, json)]
    with load_detector(model, device=device, run_dir=run_dir, batch_size=batch_size) as detector:
        options = {"calibration": calibration, "language": language}
        sheet = detector.score_code(place, **options) if is_file(place) else None
        batch = detector.detect(place, evidence=evidence, **options, progress=not quiet)
    typer.echo(batch.text(top) if sheet is None else sheet.text())
    for path in outputs:
        typer.echo(f"Written to {batch.save(path)}.")
    if not batch.rows:
        if not batch.skipped:
            text = f"{place} holds no file."
            raise DataError(text, fix="name a file of code, or a folder with some")
        raise DataError(f"No file of {place} could be scored.", fix="see why each was left out")
    if evidence is not None:
        typer.echo(f"Sheets written to {evidence}.")


def similar(
    place: Annotated[
        Path, typer.Argument(metavar="FOLDER_OR_A", parser=typed_path, help="A folder, or A.")
    ],
    model: Model,
    other: Annotated[
        Path | None, typer.Argument(metavar="[B]", parser=typed_path, help="Compare A with B.")
    ] = None,
    starter: Annotated[Path | None, path_option(help="Code that was handed out.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Pairs to show and to write.")] = 50,
    csv: Csv = None,
    json: Json = None,
    language: Language = "",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = RUNS,
    quiet: Quiet = False,
) -> None:
    """Rank pairs of programs by similarity, with the score of plain n-grams beside ours."""
    from nbhelpers.use.detector import load_detector
    from nbhelpers.use.results import checked_output

    outputs = [checked_output(path) for path in _outputs(csv, json)]
    with load_detector(model, device=device, run_dir=run_dir, batch_size=batch_size) as detector:
        options = {"starter": starter, "top": top, "language": language}
        ranking = detector.similar(place, other, **options, progress=not quiet)
    typer.echo(ranking.text())
    for path in outputs:
        typer.echo(f"Written to {ranking.save(path)}.")


def clones_of(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run, a checkpoint, or an exported folder.")
    ],
    place: Annotated[
        Path, typer.Argument(metavar="PATH", parser=typed_path, help="A folder, or a file.")
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[OTHER]", parser=typed_path, help="Compare PATH with OTHER."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Pairs to show and to write.")] = 50,
    csv: Csv = None,
    json: Json = None,
    language: Language = "",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = RUNS,
    quiet: Quiet = False,
) -> None:
    """Rank the pairs of functions in Java and Python files by how surely they are clones."""
    from nbhelpers.use.clones import load_clones
    from nbhelpers.use.results import checked_output

    refuse_study("clones-of", run, run_dir)
    outputs = [checked_output(path) for path in _outputs(csv, json)]
    with load_clones(run, device=device, run_dir=run_dir, batch_size=batch_size) as model:
        clones = model.clones_of(place, other, top=top, language=language, progress=not quiet)
    typer.echo(clones.text())
    for path in outputs:
        typer.echo(f"Written to {clones.save(path)}.")


def _outputs(csv: Path | None, json: Path | None) -> list[Path]:
    """Return the files to write; the options say the form, so the endings must agree.

    Raises:
        ConfigError: An ending says another form.
    """
    for path, ending in ((csv, ".csv"), (json, ".json")):
        if path is not None and path.suffix.lower() != ending:
            option = f"--{ending[1:]}"
            text = f"{option} names {path.name!r}, which does not end in {ending}."
            raise ConfigError(text, fix=f"write {option} {path.stem}{ending}")
    return [path for path in (csv, json) if path is not None]


# ------------------------------------------------------------------------------------------------
# Commands that use what a run trained: ask, merge, export.


What = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, a checkpoint, or a folder of an adapter.")
]
Out = Annotated[Path, typer.Argument(parser=typed_path, help="The folder to write.")]
PushTo = Annotated[str, typer.Option(help="OWNER/NAME on the hub; default: nowhere.")]
Public = Annotated[bool, typer.Option(help="A new repository is public.")]


def ask(
    run: What,
    prompt: Annotated[list[str], typer.Argument(help="One or several instructions.")],
    compare: Annotated[bool, typer.Option(help="Also ask the base, without the adapter.")] = False,
    raw: Annotated[bool, typer.Option(help="Without the run's template.")] = False,
    system: Annotated[str, typer.Option(help="A system text before the instruction.")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Default: the run's.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: no sampling.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the sampling.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for the answer.")] = None,
    base: Annotated[str, typer.Option(help="Of an adapter that names none.")] = "",
    template: Annotated[str, typer.Option(help="Where the folder does not say.")] = "",
    device: Device = "auto",
    run_dir: RunDir = RUNS,
) -> None:
    """Ask a trained model; it also takes a merged model's folder."""
    from nbhelpers.use.model import load_adapter

    refuse_study("ask", run, run_dir)
    how = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "raw": raw}
    how |= {"system": system, "timeout_s": timeout}
    options = {"base": base or None, "template": template or None, "run_dir": run_dir}
    with load_adapter(run, device=device, **options) as model:
        for note in model.trained.notes:
            warn(f"note: {note}")
        if compare:
            typer.echo(model.compare(prompt, **how).text())
            return
        for answer in model.ask(prompt, **how):
            typer.echo(answer)


def merge(
    run: What,
    out: Out,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Measure on these; default: held-out samples.")
    ] = None,
    device: Device = "auto",
    push_to: PushTo = "",
    public: Public = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Merge an adapter into its base, and keep the model only if it answers alike."""
    from nbhelpers.use.model import merge as merge_run

    refuse_study("merge", run, run_dir)
    options = {"push_to": push_to or None, "private": not public, "run_dir": run_dir}
    done = merge_run(run, out, prompts=prompt, device=device, report=typer.echo, **options)
    typer.echo(repr(done))
    typer.echo(table([{"": name, "value": text} for name, text in done.rows().items()]))


def export(
    run: What,
    out: Out,
    onnx: Annotated[bool, typer.Option("--onnx", help="A detector: as an ONNX graph too.")] = False,
    push_to: PushTo = "",
    public: Public = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Write adapter, detector or clone model, tokenizer and a card as a folder for others."""
    from nbhelpers.use.model import export as export_run

    refuse_study("export", run, run_dir)
    options = {"push_to": push_to or None, "private": not public, "run_dir": run_dir}
    done = export_run(run, out, onnx=onnx, report=typer.echo, **options)
    typer.echo(repr(done))
    for name in done.files:
        typer.echo(f"  {name}")
    for variant, text in done.measured().items():
        typer.echo(f"{variant}: {text}")
    for form, reason in done.left_out.items():
        typer.echo(f"not as {form}: {reason}")
    path = shlex.quote(str(done.path))
    how = {
        "adapter": f"To ask it: {shell_command()} ask {path} 'INSTRUCTION'",
        "detector": f"To use it: {shell_command()} detect --model {path} FILE_OR_FOLDER",
        "clones": f"To use it: {shell_command()} clones-of {path} FOLDER",
    }
    typer.echo(how[done.kind])
    if not push_to:
        typer.echo("To publish it: the same command with --push-to OWNER/NAME")
