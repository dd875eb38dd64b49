"""The golden outputs: what a user sees of frozen run folders, plans, budgets, ids and errors.

`python tests/golden/record.py` computes them anew and says what differs from `expected/`;
`--write` stores them; names of cases restrict both. `tests/test_golden.py` compares each case.
Only what callers keep is used: commands, `nb.<verb>`, notebooks' parameters, files of run folders.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

from tests.golden.live import headless, live_cases
from tests.golden.outputs import (
    CHECKOUT,
    HERE,
    Place,
    call,
    call_raw,
    differences,
    frozen_names,
    lines,
    page,
    place,
)

EXPECTED = HERE / "expected"
LOOSE = 1e-4  # of losses and scores that are computed anew
JOBS = ("clones", "detector", "finetune")
TRAINED = {
    "clones": ("codegpt", "graphcodebert", "codebert"),
    "detector": ("codebert", "graphcodebert", "unixcoder", "codet5", "modernbert", "minilm"),
    "finetune": ("gemma-2-2b", "gemma-2-2b-it", "smollm2"),
}
CARDS = ("t4", "v100-16gb", "l4", "a100-40gb", "a100-80gb", "h100", "rtx6000ada")


def cards_of(preset: Any) -> tuple[str, int]:
    """Return the GPU that a preset is for, and how many; "" for a CPU."""
    return preset.gpu or "", preset.num_target_gpus if preset.gpu else 1


def planned(job: str, name: str, **overrides: Any) -> tuple[Any, Any]:
    """Return a preset as its own GPU gets it, and that hardware."""
    import nbhelpers as nb

    gpu, count = cards_of(nb.load_preset(job, name))
    hardware = nb.plan_hardware(gpu, count) if gpu else nb.detect_hardware()
    return nb.load_preset(job, name, hardware=hardware, overrides=overrides), hardware


def options_of(text: str) -> dict[str, str]:
    """Return the options and arguments of a `--help` with type and default, by their names."""
    found = {}
    for line in text.splitlines():
        row = line.strip("│ \t")
        if not line.startswith("│") or not row:
            continue
        cells = re.split(r" {2,}", row.removeprefix("* ").strip())
        names = [
            c for c in cells if re.fullmatch(r"-{1,2}[\w-]+(?:,?-{1,2}[\w-]+)*|\[?[\w]+\]?", c)
        ]
        default = re.search(r"\[default: ([^\]]*)\]", row)
        kind = next((c for c in cells if re.fullmatch(r"<.*>.*", c)), "")
        required = " required" if "[required]" in row or line.lstrip("│ ").startswith("*") else ""
        if kind or default:
            key = " ".join(names[:2]) if names else cells[0]
            found[key] = f"{kind}{required} = {default[1] if default else ''}".strip()
    return found


def commands(where: Place) -> list[str]:
    """Return the names of all commands, in the order of `--help`."""
    out = call_raw(where, "--help")["out"]
    block = out[out.index("Commands") :]
    return re.findall(r"^│ ([a-z][a-z-]*) {2,}", block, re.MULTILINE)


def help_texts() -> dict[str, Any]:
    """Commands with their options, types and defaults."""
    with place() as where:
        return {
            name: options_of(call_raw(where, name, "--help")["out"]) for name in commands(where)
        }


def listed_presets() -> dict[str, Any]:
    """`presets` and `presets --settings` of each job."""
    with place() as where:
        words = [(job, *extra) for job in JOBS for extra in ((), ("--settings",))]
        return {" ".join(w): call(where, "presets", *w) for w in words}


def settings_and_budgets(job: str) -> dict[str, Any]:
    """Settings, plan and memory of each shipped preset on its GPU, by `nb`'s verbs."""
    import nbhelpers as nb

    found = {}
    with place():
        for name in nb.list_presets(job):
            preset, hardware = planned(job, name)
            plan = nb.plan_batch(preset, hardware)
            budget = nb.predict_memory(preset, plan, hardware)
            found[name] = {
                "settings": preset.settings.model_dump(mode="json"),
                "notes": list(preset.notes),
                "gpu": list(cards_of(preset)),
                "plan": {n: getattr(plan, n) for n in PLAN},
                "budget": memory(budget),
            }
    return found


