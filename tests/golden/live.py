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
FINETUNE = SMALL | {"max_train_samples": 96, "valid_samples": 12, "eval_samples": 10, "epochs": 2}
FINETUNE |= {"max_new_tokens": 24, "save_steps": 5}
# What depends on the machine, the time or the libraries: only its keys and types are compared.
VARIES = re.compile(
    r"(^t$|_s$|_seconds$|seconds|per_s|_at$|time|timing|speed|rss|pid|host|version|hardware|memory|"
    r"bytes|launch_id|utilis|percent_of|command|git_commit|launched_by|run_path|environment)"
)


def options(values: dict[str, Any]) -> list[str]:
    """Return settings as words of a command."""
    return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]


def events_of(folder: Path) -> dict[str, Any]:
    """Return the events of each file: kinds with their keys in order, and the steps' numbers.

    Progress comes by the clock: only its names and totals are kept, each once.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("events-*.jsonl")):
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
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


def of_folder(where: Place, folder: Path) -> dict[str, Any]:
    """Return what is the same each time of a finished run's folder."""
    result = json.loads(where.mask((folder / "result.json").read_text("utf-8")))
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {"files": files, "events": events_of(folder), "result": settled(result)}


def live(job: str, words: list[str], *after: tuple[str, ...]) -> dict[str, Any]:
    """Train, then call further commands on the runs (`@RUN@` is the last)."""
    with place() as where:
        found: dict[str, Any] = {"code": call(where, *words, "--run-dir", "@ROOT@/runs")["code"]}
        runs = sorted(path.parent for path in where.runs.glob("*/result.json"))
        for run in runs:
            found[run.name] = of_folder(where, run)
        for line in after:
            filled = [word.replace("@RUN@", str(runs[-1])) for word in line]
            given = call(where, *filled)
            found[" ".join(line[:2])] = {n: given[n] for n in ("code", "error") if n in given}
        found["made"] = sorted(
            p.relative_to(where.root).as_posix()
            for p in where.root.glob("made/**/*")
            if p.is_file()
        )
        return found


def live_clones() -> dict[str, Any]:
    """A small run of the clone detector; its checkpoint evaluated; the weights exported."""
    words = ["train", "clones", "--preset", "smoke", *options(CLONES)]
    return live("clones", words, ("evaluate", "clones", "--run", "@RUN@"))


def live_detector() -> dict[str, Any]:
    """A small run of the detector; it scores and exports."""
    words = ["train", "detector", "--preset", "smoke", *options(DETECTOR)]
    return live("detector", words, ("export", "@RUN@", "made/detector"))


def live_finetune() -> dict[str, Any]:
    """A small study of base and r8; the adapter answers, is exported and merged."""
    words = ["study", "--preset", "smoke", "--adapters", "base,r8", *options(FINETUNE)]
    return live("finetune", words, ("export", "@RUN@", "made/adapter"))


def headless() -> dict[str, Any]:
    """Notebooks run on finished frozen runs: reports, and `--require` met and missed."""
    found = {}
    with place(*frozen_names()) as where:
        for name, notebook, parameters, condition in (
            ("met", "03_find_clones", {}, "f1>=0.5"),
            ("missed", "03_find_clones", {}, "f1>=0.99"),
            ("detector", "02_detect_ai_code", {}, "roc_auc>=0.999"),
            (
                "study",
                "01_finetune_gemma",
                {"adapters": "base,r8,r16,qlora-r16"},
                "exact_match>=0.99",
            ),
        ):
            values = {"preset": "smoke", "run_dir": str(where.runs)} | parameters
            words = [word for n, v in values.items() for word in ("-p", f"{n}={v}")]
            path = str(CHECKOUT / "notebooks" / f"{notebook}.ipynb")
            line = ["run", path, *words, "--resume", "--require", condition]
            found[name] = call(where, *line, "--output", f"@ROOT@/{name}.ipynb")
    return found


def live_cases() -> dict[str, Callable[[], Any]]:
    """Return the slow cases by name."""
    return {
        "live_clones": live_clones,
        "live_detector": live_detector,
        "live_finetune": live_finetune,
        "live_headless": headless,
    }
