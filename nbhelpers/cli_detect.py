"""Commands that use a trained detector: calibrate, detect, similar."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from nbhelpers.cli_text import typed_path
from nbhelpers.errors import ConfigError, DataError, RequirementMissed

Model = Annotated[
    str, typer.Option("--model", "-m", help="A run, a checkpoint, or an exported folder.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Programs scored at once.")]
RunDir = Annotated[
    Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
]
Csv = Annotated[
    Path | None, typer.Option("--csv", parser=typed_path, help="Write the table as CSV.")
]
Json = Annotated[
    Path | None, typer.Option("--json", parser=typed_path, help="Write everything as JSON.")
]
Language = Annotated[str, typer.Option(help="Of every file; default: by its ending.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def calibrate(
    humans: Annotated[
        Path,
        typer.Option(parser=typed_path, help="Code that your people are known to have written."),
    ],
    model: Model,
    fpr: Annotated[float, typer.Option(help="False-positive rate to promise.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="How sure the promise holds.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option(parser=typed_path, help="Default: beside the model.")
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Fix the threshold on your own people's code; exit code 7 when there is too little of it.

    One whose promise does not hold is written only to a file that --out names.
    """
    from nbhelpers.detect import load_detector
    from nbhelpers.detect_calibrate import MAX_FPR
    from nbhelpers.paths import is_file

    with load_detector(model, device=device, run_dir=run_dir, batch_size=batch_size) as detector:
        options = {"target_fpr": fpr, "confidence": confidence, "out": out}
        found = detector.calibrate(humans, **options, progress=not quiet)
        place = out or detector.facts.home / "calibration.json"
    typer.echo(found.text())
    if found.is_met or out is not None:
        typer.echo(f"Written to {place}.")
    else:
        kept = f"{place} stays as it is" if is_file(place) else "there is still none"
        typer.echo(f"Not written: the promise does not hold, and {kept} (--out FILE keeps it).")
    if found.lack:
        less = ceil(1000 * found.promised_fpr) / 1000
        other = f", or ask for less: --fpr {less:g}" if less <= MAX_FPR else ""
        raise RequirementMissed(f"{found.lack}.", fix=f"add known-human programs{other}")


def detect(
    place: Annotated[
        Path, typer.Argument(metavar="FILE_OR_FOLDER", parser=typed_path, help="Code to score.")
    ],
    model: Model,
    csv: Csv = None,
    json: Json = None,
    calibration: Annotated[
        Path | None, typer.Option(parser=typed_path, help="Default: the one beside the model.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(parser=typed_path, help="A folder for a sheet of each file.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 50,
    language: Language = "",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Score code and rank it; nothing is called AI without a calibration on your own people."""
    from nbhelpers.detect import load_detector
    from nbhelpers.detect_batch import checked_output
    from nbhelpers.paths import is_file

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
    starter: Annotated[
        Path | None, typer.Option(parser=typed_path, help="Code that was handed out.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Pairs to show and to write.")] = 50,
    csv: Csv = None,
    json: Json = None,
    language: Language = "",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    run_dir: RunDir = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Rank pairs of programs by similarity, with the score of plain n-grams beside ours."""
    from nbhelpers.detect import load_detector
    from nbhelpers.detect_batch import checked_output

    outputs = [checked_output(path) for path in _outputs(csv, json)]
    with load_detector(model, device=device, run_dir=run_dir, batch_size=batch_size) as detector:
        options = {"starter": starter, "top": top, "language": language}
        found = detector.similar(place, other, **options, progress=not quiet)
    typer.echo(found.text())
    for path in outputs:
        typer.echo(f"Written to {found.save(path)}.")


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
