"""The command that audits detection data."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nbhelpers.cli_text import table, typed_path
from nbhelpers.errors import DataError

WIDTH = 100
FEATURES_SHOWN = 6


def audit(
    data: Annotated[str, typer.Argument(help="A file, a folder, a hub id, or smoke.")],
    json: Annotated[
        Path | None, typer.Option("--json", parser=typed_path, help="Write all facts here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", parser=typed_path, help="Write a page with a figure.")
    ] = None,
    canonical: Annotated[str, typer.Option(help="The form trained on: raw, text, flat.")] = "text",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit on the hub.")] = "",
    known_humans: Annotated[str, typer.Option(help="Code that people are known to have.")] = "",
) -> None:
    """Say whether data can train a detector; exit code 5 when they cannot."""
    from nbhelpers.audit import audit as look

    found = look(
        data,
        revision=revision or None,
        canonical=canonical,
        known_humans=known_humans or None,
    )
    typer.echo(audit_text(found))
    for path, save in ((json, found.save), (html, found.save_page)):
        if path is not None:
            typer.echo(f"written: {save(path)}")
    if found.is_hopeless:
        raise typer.Exit(DataError.exit_code)


def audit_text(found: Any) -> str:
    """Return an audit as a shell shows it: the verdict with its sentences, and the main tables."""
    lines = [repr(found)]
    for title, sentences in (("Reasons", found.reasons), ("Warnings", found.warnings)):
        if sentences:
            lines += [f"{title}:", *map(_item, sentences)]
    facts = found.facts
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
