"""Promise: a detector's card tells its figures with their floors, and what they do not allow."""

from __future__ import annotations

import re
from typing import Any

import pytest
from detector_on_disk import result
from huggingface_hub import ModelCard

from nbhelpers.common.result_files import Result
from nbhelpers.jobs.cards import detector_card
from nbhelpers.jobs.public import public_result
from nbhelpers.use.facts import NO_EVIDENCE

DETECTOR = {"objective": "both", "pooling": "mean", "canonical": "text", "seq_len": 512}
DETECTOR |= {"projection_size": 256, "heads": ["classifier", "projector"]}
MEASURED = {"form": "ONNX", "programs": 28, "batches": 50, "logit": 2e-6, "vector": 3e-7}


def card(told: dict[str, Any] | None = None, **facts: Any) -> str:
    """The card of a result, read as the export reads it."""
    told = result() if told is None else told
    told = public_result(Result.checked(told, "result.json").raw) if told else {}
    known = {"name": "detector-1", "detector": DETECTOR, "point": told.get("operating_point")}
    known |= {"agreement": [{**MEASURED, "limit": 1e-3}], "programs": "programs of the run's test"}
    return detector_card(told, known | facts)


def section(text: str, name: str) -> str:
    return re.split(r"^## ", text.split(f"## {name}\n")[1], flags=re.MULTILINE)[0]


def test_the_hub_reads_its_front_matter() -> None:
    told = ModelCard(card()).data.to_dict()
    assert told["base_model"] == "microsoft/codebert-base"
    assert told["pipeline_tag"] == "text-classification" and "license" not in told
    random = result()
    random["model"]["random_weights"] = True
    assert "base_model" not in ModelCard(card(random)).data.to_dict()


def test_it_opens_with_the_sentence_that_a_score_is_no_evidence() -> None:
    text = card()
    assert NO_EVIDENCE in text.split("## ")[0] and "no evidence of misconduct" in NO_EVIDENCE
    for part in ("Intended use", "Limits", "How to contest a score", "Citation"):
        assert section(text, part).strip()


def test_scores_stand_beside_their_floors_with_intervals() -> None:
    told = result()
    text = section(card(told), "Scores")
    test = told["scores"]["test"]
    low, high = test["intervals"]["tpr"]
    own = f"{test['metrics']['tpr']:.3f} [{low:.3f}, {high:.3f}]"
    floor = f"{test['floors']['tfidf']['metrics']['tpr']:.3f}"
    assert f"| AI code that is called AI (TPR) | {own} | {floor}" in text
    assert "Floor not scored, layout features: too few rows." in text
    assert "### Left out of training" in text and ": behind." in text and ": ahead." in text
    assert re.search(r"\| 5 % \| \d+\.\d %", text)


def test_the_worst_is_told() -> None:
    told, text = result(), card()
    assert told["scores"]["test"]["worst"]["fpr"]["value"].replace("<", "&lt;") in section(
        text, "Where it is worst"
    )
    fpr = told["scores"]["unseen_humans"]["metrics"]["fpr"]
    assert f"{100 * fpr:.1f} %" in section(text, "People it never saw")
    assert "| local names changed | 0.733 | 0.050" in section(text, "Edited code")
    assert "after `rename` the TPR falls from 0.733 to 0.050" in section(text, "Limits")
    assert "usable with warnings" in section(text, "Audit of the data")
    for name in ("tpr", "tpr_at_fpr"):
        told["scores"]["test"]["floors"]["tfidf"]["lead"][name] = [0.01, -0.02, 0.04]
    assert "not clearly better than these floors: tfidf" in section(card(told), "Limits")


def test_similarity_stands_beside_its_floors() -> None:
    text = section(card(), "Similarity")
    assert "| python to java (test) | 300 | 1,200 | 0.690 [0.670, 0.710]" in text
    assert "+0.080 [+0.050, +0.110]" in text and "| ROC-AUC | 0.931 [0.920, 0.940] | 0.840" in text


def test_nothing_is_claimed_where_nothing_was_recorded() -> None:
    text = card({}, point=None, agreement=[])
    for part in ("Training data", "Audit of the data", "Versions"):
        assert section(text, part).strip() == "Not recorded."
    assert "Not evaluated as a detector" in text and "no score is known" in text
    assert "None: this model has no threshold" in text and "codebert" not in text
    assert (
        section(text, "Agreement of this folder with the trained model").strip() == "Not measured."
    )


def test_the_sample_is_said_to_detect_nothing_real() -> None:
    told = result()
    told["settings"] |= {"data": "smoke", "model": "smoke"}
    text = card(told)
    assert "detects nothing real" in text.split("## ")[0]
    assert "| began as | random weights |" in text and "base_model" not in text


@pytest.mark.parametrize("onnx", [True, False])
def test_the_programs_that_load_it_are_python(onnx: bool) -> None:
    text = section(card(onnx=onnx, repo_id="me/mine"), "How to load it")
    compile(text.split("```python\n")[1].split("```")[0], "card", "exec")
    assert ("model.onnx" in text) == onnx and "hf download me/mine" in text


def test_a_result_without_a_part_still_makes_a_card() -> None:
    whole = result()
    for name in whole:
        assert NO_EVIDENCE in card({key: value for key, value in whole.items() if key != name})
    for name in whole["scores"]["test"]:
        told = result()
        told["scores"]["test"][name] = None
        assert NO_EVIDENCE in card(told)
