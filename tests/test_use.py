"""Promise: what a run trained can be asked without torch in the notebook, and it is the model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trained_on_disk import STEP, make_adapter, make_base, point_to, settings, write_run

from nbhelpers.common.processes import start_time
from nbhelpers.errors import ConfigError, DataError, HardwareError, Killed
from nbhelpers.notebook.ask import AskBox, AskFields
from nbhelpers.use import model_process
from nbhelpers.use.model import LoadedModel, load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "base", positions=4096)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finetune-r4-1"
    write_run(folder, settings(str(base)))
    make_adapter(folder / "checkpoints" / STEP, base)
    point_to(folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Iterator[LoadedModel]:
    with load(run, device="cpu") as found:
        yield found


def test_it_says_what_it_is_and_that_the_adapter_was_checked(model: LoadedModel) -> None:
    assert repr(model).startswith("LoadedModel(finetune-r4-1: r4 on ")
    assert repr(model).endswith("cpu, fp32, open)") and "\n" not in repr(model)
    check = model.facts["check"]
    assert (check["tensors"], check["modules"], check["zero_b"]) == (28, 14, 0)
    assert check["logit_difference"] > 0.01
    assert "28 tensors on 14 layers" in model._repr_html_()


def test_one_prompt_gives_a_text_and_a_list_gives_a_list(model: LoadedModel) -> None:
    one = model.ask("Add two numbers.")
    many = model.ask(["Add two numbers.", "Reverse a list, then sort it."], max_new_tokens=8)
    assert isinstance(one, str) and len(many) == 2
    assert many[0] == one  # padding on the left changes nothing
    assert model.ask([]) == []


def test_the_template_of_the_run_is_applied_unless_raw(model: LoadedModel) -> None:
    from nbhelpers.data.templates import render_question

    dressed = render_question("Add.", "", "alpaca")
    assert model.ask("Add.") == model.ask(dressed, raw=True) != model.ask("Add.", raw=True)


def test_a_system_text_stands_before_the_instruction(model: LoadedModel) -> None:
    from nbhelpers.data.templates import render_question

    dressed = render_question("Be brief.\n\nAdd.", "", "alpaca")
    answer = model.ask("Add.", system="Be brief.")
    assert answer == model.ask(dressed, raw=True) != model.ask("Add.")
    assert model.compare("Add.", system="Be brief.").tuned == (answer,)


def test_sampling_is_repeated_by_its_seed(model: LoadedModel) -> None:
    def draw(seed: int) -> str:
        return model.ask("Add.", temperature=1.5, seed=seed, max_new_tokens=30)

    assert draw(1) == draw(1) != draw(2)


def test_compare_shows_the_base_without_the_adapter(model: LoadedModel, base: Path) -> None:
    told = model.compare("Add.", max_new_tokens=12)
    assert told.tuned[0] == model.ask("Add.", max_new_tokens=12) != told.base[0]
    assert told.changed == 1 and "--- tuned" in told.text() and "<table" in told._repr_html_()
    answer = _by_transformers(base, "Add.", 12)
    assert told.base[0] == answer


def test_a_box_shows_answers_as_they_come_and_asks_again_without_loading(
    model: LoadedModel,
) -> None:
    import ipywidgets

    shown: list[tuple[str, str]] = []
    box = AskBox(model, prompt="Add two numbers.")
    answer = box.ask(lambda name, text: shown.append((name, text)))
    names = [name for name, _ in shown]
    assert names == sorted(names) and set(names) == {"base", "tuned"}
    assert shown[-1] == ("tuned", answer.tuned[0]) and len(shown) > 2
    process, fields = model.child.process.pid, AskFields(box)
    for prompt in ("Reverse a list.", "Count the words."):
        fields.fields["prompt"].value = prompt
        fields.button.click()
        assert box.answer.prompts == (prompt,)
        assert "answered in" in fields.page.value and not fields.button.disabled
    fields.fields["prompt"].value = " "
    fields.button.click()
    assert "role='alert'" in fields.page.value and isinstance(fields.page, ipywidgets.HTML)
    assert model.child.process.pid == process


def _by_transformers(base: Path, prompt: str, limit: int) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nbhelpers.data.templates import render_question

    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    words = AutoTokenizer.from_pretrained(base)
    enc = words(render_question(prompt, "", "alpaca"), return_tensors="pt")
    enc.pop("token_type_ids", None)
    ids = plain.generate(**enc, max_new_tokens=limit, do_sample=False)[0]
    return words.decode(ids[enc["input_ids"].shape[1] :], skip_special_tokens=True)


def test_wrong_arguments_are_named_before_the_model_is_asked(model: LoadedModel) -> None:
    for options, words in (
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"system": None}, "system=None"),
        ({"system": "Be brief.", "raw": True}, "raw and system"),
    ):
        with pytest.raises(ConfigError) as error:
            model.ask("x", **options)
        assert words in error.value.fix
    for prompt in ("", " ", ["x", 3]):
        with pytest.raises(ConfigError, match="A prompt"):
            model.ask(prompt)
    with pytest.raises(ConfigError, match="more than the model's 4096 positions") as error:
        model.ask("word " * 50, max_new_tokens=4090)
    assert "max_new_tokens to at most" in error.value.fix


def test_an_interrupt_stops_a_long_answer_and_the_model_goes_on(model: LoadedModel) -> None:
    child = model.child
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model.ask(["Go on."] * 300, temperature=5.0, seed=3, max_new_tokens=3900)
    timer.join()
    assert time.monotonic() - began < 60  # the whole answer takes many minutes
    assert model.ask("Add.") and model.child is child and child is not None and child.is_alive
    with pytest.raises(Killed, match=r"timeout_s=0\.5"):
        model.ask(["Go on."] * 300, temperature=5.0, seed=3, timeout_s=0.5, max_new_tokens=3900)
    assert model.ask("Add.") and model.child is child


@pytest.fixture
def attach(base: Path):
    """Put an adapter on the base in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nbhelpers.jobs.load import attach

    def put(folder: Path) -> object:
        plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
        return attach(plain, folder, AutoTokenizer.from_pretrained(base))[1]

    return put