PLAN = ("world_size", "per_device_train_batch_size", "gradient_accumulation_steps")
PLAN += ("global_batch_size", "is_exact", "use_gpu", "num_nodes", "unit")


def memory(budget: Any) -> dict[str, Any]:
    """Return the numbers of a budget, its verdict and its advice."""
    return {
        "lines": {line.name: line.size_bytes for line in budget.lines},
        "total_bytes": budget.total_bytes,
        "capacity_bytes": budget.capacity_bytes,
        "verdict": budget.verdict,
        "source": budget.source,
        "advice": list(budget.advice),
    }


def plans(job: str) -> dict[str, Any]:
    """`plan` and `budget` of each shipped preset on its GPU: text, times, cost, exit codes."""
    import nbhelpers as nb

    found = {}
    wishes = ("--max-hours", "3", "--price", "1.5", "--currency", "EUR")
    with place() as where:
        for name in nb.list_presets(job):
            gpu, count = cards_of(nb.load_preset(job, name))
            words = (job, "--preset", name, *(("--gpu", gpu, "--count", str(count)) if gpu else ()))
            found[f"plan {name}"] = call(where, "plan", *words, *wishes)
            found[f"budget {name}"] = call(where, "budget", *words, *wishes)
    return found


def budgets_elsewhere(job: str) -> dict[str, Any]:
    """`budget --json` of models and cards that no preset names, in short, with exit codes."""
    found = {}
    with place() as where:
        for card in CARDS:
            for count in (1, 2):
                words = (job, "--gpu", card, "--count", str(count))
                found[" ".join(words)] = short_budget(where, *words)
        for model in TRAINED[job]:
            for card in ("t4", "a100-80gb"):
                words = (job, "--gpu", card, "-o", f"model={model}")
                found[" ".join(words)] = short_budget(where, *words)
        extra = {
            "clones": (("-o", "seq_len=400"), ("-o", "gradient_checkpointing=true")),
            "detector": (("-o", "objective=detect"), ("-o", "seq_len=256")),
            "finetune": (("--method", "qlora"), ("-o", "packing=false"), ("-o", "lora_r=32")),
        }
        large = ("-o", "per_device_train_batch_size=256", "-o", "global_batch_size=256")
        for words in (*extra[job], large):
            line = (job, "--preset", "t4", "--gpu", "t4", *words)
            found[" ".join(line)] = short_budget(where, *line)
        grid = (job, "--preset", "t4", "--gpu", "t4", "--grid")
        found[" ".join(grid)] = call(where, "budget", *grid)
    return found


def short_budget(where: Place, *words: str) -> dict[str, Any]:
    """Return the numbers of `budget --json`, or its error."""
    given = call_raw(where, "budget", *words, "--json")
    try:
        data = json.loads(given["out"])
    except ValueError:
        return call(where, "budget", *words)
    budget, time = data["budget"], data["time"]
    return {
        "code": given["code"],
        "preset": data["preset"],
        "plan": {n: data["plan"][n] for n in PLAN},
        "lines": {line["name"]: line["size_bytes"] for line in budget["lines"]},
        "total_bytes": budget["total_bytes"],
        "capacity_bytes": budget["capacity_bytes"],
        "verdict": budget["verdict"],
        "source": budget["source"],
        "advice": budget["advice"],
        "seconds": [time["low_s"], time["expected_s"], time["high_s"]],
        "time_verdict": time["verdict"],
    }


def launched_id(job: str, settings: dict[str, Any]) -> str:
    """Return the id of the run that `launch` would start or find, without starting it.

    The one deep import of the golden tests: no command tells an id without writing a folder.
    """
    from nbhelpers.runs.identity import run_id

    return run_id(job, settings)


