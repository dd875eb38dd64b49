"""Live runs of each job on the CPU, seconds long, and what is the same each time they are made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden.outputs import CHECKOUT, Place, call, call_raw, first_error, frozen_names, place

SMALL = {"pretrain_steps": 0, "bootstrap_samples": 100, "logging_steps": 1}
CLONES = SMALL | {"max_train_samples": 80, "max_eval_pairs": 60, "seq_len": 64, "epochs": 2}
CLONES |= {"global_batch_size": 16, "per_device_train_batch_size": 4, "save_steps": 5}
CLONES |= {"per_device_eval_batch_size": 16, "dropout": 0.1, "floors": True}
CLONES |= {"save_total_limit": 2}
DETECTOR = SMALL | {"max_train_samples": 240, "seq_len": 96, "epochs": 2}
# Steps so small that the rounding of another kind of processor stays rounding.
DETECTOR |= {"learning_rate": 1e-3, "encoder_learning_rate": 3e-4}
FINETUNE = SMALL | {"max_train_samples": 600, "valid_samples": 12, "eval_samples": 40}
FINETUNE |= {"epochs": 1, "max_new_tokens": 32, "save_steps": 5, "pretrain_steps": 100}
# What depends on the machine, the time or the libraries: only its keys and types are compared.
VARIES = re.compile(
    r"(^t$|^ms_|_s$|_seconds$|seconds|per_s|_at$|time|timing|speed|rss|pid|host|version|hardware|memory|"
    r"bytes|launch_id|utilis|percent_of|command|git_commit|launched_by|run_path|environment)"
)


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


def play(
    name: str, values: dict[str, Any], *conditions: str, keep: Path | None, check: str = ""
) -> dict[str, Any]:
    """Run a notebook, `check` as its last cell, and return how it ended and what its runs are.

    Tests that keep the place find `executed.ipynb` there, and in `said.txt` what was printed.
    """
    with place(keep=keep) as where:
        content = cells_of(name)
        if check:
            cell = {"cell_type": "code", "id": "check", "source": check, "outputs": []}
            content["cells"].append(cell | {"metadata": {}, "execution_count": None})
        path = where.root / f"{name}.ipynb"
        path.write_text(json.dumps(content), encoding="utf-8")
        given = call_raw(where, *notebook(path, values, *conditions))
        (where.root / "said.txt").write_text(given["out"] + given["err"], encoding="utf-8")
        error = {"error": first_error(where.mask(given["err"]))} if given["code"] else {}
        return {"code": given["code"]} | error | runs_of(where)


def cells_of(name: str) -> dict[str, Any]:
    """Return a notebook of the project."""
    return json.loads((CHECKOUT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))


def notebook(path: Path, values: dict[str, Any], *conditions: str) -> list[str]:
    """Return the words that run a notebook, with conditions on its scores."""
    words = ["run", str(path), "-p", "preset=smoke", "-p", "run_dir=@ROOT@/runs", "--resume"]
    words += [word for n, v in values.items() for word in ("-p", f"{n}={v}")]
    words += [word for text in conditions for word in ("--require", text)]
    return [*words, "--output", "@ROOT@/executed.ipynb"]


def live_clones() -> dict[str, Any]:
    """A small run of the clone detector and its evaluation, in this process as a worker does."""
    from tests.job_runs import prepare, work_here

    with place() as where:
        run = prepare("clones", where.runs, **CLONES)
        work_here(run)
        work_here(prepare("clones", where.runs, mode="evaluate", checkpoint=run.path, **CLONES))
        return runs_of(where)


def runs_of(where: Place) -> dict[str, Any]:
    """Return what is the same each time of every finished run.

    Not of QLoRA: another processor rounds a weight to another of its 16 values.
    """
    found = {}
    for path in sorted(where.runs.glob("*/result.json")):
        if json.loads(path.read_text("utf-8"))["settings"].get("method") != "qlora":
            found[name_of(path.parent)] = of_folder(where, path.parent)
    return found


def live_detector(keep: Path | None = None) -> dict[str, Any]:
    """A small run of the detector by its notebook."""
    values = {"more_settings": json.dumps(DETECTOR)}
    return play("02_detect_ai_code", values, "roc_auc>=0.7", "fpr<=0.15", keep=keep)


def live_finetune(keep: Path | None = None) -> dict[str, Any]:
    """A small study by its notebook, whose kernel has no torch."""
    values = {"adapters": "base,r8,qlora-r16", "more_settings": json.dumps(FINETUNE)}
    conditions = ("syntax_accuracy>=0.5", "exact_match>=0.9999")
    check = "import sys\nassert 'torch' not in sys.modules"
    return play("01_finetune_gemma", values, *conditions, keep=keep, check=check)


def headless() -> dict[str, Any]:
    """The notebook on a finished frozen run: its report, and a `--require` that it misses.

    Without "Try it": frozen runs have no weights.
    """
    with place(*frozen_names()) as where:
        cells = cells_of("03_find_clones")
        cells["cells"] = [c for c in cells["cells"] if not c["id"].startswith("try")]
        path = where.root / "03_find_clones.ipynb"
        path.write_text(json.dumps(cells), encoding="utf-8")
        return {"missed": call(where, *notebook(path, {}, "f1>=0.99"))}


def live_cases() -> dict[str, Callable[..., Any]]:
    """Return the cases that train, by name; the tests of the notebooks use their runs too."""
    cases = (live_clones, live_detector, live_finetune)
    return {case.__name__: case for case in cases}