def test_an_adapter_that_does_nothing_is_an_error(attach, base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "zero", base, scale=0.0)
    with pytest.raises(DataError, match=r"does nothing: all 14 of its B matrices are zero"):
        attach(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    shutil.rmtree(folder)
    make_adapter(folder, base)
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 0}))
    with pytest.raises(DataError, match="logits with and without it are equal"):
        attach(folder)


def test_tensors_without_a_place_and_places_without_a_tensor_are_counted(
    attach, base: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_adapter(tmp_path / "x", base)
    weights, config_file = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    sound, config = load_file(weights), json.loads(config_file.read_text())
    renamed = {name.replace("layers.1", "layers.9"): t for name, t in sound.items()}
    save_file(renamed, weights)
    with pytest.raises(DataError, match=r"of 28 tensors in the file, 14 have a place: 14 without"):
        attach(folder)
    save_file({n: t for n, t in sound.items() if "q_proj" not in n}, weights)
    with pytest.raises(DataError, match=r"24 have a place: 4 missing \(.*q_proj"):
        attach(folder)
    save_file(sound, weights)
    config_file.write_text(json.dumps(config | {"r": 8}))
    with pytest.raises(DataError, match="28 of another shape"):
        attach(folder)
    config_file.write_text(json.dumps(config | {"target_modules": ["c_attn"]}))
    with pytest.raises(DataError, match="does not fit the model"):
        attach(folder)
    config_file.write_text(json.dumps(config))
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(DataError, match="cannot be read as an adapter"):
        attach(folder)
    name = next(iter(sound))
    sound[name][0, 0] = float("nan")
    save_file(sound, weights)
    with pytest.raises(DataError, match="NaN or infinity in 1 tensors"):
        attach(folder)


def test_a_damaged_checkpoint_is_not_loaded(attach, base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "step-00000001", base)
    facts = {"adapter_model.safetensors": {"bytes": 1, "sha256": "0"}}
    (folder / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="checkpoint is damaged"):
        attach(folder)


def test_some_zero_b_are_counted_not_refused(attach, base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_adapter(tmp_path / "x", base)
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if "layers.0" in name and "lora_B" in name:
            tensor.zero_()
    save_file(tensors, weights)
    assert attach(folder).zero_b == 7


def test_a_qlora_run_is_loaded_in_4_bits(base: Path, run: Path) -> None:
    import torch

    from nbhelpers.jobs.load import load_trained
    from nbhelpers.use.trained import Trained, find_trained

    known = find_trained(run)
    four = Trained.from_dict(
        known.to_dict() | {"settings": settings(str(base), method="qlora").model_dump()}
    )
    loaded = load_trained(four, device=torch.device("cpu"), quantised=True)
    kinds = {type(m).__name__ for m in loaded.model.modules()}
    assert "Linear4bit" in kinds and loaded.check is not None
    assert loaded.check.logit_difference > 0


COMMAND = """
import sys
from nbhelpers.cli import app
try:
    app.main()
finally:
    assert not {"torch", "transformers", "numpy"} & set(sys.modules)
"""


def test_the_command_asks_and_compares_without_torch_of_its_own(
    run: Path, model: LoadedModel
) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", COMMAND, *words, "--run-dir", str(run.parent)]
        return subprocess.run(line, capture_output=True, text=True)

    done = command("ask", run.name, "Add.", "--compare", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == model.compare("Add.").text().strip()
    assert "--- base" in done.stdout
    done = command("ask", "finetune-r4-2", "x")
    assert done.returncode == 2 and "Did you mean finetune-r4-1" in done.stderr


# From here on the process of `model` is lost.


def test_a_killed_process_is_told_and_loaded_anew_at_the_next_question(model: LoadedModel) -> None:
    before = model.ask("Add.")
    assert model.child is not None
    os.kill(model.child.process.pid, signal.SIGSTOP)
    killer = threading.Timer(0.3, model.child.process.kill)
    killer.start()
    with pytest.raises(Killed, match=r"ended during `ask`: it was killed") as error:
        model.ask("Add.")
    killer.join()
    assert "want of memory" in error.value.fix
    assert model.ask("Add.") == before


def test_a_closed_model_leaves_no_process(
    run: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.ask("Add.")  # its process loads another model: a new one takes seconds to start
    monkeypatch.setattr(model_process, "start_process", lambda _: model.child)
    with load(run, device="cpu", adapter=False) as found:
        assert found.child is not None
        pid = found.child.process.pid
        with pytest.raises(ConfigError, match="adapter=False: there is nothing to compare"):
            found.compare("x")
        assert "adapter left out" in repr(found)
    assert start_time(pid) is None and repr(found).endswith("closed)")
    with pytest.raises(ConfigError, match="closed") as error:
        found.ask("x")
    assert "Try it" in error.value.fix and "load(RUN)" in error.value.fix


def test_a_gpu_that_is_not_there_is_named(run: Path) -> None:
    import torch

    from nbhelpers.jobs.load import choose_device

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(HardwareError, match=r"torch .* sees no GPU"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="device='gpu'"):
        load(run, device="gpu")


@pytest.mark.gpu
def test_closing_gives_the_gpu_all_its_memory_back(run: Path) -> None:
    from nbhelpers.hardware.detection import detect_hardware

    def free_mib() -> float:
        gpu = detect_hardware().gpu
        assert gpu is not None
        return gpu.memory_free_bytes / 2**20

    before = free_mib()
    with load(run, device="cuda") as found:
        assert found.facts["memory_bytes"] > 0 and found.ask("Add.")
        assert before - free_mib() > 100  # the context of CUDA at least
    assert before - free_mib() < 50
