"""Promise: a merged model is kept only if it answers as its adapter; an export tells no path."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from trained_on_disk import STEP, make_adapter, make_base, point_to, settings, write_run

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError, DataError, RequirementMissed
from nbhelpers.jobs import merge as merging
from nbhelpers.jobs.export import export_folder
from nbhelpers.jobs.merge import merge_adapter
from nbhelpers.runs.run import Run
from nbhelpers.use import model as use_model
from nbhelpers.use.model import export, merge
from nbhelpers.use.trained import Trained, find_trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Callable[..., Path]:
    def make(name: str, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("runs") / name
        write_run(folder, settings(str(base), **changes))
        make_adapter(folder / "checkpoints" / STEP, base)
        point_to(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def lora(make_run: Callable[..., Path]) -> Trained:
    return find_trained(make_run("finetune-r4-1"))


@pytest.fixture(scope="module")
def merged(lora: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, list[str]]:
    out, said = tmp_path_factory.mktemp("merged") / "model", []
    told = merge_adapter(lora, out=out, prompts=None, device="cpu", report=said.append)
    return out, told, said


def test_the_merged_model_agrees_and_its_figures_are_told(merged: tuple) -> None:
    out, told, said = merged
    assert told["top1"] == 1.0 and 0 <= told["kl"] < 1e-6
    assert told["positions"] == 6 * len_of("x = 0") and told["samples"] == 6 and told["held_out"]
    assert told["precision"] == "fp32" and told["training_base"] is None
    assert told["adapter_kl"] > 0.01
    assert told["limits"] == merging.LIMITS["fp32"] and len(said) == 3
    assert told["size_bytes"] == sum(p.stat().st_size for p in out.glob("*.safetensors"))


def len_of(answer: str) -> int:
    """Positions of one text: the prompt's last token and each token of the answer."""
    return 1 + len(answer)  # one token a character: the tokenizer has never seen these words


