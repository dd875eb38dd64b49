"""Promise: exported folders are opened by other libraries, equal, or refuse; nothing is random."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detector_folder import make_detector, make_run
from job_runs import prepare
from trained_on_disk import make_adapter, make_base, settings, write_run

from nbhelpers.data import load_clone_data
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.agreement import find_programs
from nbhelpers.jobs.checkpoint import save_checkpoint
from nbhelpers.jobs.export import export_folder
from nbhelpers.jobs.load import load_clones, load_detector, load_trained
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.encoders import build_clone_model, build_tokenizer
from nbhelpers.jobs.models.encoding import hidden_states
from nbhelpers.jobs.open_forms import encoder_inputs
from nbhelpers.presets.preset import Preset
from nbhelpers.use.trained import find_any

pytestmark = pytest.mark.slow
DETECTORS = {
    "mean": ("roberta", {}),
    "rarity": ("roberta", {"similarity_pooling": "rarity"}),
    "both": ("bert", {"pooling": "mean_max"}),
    "first": ("modernbert", {"pooling": "first", "objective": "similar"}),
    "detect": ("roberta", {"objective": "detect"}),
    "t5": ("t5", {"similarity_pooling": "rarity"}),
}
CLONES = ("smoke", "smoke-graphcodebert")
CODES = [*find_programs()[::4], "int  f() {\r\n\treturn 1; }\n" * 9, "a </s> b <s>"]


def make_clones(folder: Path, name: str) -> Path:
    """Write a run with one checkpoint of random weights; return its folder."""
    run, data = prepare("clones", folder, model=name), load_clone_data("smoke")
    wanted: Any = Preset.from_dict(run.read_json()["preset"]).settings
    torch.manual_seed(1)
    words = build_tokenizer(wanted, data.functions[:40])
    model: CloneModel = build_clone_model(wanted, words)
    save_checkpoint(
        run.checkpoints_path,
        step=1,
        model_state=model.state_dict(),
        optimizer_state={},
        state={},
        extra=lambda part: words.save(part, "nbhelpers_clones"),
        is_best=True,
        keep=1,
    )
    return run.path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("forms")
    runs = {name: make_run(root / name, how, **o) for name, (how, o) in DETECTORS.items()}
    runs |= {name: make_clones(root / "clones", name) for name in CLONES}
    for name, run in runs.items():
        export_folder(find_any(run), out=root / "out" / name)
    return {name: root / "out" / name for name in runs} | {"run": runs["smoke"]}


@pytest.fixture(scope="module")
def jobs(folders: dict[str, Path]) -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    """What is opened, and what it must give."""
    jobs = {}
    for name in DETECTORS:
        loaded, expected = load_detector(folders[name]), []
        table = loaded.table(CODES)
        bucket = table.bucket(np.arange(len(CODES)), int(table.lengths.max()))
        mask = (torch.arange(bucket.ids.shape[1]) <= bucket.last[:, None]).long()
        inputs = {"input_ids": bucket.ids.tolist(), "attention_mask": mask.tolist()}
        logits, vectors = loaded.score(CODES, batch_size=len(CODES))
        expected += [logits] if loaded.model.classifier is not None else []
        expected += [vectors.ravel()] if loaded.model.projector is not None else []
        job = {"folder": str(folders[name]), "how": "trust", "inputs": inputs}
        jobs[name] = job, np.concatenate(expected)
        jobs |= encoder_job(folders[name], f"{name} encoder", loaded.model.encoder, bucket)
        if name not in ("t5", "detect"):
            job = {"folder": str(folders[name]), "how": "sentences", "codes": CODES, "inputs": {}}
            jobs[f"{name} sentences"] = job, vectors
    for name in CLONES:
        loaded = load_clones(find_any(folders[name]))
        codes = ["int f(int a) { int b = a; return b; }", "int g() { return 1; }"] * 2
        table, _ = loaded.table(codes, "java")
        tensors = encoder_inputs(table, np.arange(4), loaded.model.encoder.config)
        names = ("input_ids", "attention_mask", "position_ids")
        inputs = {n: x.unflatten(0, (2, 2)).tolist() for n, x in zip(names, tensors, strict=False)}
        states, _ = loaded.encode(codes, ["java"] * 4)
        with torch.inference_mode():
            logits = loaded.model.classifier(states.view(2, -1))
        job = {"folder": str(folders[name]), "how": "trust", "inputs": inputs}
        jobs[name] = job, torch.cat([logits.flatten(), states.flatten()]).numpy()
        bucket = loaded.texts(codes)[1].bucket(np.arange(4), 64)
        jobs |= encoder_job(folders[name], f"{name} encoder", loaded.model.encoder, bucket)
    return jobs | {"adapter": adapter_job(folders["run"].parent / "adapter")}


def encoder_job(folder: Path, name: str, encoder: Any, bucket: Any) -> dict[str, Any]:
    if encoder.config.model_type == "t5":
        return {}
    mask = (torch.arange(bucket.ids.shape[1]) <= bucket.last[:, None]).long()
    inputs = {"input_ids": bucket.ids.tolist(), "attention_mask": mask.tolist()}
    with torch.inference_mode():
        states = hidden_states(encoder, bucket) * mask[..., None]
    job = {"folder": str(folder / "encoder"), "how": "encoder", "inputs": inputs}
    return {name: (job, states.numpy())}


def adapter_job(root: Path) -> tuple[dict[str, Any], np.ndarray]:
    base = make_base(root / "base")
    run = write_run(root / "finetune-r4-1", settings(str(base)))
    make_adapter(run / "checkpoints" / "step-00000001", base)
    trained: Any = find_any(run / "checkpoints" / "step-00000001")
    export_folder(trained, out=root / "out")
    loaded = load_trained(trained, device=torch.device("cpu"), quantised=False)
    ids = [[5, 6, 7, 8]]
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor(ids)).logits.numpy()
    job = {"folder": str(root / "out"), "base": str(base), "how": "peft"}
    return job | {"inputs": {"input_ids": ids}}, logits


@pytest.fixture(scope="module")
def alone(
    folders: dict[str, Path], jobs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """What all of it gives where nbhelpers cannot be imported."""
    root = tmp_path_factory.mktemp("alone")
    nothing = {"inputs": {}, "how": "plain"}
    refused = {f"refused {name}": {"folder": str(folders[name]), **nothing} for name in CLONES}
    refused |= {f"refused {n}": {"folder": str(folders[n]), **nothing} for n in DETECTORS}
    step = folders["run"] / "checkpoints" / "step-00000001"
    refused |= {"refused run": {"folder": str(step), **nothing}}
    wanted = {n: j for n, (j, _) in jobs.items() if j["how"] != "sentences" or _has_package()}
    listed = [{"name": name, **job} for name, job in (wanted | refused).items()]
    (root / "jobs.json").write_text(json.dumps(listed))
    script = Path(__file__).parent / "open_alone.py"
    line = [sys.executable, str(script), str(root / "jobs.json"), str(root / "out.npz")]
    environment = os.environ | {"HF_MODULES_CACHE": str(root / "modules"), "PYTHONPATH": ""}
    done = subprocess.run(
        line, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "newly initialized" not in done.stderr and "MISSING" not in done.stderr, done.stderr
    with np.load(root / "out.npz") as saved:
        return dict(saved)


def _has_package() -> bool:
    return find_spec("sentence_transformers") is not None


ENCODERS = [f"{name} encoder" for name in (*DETECTORS, *CLONES) if name != "t5"]


@pytest.mark.parametrize("name", [*DETECTORS, *CLONES, *ENCODERS, "adapter"])
def test_a_model_gives_equal_numbers_without_this_package(
    name: str, jobs: dict[str, Any], alone: dict[str, np.ndarray]
) -> None:
    expected = jobs[name][1]
    assert alone[name].dtype.kind == "f", alone[name]
    np.testing.assert_allclose(alone[name].reshape(expected.shape), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not _has_package(), reason="pip install --no-deps sentence-transformers")
@pytest.mark.parametrize("name", ["mean", "rarity", "both", "first"])
def test_the_similarity_space_is_a_sentence_transformers_model(
    name: str, jobs: dict[str, Any], alone: dict[str, np.ndarray]
) -> None:
    np.testing.assert_allclose(alone[f"{name} sentences"], jobs[f"{name} sentences"][1], atol=1e-6)


@pytest.mark.parametrize("name", [*DETECTORS, *CLONES, "run"])
def test_without_its_code_a_whole_model_is_refused(name: str, alone: dict[str, np.ndarray]) -> None:
    said = str(alone[f"refused {name}"])
    assert "trust_remote_code=True" in said or "does not recognize this architecture" in said, said


def test_every_form_is_measured_and_what_is_left_out_is_told(folders: dict[str, Path]) -> None:
    told = {n: json.loads((folders[n] / "nbhelpers.json").read_text()) for n in DETECTORS}
    forms = {n: [row["form"] for row in each["agreement"]] for n, each in told.items()}
    whole = ["safetensors", "modeling_nbhelpers"]
    assert forms["rarity"] == [*whole, "sentence-transformers", "encoder"]
    assert forms["detect"] == [*whole, "encoder"] and forms["t5"] == whole
    assert "without a similarity space" in told["detect"]["left_out"]["sentence-transformers"]
    assert "decoder with random weights" in told["t5"]["left_out"]["encoder"]
    for name in CLONES:
        told = json.loads((folders[name] / "nbhelpers.json").read_text())
        assert [row["form"] for row in told["agreement"]] == [*whole, "encoder"]
        assert max(row["vector"] for row in told["agreement"]) < 1e-5
        card = (folders[name] / "README.md").read_text()
        assert "no score is known" in card and "clones-of" in card


def test_the_logits_of_a_summed_score_are_said_to_be_one_member(tmp_path: Path) -> None:
    run = make_run(tmp_path / "summed")
    result = json.loads((run / "result.json").read_text())
    result["score"] = {"uses": "stack"}
    (run / "result.json").write_text(json.dumps(result))
    export_folder(find_any(run), out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["member"] == "encoder"
    assert "one member of the score" in (tmp_path / "out" / "README.md").read_text()


def test_a_whole_model_of_earlier_is_no_encoder_to_train_from(tmp_path: Path) -> None:
    folder = make_detector(tmp_path / "earlier")  # its config.json is that of a RoBERTa
    run = prepare("clones", tmp_path / "runs", model=str(folder), seq_len=40)
    wanted: Any = Preset.from_dict(run.read_json()["preset"]).settings
    with pytest.raises(
        ConfigError, match=r"lack \d+ tensors of the encoder .* stay random"
    ) as error:
        build_clone_model(wanted, build_tokenizer(wanted, []))
    assert "nbhelpers export" in error.value.fix


@pytest.mark.parametrize("name", ["mean", "smoke"])
def test_the_card_says_how_equal_each_form_is(folders: dict[str, Path], name: str) -> None:
    card = (folders[name] / "README.md").read_text()
    told = json.loads((folders[name] / "nbhelpers.json").read_text())
    assert "## Agreement of this folder with the trained model" in card
    assert "Not measured" not in card.split("## Agreement of this folder")[1]
    assert all(f"| {row['form']} |" in card for row in told["agreement"])