def run_ids() -> dict[str, Any]:
    """The run id of each preset and model on the preset's GPU, and those that launchers print."""
    import nbhelpers as nb

    found: dict[str, Any] = {}
    with place() as where:
        for job in JOBS:
            for name in nb.list_presets(job):
                preset, _ = planned(job, name)
                found[f"{job} {name}"] = launched_id(job, preset.settings.model_dump(mode="json"))
                for model in TRAINED[job] if name != "smoke" else ():
                    other, _ = planned(job, name, model=model)
                    key = f"{job} {name} model={model}"
                    found[key] = launched_id(job, other.settings.model_dump(mode="json"))
            for name in ("smoke", "t4", "h100"):
                words = (job, "--preset", name, "--nodes", "2", "--main-address", "node01")
                out = call(where, "export-launcher", *words, "--run-dir", "prepared")["out"]
                found[f"export-launcher {job} {name}"] = out[0].split()[0]
    return found


def launchers() -> dict[str, Any]:
    """`export-launcher`, `legacy-launcher` and planned studies."""
    with place() as where:
        line = ("export-launcher", "clones", "--nodes", "2", "--main-address", "node01")
        line += ("--run-dir", "@ROOT@/prepared")
        h100 = ("--preset", "h100", "--gpus-per-node", "4")
        found = {
            "smoke": call(where, *line, "--preset", "smoke"),
            "h100": call(where, *line, *h100),
            "slurm": call(
                where, *line, *h100, "--slurm", "-", "--time", "04:00:00", "--partition", "gpu"
            ),
            "prepared": call(where, "runs", "--run-dir", "@ROOT@/prepared"),
            "one": call(where, *line[:2], "--preset", "h100", "--nodes", "1"),
        }
        for row in found["prepared"]["out"][1:]:
            found["status"] = call(where, "stop", row.split()[0], "--run-dir", "@ROOT@/prepared")
        found["prepared"]["out"] = [without_times(row) for row in found["prepared"]["out"]]
        for gpu in ("t4", "a100-40gb", "h100"):
            found[f"study {gpu}"] = call(where, "study", "--plan-only", "--gpu", gpu)
        some = ("--adapters", "base,r8,qlora-r16", "--seeds", "3,4", "--preset", "smoke")
        found["study smoke"] = call(where, "study", "--plan-only", *some)
        return found


