"""Which functions of ten packages named runs call from this one: python benchmarks/calls.py.

Every process of a run counts its calls from `nbhelpers` into another package (`sys.setprofile`, set
up by a `sitecustomize` on its path), so runs take some times longer than without. The data set by
its hub id comes from the hub of the tests. Printed is a table in Markdown: run, package, how many
functions and calls, and the public ones that are called most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from datasets import Dataset, DatasetDict

from tests.instruction_rows import ROWS, write_parquet
from tests.local_hub import LocalHub
from tests.parquet_folder import SPLITS, rows_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "torch transformers peft bitsandbytes trl datasets accelerate evaluate ipywidgets papermill"
)
SHOWN = 5  # functions of a package that a row names
HOOK = """
import atexit, json, os, sys, threading
packages, folder = set(os.environ["CALLS_PACKAGES"].split()), os.environ["CALLS_FOLDER"]
counts, ours, names, inside = {}, {}, {}, os.sep + "nbhelpers" + os.sep

def is_ours(code):
    if code not in ours:
        ours[code] = inside in code.co_filename and "site-packages" not in code.co_filename
    return ours[code]

def hook(frame, event, arg):
    if event == "call":
        back = frame.f_back
        if back is None or not is_ours(back.f_code):
            return
        code = frame.f_code
        if code not in names:
            module = frame.f_globals.get("__name__") or ""
            names[code] = module.partition(".")[0] in packages and (module, code.co_qualname)
        name = names[code]
    elif event == "c_call" and is_ours(frame.f_code):
        module = getattr(arg, "__module__", None) or ""
        name = module.partition(".")[0] in packages and (module, arg.__qualname__)
    else:
        return
    if name and not name[1].startswith("<"):
        counts[name] = counts.get(name, 0) + 1

def save():
    sys.setprofile(None)
    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
        json.dump([[*name, n] for name, n in counts.items()], file)

leave = os._exit
os._exit = lambda code: (save(), leave(code))
atexit.register(save)
threading.setprofile(hook)
sys.setprofile(hook)
"""
SMALL = ["epochs=1", "max_train_samples=16", "pretrain_steps=0", "bootstrap_samples=100"]
TEXT = ["valid_samples=4", "eval_samples=4", "evaluate=text", "max_new_tokens=8", "lora_r=4"]
TEXT += ["global_batch_size=4", "per_device_train_batch_size=4"]
PAIRS = ["max_eval_pairs=8", "seq_len=48", "floors=false"]
PICKER = "import nbhelpers as nb; nb.pick_preset('finetune')._ipython_display_()"


def train(job: str, *settings: str) -> list[str]:
    """Return the command of a small run on a CPU."""
    options = [part for setting in (*SMALL, *settings) for part in ("-o", setting)]
    return ["-m", "nbhelpers", "train", job, "--preset", "smoke", "--fresh", *options]


def main() -> None:
    """Make the runs one after another, and print the table."""
    with tempfile.TemporaryDirectory() as name, LocalHub() as hub:
        folder = Path(name)
        write_parquet(folder / "set" / "python" / "train-00000-of-00001.parquet", ROWS)
        write_parquet(folder / "set" / "java" / "train-00000-of-00001.parquet", ROWS)
        hub.add("own/rows", folder / "set")
        parts = {n: Dataset.from_list(rows_of(pairs)) for n, pairs in SPLITS.items()}
        DatasetDict(parts).save_to_disk(folder / "pairs")
        Dataset.from_list(ROWS).save_to_disk(folder / "rows")
        (folder / "sitecustomize.py").write_text(HOOK)
        rows = f"data={folder / 'rows'}"
        more = f"more_settings={json.dumps({'pretrain_steps': 0, 'epochs': 1})}"
        notebook = ["-p", "preset=smoke", "-p", "evaluate=none", "-p", f"run_dir={folder / 'nb'}"]
        notebook = ["notebooks/01_finetune_gemma.ipynb", *notebook, "-p", more]
        runs = {
            "hub id, configuration": train("finetune", *TEXT, "data=own/rows:python"),
            "save_to_disk folder, pairs": train("clones", *PAIRS, f"data={folder / 'pairs'}"),
            "engine=trl": train("finetune", *TEXT, rows, "engine=trl"),
            "qlora": train("finetune", *TEXT, rows, "method=qlora"),
            "two processes": train("clones", *PAIRS, "num_gpus=2", f"data={folder / 'pairs'}"),
            "picker": ["-c", PICKER],
            "notebook, headless": ["-m", "nbhelpers", "run", *notebook],
        }
        environment = os.environ | hub.environment(folder / "cache") | {"OMP_NUM_THREADS": "1"}
        environment |= {"NBHELPERS_CACHE": str(folder / "ours"), "CALLS_PACKAGES": PACKAGES}
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        print("| run | package | functions | calls | most called |\n|---|---|---|---|---|")
        for number, (title, command) in enumerate(runs.items()):
            if sys.argv[1:] and title not in sys.argv[1:]:
                continue
            calls = folder / f"calls-{number}"
            calls.mkdir()
            done = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT if "notebook" in title else folder,
                env=environment | {"CALLS_FOLDER": str(calls)},
                capture_output=True,
                text=True,
                check=False,
            )
            show(title, done, calls)


def show(title: str, done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Print the rows of a run."""
    counts: dict[str, Counter[str]] = {}
    for path in folder.glob("*.json"):
        for module, name, n in json.loads(path.read_text()):
            package, _, rest = module.partition(".")
            name = f"{rest}.{name}".lstrip(".").removesuffix(".__init__")
            counts.setdefault(package, Counter())[name] += n
    if done.returncode:
        print(f"exit {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}", file=sys.stderr)
    title += f" (exit {done.returncode})" if done.returncode else ""
    for package in sorted(counts, key=PACKAGES.split().index):
        public = Counter({k: n for k, n in counts[package].items() if "._" not in f".{k}"})
        most = public.most_common(SHOWN)
        names = ", ".join(f"`{name}` {n:,}" for name, n in most)
        total = counts[package].total()
        print(f"| {title} | {package} | {len(counts[package])} | {total:,} | {names} |", flush=True)


if __name__ == "__main__":
    main()
