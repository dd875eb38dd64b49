"""Commands that use what a run trained: ask, merge, export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from nbhelpers.cli_text import table, typed_path

What = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, a checkpoint, or a folder of an adapter.")
]
Out = Annotated[Path, typer.Argument(parser=typed_path, help="The folder to write.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RunDir = Annotated[
    Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
]


def ask(
    run: What,
    prompt: Annotated[list[str], typer.Argument(help="One or several instructions.")],
    compare: Annotated[bool, typer.Option(help="Also ask the base, without the adapter.")] = False,
    raw: Annotated[bool, typer.Option(help="Without the run's template.")] = False,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Default: the run's.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: no sampling.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the sampling.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for the answer.")] = None,
    base: Annotated[str, typer.Option(help="Of an adapter that names none.")] = "",
    template: Annotated[str, typer.Option(help="Where the folder does not say.")] = "",
    device: Device = "auto",
    run_dir: RunDir = Path("runs"),
) -> None:
    """Ask a trained model; it also takes a merged model's folder."""
    from nbhelpers.cli_jobs import refuse_study
    from nbhelpers.use import load

    refuse_study("ask", run, run_dir)
    how = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "raw": raw}
    how["timeout_s"] = timeout
    found = {"base": base or None, "template": template or None, "run_dir": run_dir}
    with load(run, device=device, **found) as model:
        for note in model.trained.notes:
            typer.echo(f"note: {note}", err=True)
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
    run_dir: RunDir = Path("runs"),
) -> None:
    """Merge an adapter into its base, and keep the model only if it answers alike."""
    from nbhelpers.cli_jobs import refuse_study
    from nbhelpers.use import merge as merge_run

    refuse_study("merge", run, run_dir)
    done = merge_run(run, out, prompts=prompt, device=device, run_dir=run_dir, report=typer.echo)
    typer.echo(repr(done))
    typer.echo(table([{"": name, "value": text} for name, text in done.rows().items()]))


def export(
    run: What,
    out: Out,
    onnx: Annotated[bool, typer.Option("--onnx", help="A detector: as an ONNX graph too.")] = False,
    push_to: Annotated[str, typer.Option(help="OWNER/NAME on the hub; default: nowhere.")] = "",
    public: Annotated[bool, typer.Option(help="A new repository is public.")] = False,
    run_dir: RunDir = Path("runs"),
) -> None:
    """Write adapter or detector, its tokenizer and a model card as a folder for others."""
    from nbhelpers.cli_jobs import refuse_study
    from nbhelpers.use import export as export_run

    refuse_study("export", run, run_dir)
    options = {"push_to": push_to or None, "private": not public, "run_dir": run_dir}
    done = export_run(run, out, onnx=onnx, report=typer.echo, **options)
    typer.echo(repr(done))
    for name in done.files:
        typer.echo(f"  {name}")
    for form, text in done.measured().items():
        typer.echo(f"{form}: {text}")
    if done.agreement:
        command = shlex.join(["nbhelpers", "detect", "--model", str(done.path)])
        typer.echo(f"To use it: {command} FILE_OR_FOLDER")
    else:
        command = shlex.join(["nbhelpers", "ask", str(done.path)])
        typer.echo(f"To ask it: {command} 'INSTRUCTION'")
    if not push_to:
        typer.echo("To publish it: the same command with --push-to OWNER/NAME")