def test_the_merged_folder_is_a_model_of_its_own(merged: tuple, lora: Trained, base: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = merged[0]
    whole = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    words = AutoTokenizer.from_pretrained(out)
    ids = words("def add(a, b):", return_tensors="pt")["input_ids"]
    before = plain(ids).logits
    assert lora.adapter is not None
    tuned = PeftModel.from_pretrained(plain, lora.adapter)
    assert torch.allclose(whole(ids).logits, tuned(ids).logits, atol=1e-4)
    assert not torch.allclose(whole(ids).logits, before, atol=1e-2)
    told = json.loads((out / "generation_config.json").read_text())
    assert told["eos_token_id"] == words.eos_token_id and told["pad_token_id"] == words.pad_token_id
    assert not out.with_name("model.part").exists()
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # the umask's, for all
    card = ModelCard.load(out / "README.md")
    assert "top-1 agreement 100.00 %" in card.text


def test_a_merged_folder_is_found_and_knows_its_template(merged: tuple) -> None:
    found = find_trained(merged[0])
    assert (found.kind, found.template) == ("merged", "alpaca")
    assert found.settings.max_new_tokens == 8


def test_merging_again_returns_what_was_measured(merged: tuple, lora: Trained) -> None:
    out, told, _ = merged
    before = (out / "model.safetensors").stat().st_mtime_ns

    def again() -> dict[str, Any]:
        return merge_adapter(lora, out=out, prompts=None, device="cpu", report=lambda _: None)

    assert again() == told | {"reused": True}
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    with (out / "model.safetensors").open("ab") as file:
        file.write(b"0")
    try:
        with pytest.raises(ConfigError, match="exists, and is not this merge"):
            again()
    finally:
        with (out / "model.safetensors").open("rb+") as file:
            file.truncate((out / "model.safetensors").stat().st_size - 1)


def test_a_merge_that_does_not_agree_does_not_get_the_name(
    lora: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = merging.fold

    def spoil(model: Any) -> Any:
        whole = fold(model)
        whole.lm_head.weight.data.mul_(1.5)  # the most likely token stays; its probability grows
        return whole

    monkeypatch.setattr(merging, "fold", spoil)
    out = tmp_path / "m"
    with pytest.raises(
        RequirementMissed, match=r"does not agree .*top-1 .*limit 99\.90 %"
    ) as error:
        merge_adapter(lora, out=out, prompts=None, device="cpu", report=lambda _: None)
    assert str(tmp_path / "m.failed") in str(error.value)
    assert not out.exists() and (tmp_path / "m.failed" / "model.safetensors").is_file()
    assert not (tmp_path / "m.part").exists()


def test_a_merge_that_has_lost_the_adapter_is_refused(tmp_path: Path) -> None:
    from nbhelpers.jobs.agreement import Agreement

    found = Agreement(top1=1.0, kl=4e-5, kl_max=1e-3, positions=500)
    facts = {"limits": merging.LIMITS["fp32"], "adapter_kl": 5e-5}
    (tmp_path / "part").mkdir()
    merging.require_agreement(found, facts, tmp_path / "part", tmp_path / "failed")
    with pytest.raises(RequirementMissed, match="the adapter itself changes 3e-05"):
        facts["adapter_kl"] = 3e-5
        merging.require_agreement(found, facts, tmp_path / "part", tmp_path / "failed")
    assert (tmp_path / "failed").is_dir()


def test_qlora_is_merged_into_the_whole_base_and_compared_with_the_4_bit_one(
    make_run: Callable[..., Path], merged: tuple, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    given = find_trained(make_run("finetune-qlora-r4-1", method="qlora"))
    prompts = ["Add two numbers.", "Reverse a list."]
    out = tmp_path / "m"
    told = merge_adapter(given, out=out, prompts=prompts, device="cpu", report=lambda _: None)
    assert told["top1"] == 1.0 and told["kl"] < 1e-6 and not told["held_out"]
    assert told["samples"] == 2 and told["positions"] > 4  # the answers to the prompts as well
    assert told["training_base"]["kl"] > 1e-4  # quantising the base is a change of its own
    ours, theirs = load_file(out / "model.safetensors"), load_file(merged[0] / "model.safetensors")
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)  # no 4-bit rounding
    assert "trained on the base in 4 bits" in (out / "README.md").read_text()


def test_a_tied_model_stays_tied_in_16_bits(
    base: Path, lora: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tied = AutoModelForCausalLM.from_pretrained(base)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(tmp_path / "tied")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "tied")
    source = lora.model_copy(update={"settings": settings(str(tmp_path / "tied"))})
    monkeypatch.setattr(merging, "choose_precision", lambda *_: "bf16")  # as on a GPU
    options = {"prompts": None, "device": "cpu", "report": lambda _: None}
    assert merge_adapter(source, out=tmp_path / "m", **options)["precision"] == "bf16"
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in set(file.keys())
        assert file.get_tensor("model.embed_tokens.weight").dtype == torch.bfloat16


def test_a_merge_is_refused_before_the_base_is_loaded(
    lora: Trained, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("the base was loaded")

    monkeypatch.setattr(merging, "load_trained", never)
    options = {"prompts": None, "device": "cpu", "report": lambda _: None}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="exists, and is not this merge"):
        merge_adapter(lora, out=tmp_path / "full", **options)
    run = shutil.copytree(lora.run, tmp_path / "big")
    told = json.loads((run / "result.json").read_text())
    told["model"]["parameters"] = 10**15
    (run / "result.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=r"needs 38370\d\d\.\d GiB of disk") as error:
        merge_adapter(find_trained(run), out=tmp_path / "new" / "m", **options)
    assert "another disk" in error.value.fix
    plain = find_trained(write_run(tmp_path / "base-run", settings(str(base), method="base")))
    with pytest.raises(ConfigError, match="method=base"):
        merge_adapter(plain, out=tmp_path / "m", **options)


def test_an_adapter_of_no_run_needs_prompts(lora: Trained, base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "alone", base)
    given = find_trained(folder, base=str(base))
    with pytest.raises(ConfigError, match="no texts to measure") as error:
        merge_adapter(given, out=tmp_path / "m", prompts=None, device="cpu", report=lambda _: None)
    assert "prompts=[" in error.value.fix and not (tmp_path / "m.part").exists()


def test_the_exported_folder_has_the_adapter_the_tokenizer_and_a_card(
    lora: Trained, base: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert lora.adapter is not None
    (lora.adapter / "optimizer.pt").write_bytes(b"0")
    told = export_folder(lora, out=tmp_path / "out")
    assert told["url"] is None and told["files"] == sorted(told["files"])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == set(told["files"]) and "optimizer.pt" not in names
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= names
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert PeftModel.from_pretrained(plain, tmp_path / "out").peft_config["default"].r == 4
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<eos>"
    for path in (tmp_path / "out").iterdir():
        if path.suffix in (".json", ".md", ".jinja"):
            assert str(base.parent) not in path.read_text(), path.name
    found = find_trained(tmp_path / "out", base=str(base))
    assert found.template == "alpaca" and found.settings.max_new_tokens == 8
    with pytest.raises(ConfigError, match="names no base model"):
        find_trained(tmp_path / "out")


def test_an_export_replaces_an_earlier_one_and_nothing_else(lora: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(lora, out=out)
    export_folder(lora, out=out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds what is no export of .*notes\.txt"):
        export_folder(lora, out=out)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="exists and holds"):
        export_folder(lora, out=tmp_path / "file")


def test_a_damaged_checkpoint_is_not_exported(lora: Trained, tmp_path: Path) -> None:
    assert lora.run is not None
    run = shutil.copytree(lora.run, tmp_path / "run")
    facts = {"adapter_model.safetensors": {"bytes": 1, "sha256": ""}}
    (run / "checkpoints" / STEP / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="checkpoint is damaged"):
        export_folder(find_trained(run), out=tmp_path / "a")


def test_the_notebook_and_the_shell_reach_both(
    lora: Trained, merged: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    assert lora.run is not None
    with use_model.start_process() as child:  # one for all: another takes seconds to start
        monkeypatch.setattr(use_model, "start_process", lambda *_: nullcontext(child))
        done = merge(Run(lora.run), merged[0], device="cpu")
        out = export(lora.run, tmp_path / "a")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        line = ["nbhelpers", "export", str(lora.run), str(tmp_path / "b"), "--push-to", "me/mine"]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as end:
            app.main()
    assert done.reused and done.path == merged[0] and "top-1 agreement 100.00 %" in repr(done)
    assert "limit 99.90 %" in done._repr_html_()
    assert repr(out) == f"ExportResult({tmp_path / 'a'}, {len(out.files)} files)"
    assert end.value.code == 2 and "needs a token" in capsys.readouterr().err
