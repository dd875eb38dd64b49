"""A choice in words and as HTML: the verdict, what would help, the plan, the minutes, the lines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from nbhelpers.budgets import is_exact, source_words
from nbhelpers.memory import DOES_NOT_FIT, FITS, NO_GPU, TIGHT, UNSURE
from nbhelpers.picker_lines import all_lines

if TYPE_CHECKING:
    from nbhelpers.errors import NbhelpersError
    from nbhelpers.memory import MemoryBudget
    from nbhelpers.picker_budget import Estimate

MOST_TOLD = 6  # parts that are not predicted, by name
NOTE = "  "  # before a line that says where a time comes from
# Verdict: colour behind it (Okabe and Ito), colour of its text, and a mark that needs no colour.
STYLES = {
    FITS: ("#009E73", "#000000", "+"),
    TIGHT: ("#E69F00", "#000000", "!"),
    DOES_NOT_FIT: ("#D55E00", "#000000", "x"),
    UNSURE: ("#CCCCCC", "#000000", "?"),
    NO_GPU: ("#CCCCCC", "#000000", "-"),
}


def verdict_chip(verdict: str) -> str:
    """Return a verdict as HTML that carries its own colours, for light and dark pages."""
    behind, text, mark = STYLES.get(verdict, STYLES[UNSURE])
    style = f"background:{behind};color:{text};padding:2px 8px;border-radius:4px;font-weight:bold"
    return f'<span style="{style}">{escape(mark)} {escape(verdict)}</span>'


def plain_text(estimate: Estimate) -> str:
    """Return the whole answer as text, for a terminal and for a run without widgets."""
    found, parts = estimate.found, []
    for name, budget in estimate.budgets.items():
        parts.append(f"{found.choice.job}/{found.preset.name}, {name}: {budget.title()}")
        parts.append(f"  {source_words(budget, found.choice.job)}")
        parts += [f"  {text}" for text in (*budget.advice, *_unpredicted(budget), *budget.notes)]
    parts.append(f"Batch: {found.plan.words()}")
    parts += estimate.time_lines
    for name, lines in all_lines(found).items():
        parts += [f"{name}:", *(f"  {line}" for line in lines.splitlines())]
    return "\n".join(parts)


def answer_html(estimate: Estimate, *, waiting: bool = False) -> str:
    """Return the verdicts and what would help as HTML.

    Args:
        estimate: What was found for the choice.
        waiting: An exact simulation runs, and will replace what is not exact.
    """
    job, parts = estimate.found.choice.job, []
    for name, budget in estimate.budgets.items():
        source = source_words(budget, job)
        if waiting and not is_exact(budget, job):
            source += "; the exact simulation runs now and replaces it"
        parts.append(_budget_html(name, budget, source))
    return "".join(parts)


def _budget_html(name: str, budget: MemoryBudget, source: str) -> str:
    points = [*budget.advice, *_unpredicted(budget), *budget.notes]
    items = "".join(f"<li>{escape(text)}</li>" for text in points)
    advice = f"<ul style='margin:0'>{items}</ul>" if items else ""
    return (
        f"<p style='margin:6px 0'>{verdict_chip(budget.verdict)} <b>{escape(name)}</b>: "
        f"{escape(budget.title())}<br><small>{escape(source)}</small></p>{advice}"
    )


def details_html(estimate: Estimate) -> str:
    """Return the batch plan, minutes and cost, and what the preset is for, as HTML."""
    preset, first, rest = estimate.found.preset, *_first(estimate.time_lines)
    about = " ".join([*preset.about.split(), *preset.notes])
    lines = [f"<b>Batch</b>: {escape(estimate.found.plan.words())}", *map(escape, first)]
    folded = "<br>".join(map(escape, rest))
    more = f"<details><summary>how the time was found</summary>{folded}</details>" if rest else ""
    return f"<p style='margin:6px 0'>{'<br>'.join(lines)}</p>{more}<p>{escape(about)}</p>"


def _first(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The time, the limit and the cost; and the notes, which say where the time comes from."""
    first = [text for text in lines if not text.startswith(NOTE)]
    return first, [text.removeprefix(NOTE) for text in lines if text.startswith(NOTE)]


def _unpredicted(budget: MemoryBudget) -> list[str]:
    told = [f"not predicted: {name}" for name in budget.opaque[:MOST_TOLD]]
    rest = len(budget.opaque) - MOST_TOLD
    return [*told, f"and {rest} more that are not predicted"] if rest > 0 else told


def lines_html(estimate: Estimate) -> str:
    """Return the equal lines as HTML, one block for each form."""
    blocks = (
        f"<p style='margin:0'><b>{escape(name)}</b></p>"
        f"<pre style='white-space:pre-wrap;margin:0 0 6px 0'>{escape(lines)}</pre>"
        for name, lines in all_lines(estimate.found).items()
    )
    return "".join(blocks)


def problem_html(error: NbhelpersError, said: str) -> str:
    """Return an error as HTML: what it means for the choice, what is wrong, and what to do."""
    fix = f"<br>Fix: {escape(error.fix)}" if error.fix else ""
    log = (
        f"<details><summary>details</summary><pre>{escape(error.details)}</pre></details>"
        if error.details
        else ""
    )
    return f"<p role='alert'><b>{escape(said)}</b> {escape(error.message)}{fix}</p>{log}"


def bundle(estimate: Estimate) -> dict[str, Any]:
    """Return the answer in the forms that a notebook stores without widgets."""
    return {
        "text/plain": plain_text(estimate),
        "text/html": answer_html(estimate) + details_html(estimate) + lines_html(estimate),
    }
