"""Live runs of each job on the CPU, seconds long, and what is the same each time they are made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden.outputs import CHECKOUT, Place, call, frozen_names, place

SMALL = {"pretrain_steps": 0, "bootstrap_samples": 100, "logging_steps": 1}
CLONES = SMALL | {"max_train_samples": 80, "max_eval_pairs": 60, "seq_len": 64, "epochs": 2}
CLONES |= {"global_batch_size": 16, "per_device_train_batch_size": 4, "save_steps": 5}
CLONES |= {"per_device_eval_batch_size": 16, "dropout": 0.1}
DETECTOR = SMALL | {"max_train_samples": 240, "seq_len": 96, "epochs": 2}
FINETUNE = SMALL | {"max_train_samples": 96, "valid_samples": 12, "eval_samples": 10}
FINETUNE |= {"epochs": 2, "max_new_tokens": 24, "save_steps": 5}
PROGRAMS = {
    "one.py": "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n" * 4,
    "two.py": "def total(x, y):\n    z = x + y\n    return z\n\n\nprint(total(3, 4))\n" * 4,
    "three.py": "for i in range(10):\n    if i % 2:\n        print(i * i)\n" * 4,
}
# What depends on the machine, the time or the libraries: only its keys and types are compared.
VARIES = re.compile(
    r"(^t$|^ms_|_s$|_seconds$|seconds|per_s|_at$|time|timing|speed|rss|pid|host|version|hardware|memory|"
    r"bytes|launch_id|utilis|percent_of|command|git_commit|launched_by|run_path|environment)"
)


def options(values: dict[str, Any]) -> list[str]:
    """Return settings as words of a command."""
    return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]


def events_of(where: Place, folder: Path) -> dict[str, Any]:
    """Return the events of each file: kinds with their keys in order, and the steps' numbers.

    Progress comes by the clock: only its names and totals are kept, each once.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("events-*.jsonl")):
        events = [json.loads(line) for line in where.mask(path.read_text("utf-8")).splitlines()]
        kinds: list[str] = []
        for event in events:
            words = [event["type"], *(f"{event[n]}" for n in ("name", "split") if n in event)]
            kind = " ".join(words) + ": " + " ".join(sorted(event))
            if event["type"] != "progress" or kind not in kinds:
                kinds.append(kind)
        numbers = [settled(e) for e in events if e["type"] in ("step", "eval", "checkpoint")]
        found[path.name] = {"kinds": kinds, "numbers": numbers}
    return found


def settled(value: Any) -> Any:
    """Return a JSON value with a mark for what varies, its keys kept."""
    if isinstance(value, dict):
        return {k: kinds_of(v) if VARIES.search(k) else settled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [settled(entry) for entry in value]
    return value


def kinds_of(value: Any) -> Any:
    """Return the keys of a value, and of each entry whether it is there."""
    if isinstance(value, dict):
        return {key: kinds_of(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return "a list"
    return None if value is None else type(value).__name__.replace("int", "float")


def name_of(folder: Path) -> str:
    """Return a run's id; `evaluation` for one whose id holds its checkpoint's path."""
    record = json.loads((folder / "run.json").read_text("utf-8"))
    return "evaluation" if record["mode"] == "evaluate" else folder.name


def of_folder(where: Place, folder: Path) -> dict[str, Any]:
    """Return what is the same each time of a finished run's folder."""
    text = (folder / "result.json").read_text("utf-8").replace(folder.name, name_of(folder))
    result = json.loads(where.mask(text))
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {"files": files, "events": events_of(where, folder), "result": settled(result)}


def live(words: list[str], *after: list[str]) -> dict[str, Any]:
    """Train, then call further commands on the runs (`@RUN@` is the last that trained)."""
    with place() as where:
        for name, text in PROGRAMS.items():
            path = where.root / "programs" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        found: dict[str, Any] = {"code": call(where, *words, "--run-dir", "@ROOT@/runs")["code"]}
        trained = sorted(path.parent for path in where.runs.glob("*/result.json"))[-1]
        for line in after:
            given = call(where, *(word.replace("@RUN@", str(trained)) for word in line))
            found[line[0]] = {name: given[name] for name in ("code", "error") if name in given}
        for path in sorted(where.runs.glob("*/result.json")):
            found[name_of(path.parent)] = of_folder(where, path.parent)
        made = (p for p in (where.root / "made").glob("**/*") if p.is_file())
        found["made"] = sorted(p.relative_to(where.root).as_posix() for p in made)
        return found


def notebook(name: str, values: dict[str, Any], condition: str) -> list[str]:
    """Return the words that run a notebook on what is finished, with a condition on its score."""
    words = [word for n, v in values.items() for word in ("-p", f"{n}={v}")]
    path = name if name.endswith(".ipynb") else str(CHECKOUT / "notebooks" / f"{name}.ipynb")
    line = ["run", path, "-p", "preset=smoke"]
    line += ["-p", "run_dir=@ROOT@/runs", *words, "--resume", "--output", "@ROOT@/made/out.ipynb"]
    return [*line, "--require", condition]


def live_clones() -> dict[str, Any]:
    """A small run of the clone detector; its checkpoint evaluated."""
    words = ["train", "clones", "--preset", "smoke", *options(CLONES)]
    return live(words, ["evaluate", "clones", "--run", "@RUN@"])


def live_detector() -> dict[str, Any]:
    """A small run of the detector; it scores programs."""
    words = ["train", "detector", "--preset", "smoke", *options(DETECTOR)]
    return live(words, ["detect", "programs", "--model", "@RUN@", "--evidence", "made/sheets"])


def live_finetune() -> dict[str, Any]:
    """A small study of base and r8; its notebook on the same runs, where the adapter answers."""
    words = ["study", "--preset", "smoke", "--adapters", "base,r8", *options(FINETUNE)]
    values = {"adapters": "base,r8", "more_settings": json.dumps(FINETUNE)}
    return live(words, notebook("01_finetune_gemma", values, "exact_match>=0.9999"))


def headless() -> dict[str, Any]:
    """The notebook on a finished frozen run: its report, and `--require` met and missed.

    Without "Try it": frozen runs have no weights.
    """
    with place(*frozen_names()) as where:
        cells = json.loads((CHECKOUT / "notebooks" / "03_find_clones.ipynb").read_text("utf-8"))
        cells["cells"] = [c for c in cells["cells"] if not c["id"].startswith("try")]
        path = where.root / "03_find_clones.ipynb"
        path.write_text(json.dumps(cells), encoding="utf-8")
        conditions = {"met": "f1>=0.5", "missed": "f1>=0.99"}
        lines = {n: notebook(str(path), {}, text) for n, text in conditions.items()}
        return {name: call(where, *line) for name, line in lines.items()}


def live_cases() -> dict[str, Callable[[], Any]]:
    """Return the slow cases by name."""
    return {
        "live_clones": live_clones,
        "live_detector": live_detector,
        "live_finetune": live_finetune,
        "live_headless": headless,
    }
