"""A bundled sample of small Python and Java programs in two styles, written for this project.

`style_tasks.txt` has the tasks, each with two bodies in Python and two in Java, in which names are
open. :mod:`nbhelpers.samples.styles_write` writes a body in a style. The rule:

* Style A is *terse*: short names, little room, few words. It stands for the label ``human``.
* Style B is *explaining*: long names, docstrings, checks, room around things. It stands for ``ai``.
* A style is a chance for each habit, not a law (:data:`STYLES`), and one program in
  `CROSSED_ONE_IN` is written by the other style's chances. So no single habit tells the labels
  apart, and no scorer can be right about every program.
* Each task has `VARIANTS` programs per language and style; all of them are its members.
* The splits hold different tasks; so do the two sources, and a pool belongs to one source of one
  split. Pools and generators are names of draws: nobody stands behind them.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

from nbhelpers.samples.styles_write import STYLES, Task, write_program

SAMPLE_NOTE = (
    "Small programs written for this project in two styles, terse (here `human`) and explaining "
    "(here `ai`): they show the machinery. Scores on them say nothing about real code, and a model "
    "trained on them detects nothing real."
)
ENDINGS = {"python": ".py", "java": ".java"}
LANGUAGES = tuple(ENDINGS)
VARIANTS = 4
CROSSED_ONE_IN = 30
SPLIT_TASKS = {"train": 39, "valid": 9, "test": 9}
GENERATORS = ("rules-1", "rules-2")

_SEED = 5


@cache
def load_tasks() -> tuple[Task, ...]:
    """Return the tasks of the text file, in its order."""
    text = (Path(__file__).parent / "style_tasks.txt").read_text(encoding="utf-8")
    return tuple(_task(part) for part in re.split(r"^= ", text, flags=re.MULTILINE)[1:])


def load_style_rows() -> list[dict[str, str]]:
    """Return the programs, the same ones everywhere.

    A row has id, code, language, label, task, author, generator, source, licence and split.
    """
    return [dict(row) for row in _rows()]


@cache
def _rows() -> tuple[dict[str, str], ...]:
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    for number, (task, split) in enumerate(_split_tasks()):
        source = f"set-{number % 2 + 1}"
        for language in LANGUAGES:
            for label in STYLES:
                for variant in range(VARIANTS):
                    code = _new_program(task, language, label, variant, seen)
                    rows.append(_row(task, language, label, variant, code, split, source))
    return tuple(rows)


def _split_tasks() -> list[tuple[Task, str]]:
    """Return each task with its split, in a drawn order."""
    tasks = list(load_tasks())
    random.Random(f"{_SEED} splits").shuffle(tasks)
    splits = [split for split, count in SPLIT_TASKS.items() for _ in range(count)]
    return list(zip(tasks, splits, strict=True))


def _new_program(task: Task, language: str, label: str, variant: int, seen: set[str]) -> str:
    """Return a program that, whatever its white space, was not written before."""
    for attempt in range(1000):
        draw = random.Random(f"{_SEED} {task.name} {language} {label} {variant} {attempt}")
        other = draw.randrange(CROSSED_ONE_IN) == 0
        style = next(name for name in STYLES if (name != label) == other)
        code = write_program(task, language, STYLES[style], draw)
        if (bare := "".join(code.split())) not in seen:
            seen.add(bare)
            return code
    raise AssertionError(f"{task.name} has too few ways to be written")


def _row(
    task: Task, language: str, label: str, variant: int, code: str, split: str, source: str
) -> dict[str, str]:
    name = task.name.replace(" ", "-")
    pools = [f"pool-{split}-{source}-{letter}" for letter in "ab"]
    return {
        "id": f"{name}-{language}-{label}-{variant + 1}",
        "code": code,
        "language": language,
        "label": label,
        "task": name,
        "author": pools[variant % 2] if label == "human" else "",
        "generator": GENERATORS[variant % 2] if label == "ai" else "",
        "source": source,
        "licence": "Apache-2.0",
        "split": split,
    }


def _task(part: str) -> Task:
    """Read one task of the text file."""
    head, _, rest = part.partition("\n")
    name, about, signature, example = (field.strip() for field in head.split(" | "))
    parameters, _, result = signature.partition(" -> ")
    call, _, value = example.partition(" -> ")
    bodies: dict[str, list[str]] = {"p": [], "j": []}
    for letter, body in re.findall(r"^([pj])\n((?:(?![pj]$).*\n?)*)", rest, flags=re.MULTILINE):
        bodies[letter].append(body.strip("\n"))
    return Task(
        name=name,
        about=about,
        parameters=tuple(tuple(field.split()) for field in parameters.split(", ")),
        result=result,
        call=call,
        value=value,
        bodies={"python": tuple(bodies["p"]), "java": tuple(bodies["j"])},
    )


def write_style_files(folder: str | Path, *, tasks: int = 3) -> Path:
    """Write programs of the test split as files to try a detector on, and return the folder.

    Of each task one program per language and style, in a file named by task and style; files of
    that name are replaced.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    rows = [row for row in _rows() if row["split"] == "test" and row["id"].endswith("-1")]
    chosen = list(dict.fromkeys(row["task"] for row in rows))[:tasks]
    for row in rows:
        if row["task"] in chosen:
            style = "terse" if row["label"] == "human" else "explaining"
            name = f"{row['task']}-{style}{ENDINGS[row['language']]}"
            (place / name).write_text(row["code"], encoding="utf-8", newline="\n")
    return place