def without_times(row: str) -> str:
    """Return a row without the time at which something was made just now."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "@TIME@", row)


def listing() -> dict[str, Any]:
    """What lists, follows and stops runs says of the frozen folders; the log of predictions."""
    import nbhelpers as nb

    names = frozen_names()
    with place(*names, calibration=True) as where:
        found: dict[str, Any] = {
            "runs": call(where, "runs", "--run-dir", "@ROOT@/runs"),
            "calibration": call(where, "calibration"),
            "calibration --runs": call(where, "calibration", "--runs"),
            "list_runs": [[run.id, run.status] for run in nb.list_runs(where.runs)],
        }
        is_told = False
        for name in names:
            # Of a finished run it prints the report, which has a case of its own: one of all.
            is_finished = (where.runs / name / "result.json").is_file()
            if not (is_finished and is_told):
                found[f"follow {name}"] = call(where, "follow", name)
            is_told = is_told or is_finished
            found[f"stop {name}"] = call(where, "stop", name)
        smoke = ("clones", "detector", "finetune")
        for job in smoke:  # from what earlier runs here took
            found[f"plan {job}"] = call(where, "plan", job, "--preset", "smoke")
        pairs = next(where.runs.glob("clones-smoke-0*/predictions.txt"))
        found["score-predictions"] = call(where, "score-predictions", str(pairs), str(pairs))
        return found


def frozen_report(name: str) -> dict[str, Any]:
    """The report of one frozen folder: text and exit code of the command, the page, the tables."""
    import nbhelpers as nb
    from nbhelpers.reports import writing

    job = "finetune" if name.startswith("study-") else name.partition("-")[0]
    names = [n for n in frozen_names() if n.startswith((job, "study-"))]
    with place(*names) as where:
        found, reports, write = {}, [], writing.report

        def keep(*given: Any, **options: Any) -> Any:
            reports.append(write(*given, **options))
            return reports[-1]

        with patch.object(writing, "report", keep):  # drawn once for both
            found["command"] = call(where, "report", name)
        made = reports[-1] if reports else write(where.runs / name, show=False)
        found["text"] = lines(where.mask(made.text))
        found["page"] = page(where, made.path.read_text("utf-8"))
        found["is_same_page"] = page(where, made.html) == [
            entry for entry in found["page"] if "title" not in entry
        ]
        found["tables"] = {
            key: [list(map(str, t.columns)), len(t)] for key, t in made.tables.items()
        }
        found["plots"] = sorted(made.plots)
        found["files"] = sorted(p.name for p in (where.runs / name).iterdir() if p.is_file())
        if not name.startswith("study-"):
            found["run"] = of_run(where, nb.open_run(name, where.runs))
        return found


def of_run(where: Place, run: Any) -> dict[str, Any]:
    """Return the status, and what `nb.follow` says of a run."""
    import io

    import nbhelpers as nb

    stream, ended = io.StringIO(), "result"
    try:
        nb.follow(run, stream=stream)
    except nb.NbhelpersError as error:
        ended = where.mask(f"{type(error).__name__} {error.exit_code}: {error.message}")
    return {
        "status": run.status,
        "follow": ended,
        "watched": lines(where.mask(stream.getvalue())),
    }


def notebooks() -> dict[str, Any]:
    """Names and defaults of the notebooks' parameters, and their cells' order by id."""
    found = {}
    for path in sorted((CHECKOUT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
        assigned = [node for c in tagged for node in ast.parse("".join(c["source"])).body]
        found[path.name] = {
            node.targets[0].id: ast.unparse(node.value)
            for node in assigned
            if isinstance(node, ast.Assign)
        }
    return found


WRONG = {
    "unknown command": ("trian", "clones"),
    "unknown job": ("plan", "clone"),
    "unknown preset": ("plan", "clones", "--preset", "t5"),
    "unknown gpu": ("plan", "clones", "--gpu", "t5"),
    "count without gpu": ("plan", "clones", "--count", "2"),
    "unknown key": ("plan", "clones", "--preset", "smoke", "-o", "epoch=2"),
    "wrong type": ("plan", "clones", "--preset", "smoke", "-o", "epochs=many"),
    "out of range": ("plan", "clones", "--preset", "smoke", "-o", "epochs=-1"),
    "twice": ("plan", "clones", "--preset", "smoke", "-o", "epochs=1", "-o", "epochs=2"),
    "no assignment": ("plan", "clones", "--preset", "smoke", "-o", "epochs"),
    "uneven split": (
        "plan",
        "clones",
        "--preset",
        "t4",
        "--gpu",
        "t4",
        "-o",
        "global_batch_size=7",
    ),
    "gpu preset without gpu": ("train", "clones", "--preset", "t4"),
    "two jobs": ("budget", "clones", "--job", "detector"),
    "does not fit": (
        *("budget", "finetune", "--preset", "t4", "--gpu", "t4"),
        *("-o", "per_device_train_batch_size=64", "-o", "global_batch_size=64"),
    ),
    "price below zero": ("budget", "clones", "--preset", "smoke", "--price", "-1"),
    "unknown run": ("report", "clones-smoke-0000000000"),
    "unknown folder": ("report", "nowhere/at/all"),
    "follow a study": ("follow", "@STUDY@"),
    "ask a study": ("ask", "@STUDY@", "Write a function."),
    "damaged result": ("report", "damaged"),
    "no result": ("report", "resultless"),
    "damaged record": ("report", "recordless"),
    "damaged study": ("report", "study-damaged"),
    "evaluate nothing": ("evaluate", "clones"),
    "evaluate another job": ("evaluate", "detector", "--run", "@CLONES@"),
    "evaluate without weights": ("evaluate", "clones", "--checkpoint", "nowhere.bin"),
    "run no notebook": ("run", "nothing.ipynb"),
    "run with -o": ("run", "@CODE@/notebooks/03_find_clones.ipynb", "-o", "epochs=1"),
    "run unknown parameter": ("run", "@CODE@/notebooks/03_find_clones.ipynb", "-p", "epoch=1"),
    "run odd requirement": (
        *("run", "@CODE@/notebooks/03_find_clones.ipynb"),
        *("--require", "f2>=0.5"),
    ),
    "run unreadable requirement": (
        "run",
        "@CODE@/notebooks/03_find_clones.ipynb",
        "--require",
        "f1",
    ),
    "study unknown adapter": ("study", "--preset", "smoke", "--adapters", "r16,s8", "--plan-only"),
    "study gpu without plan": ("study", "--gpu", "t4"),
    "audit nothing": ("audit", "nowhere.jsonl"),
    "detect nothing": ("detect", "nowhere", "--model", "nothing"),
    "missing argument": ("plan",),
    "unknown option": ("plan", "clones", "--gpus", "t4"),
    "launcher for one": ("export-launcher", "clones", "--preset", "h100", "--nodes", "1"),
}


def wrong_uses() -> dict[str, Any]:
    """Exit code and first line of the error of a wrong use of each kind."""
    names = frozen_names()
    study = next(name for name in names if name.startswith("study-"))
    clones = next(name for name in names if name.startswith("clones-smoke-0"))
    with place(*names) as where:
        for name in ("damaged", "resultless", "recordless"):
            shutil.copytree(where.runs / clones, where.runs / name)
        text = (where.runs / "damaged" / "result.json").read_text()
        (where.runs / "damaged" / "result.json").write_text(text[: len(text) // 2])
        (where.runs / "resultless" / "result.json").unlink()
        (where.runs / "recordless" / "run.json").write_text("{")
        (where.runs / "study-damaged").mkdir()
        (where.runs / "study-damaged" / "study.json").write_text('{"runs": 3}')
        marks = {"@STUDY@": study, "@CLONES@": clones, "@CODE@": str(CHECKOUT)}
        found = {}
        for name, words in WRONG.items():
            line = "\0".join(words)
            for mark, value in marks.items():
                line = line.replace(mark, value)
            given = call(where, *line.split("\0"))
            found[name] = {"code": given["code"], "error": given.get("error", "")}
            if not given["code"]:
                found[name]["out"] = given["out"]
        return found


def cases() -> dict[str, Callable[[], Any]]:
    """Return every quick case by its name, which is also the name of its file."""
    found: dict[str, Callable[[], Any]] = {
        "help": help_texts,
        "presets": listed_presets,
        "run_ids": run_ids,
        "launchers": launchers,
        "listing": listing,
        "notebooks": notebooks,
        "wrong_uses": wrong_uses,
        "headless": headless,
    }
    for job in JOBS:
        found[f"settings_{job}"] = lambda job=job: settings_and_budgets(job)
        found[f"plans_{job}"] = lambda job=job: plans(job)
        found[f"budgets_{job}"] = lambda job=job: budgets_elsewhere(job)
    for name in frozen_names():
        found[f"report_{name}"] = lambda name=name: frozen_report(name)
    return found


def load(name: str) -> Any:
    """Return the stored outputs of a case; None where none are stored."""
    path = EXPECTED / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def compare(name: str, found: object, tolerance: float = 1e-9) -> None:
    """Require the stored outputs of a case; new runs are compared with `LOOSE`."""
    expected = load(name)
    assert expected is not None, f"nothing is stored: python tests/golden/record.py --write {name}"
    changes = differences(expected, json.loads(json.dumps(found)), tolerance=tolerance)
    assert not changes, f"{len(changes)} differences in {name}:\n" + "\n".join(changes[:40])


def store(name: str, value: Any) -> None:
    """Store the outputs of a case."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    (EXPECTED / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> int:
    """Compare, or store with `--write`; return 1 where something differs."""
    import time

    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    every = cases() | (live_cases() if "--live" in sys.argv else {})
    code = 0
    for name, compute in every.items():
        if names and not any(name.startswith(each) for each in names):
            continue
        began = time.monotonic()
        value = json.loads(json.dumps(compute()))
        took = f"{time.monotonic() - began:.1f} s"
        if "--write" in sys.argv:
            store(name, value)
            print(f"{name}: written ({took})", flush=True)  # noqa: T201
            continue
        changes = differences(load(name), value, tolerance=LOOSE if "live" in name else 1e-9)
        code = 1 if changes else code
        print(f"{name}: {len(changes)} differences ({took})", *changes, sep="\n", flush=True)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
