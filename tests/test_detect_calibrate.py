"""Promise: a calibration promises exactly what its number of programs allows, and no more."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_detector import write_run

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use.calibrate import (
    Calibration,
    allowed_above,
    fix_threshold,
    load_calibration,
    require_same_model,
)
from nbhelpers.use.facts import DetectorFacts, detector_facts
from nbhelpers.use.trained import find_detector

COUNTS = {"n_files": 0, "n_duplicates": 0, "left_out": {"binary": 1}}


@pytest.fixture
def facts(tmp_path: Path) -> DetectorFacts:
    return detector_facts(find_detector(write_run(tmp_path / "detector-a")))


def fixed(logits: list[float], facts: DetectorFacts, **options: Any) -> Calibration:
    options = {"target_fpr": 0.01, "confidence": 0.95} | options
    languages = ["python"] * len(logits)
    return fix_threshold(logits, languages, facts, source="here", counts=COUNTS, **options)


def test_299_programs_promise_one_percent_and_298_do_not(facts: DetectorFacts) -> None:
    logits = [float(i) for i in range(299)]
    enough = fixed(logits, facts)
    assert enough.is_met and enough.promised_fpr == pytest.approx(1 - 0.05 ** (1 / 299))
    assert (enough.exceed, enough.threshold_logit, enough.lack) == (0, 298.0, "")
    short = fixed(logits[:-1], facts)
    small = fixed(logits[:100], facts)
    assert small.allows.startswith("100 programs can promise 2.95 %") and "299" in small.allows
    assert small.rows()["what so many allow"] == f"{small.allows}."
    assert not short.is_met and short.needed == 299
    assert "it takes 299, 1 more" in short.lack and "Nothing is called AI with it" in short.lack


@pytest.mark.parametrize(("n", "target", "allowed"), [(59, 0.05, 0), (93, 0.05, 1), (299, 0.01, 0)])
def test_how_many_may_lie_above_depends_on_the_number_alone(
    n: int, target: float, allowed: int
) -> None:
    assert allowed_above(n, target, 0.95) == allowed
    below = allowed_above(n - 1, target, 0.95)
    assert below is None if allowed == 0 else below == allowed - 1


def test_the_promise_holds_in_95_of_100_draws(facts: DetectorFacts) -> None:
    draw, held, trials = random.Random(0), 0, 400
    for _ in range(trials):
        found = fixed([draw.random() for _ in range(93)], facts, target_fpr=0.05)
        held += 1 - found.threshold_logit <= found.promised_fpr
    assert found.exceed == 1 and 0.92 <= held / trials <= 0.98


def test_equal_scores_stay_below_the_threshold_together(facts: DetectorFacts) -> None:
    found = fixed([1.0] * 300, facts)
    assert found.threshold_logit == 1.0 and found.is_met


def test_what_the_runs_own_threshold_would_have_done_is_told(facts: DetectorFacts) -> None:
    found = fixed([3.0] * 50 + [0.0] * 50, facts)
    assert found.run_threshold["fpr"] == 0.5
    assert "would have called 50 % [" in found.text()


def test_how_much_ai_code_of_the_runs_test_it_finds_is_told(facts: DetectorFacts) -> None:
    assert fixed([0.0], facts).run_ai == {}
    rows = [{"split": "test", "label": "ai", "logit": logit} for logit in (5.0, 1.0, -1.0, None)]
    rows += [{"split": "test", "label": "human", "logit": 9.0}, {"split": "valid", "label": "ai"}]
    lines = [json.dumps(row | {"p_ai": 0.5}) for row in rows]
    (facts.home / "predictions.jsonl").write_text("\n".join(lines))
    found = fixed([0.0], facts)
    assert found.run_ai == {"n": 3, "share_above": pytest.approx(2 / 3)}
    assert "66.67 % of the 3 AI programs" in found.text()


def test_a_saved_calibration_is_the_same_and_an_edited_one_is_refused(
    facts: DetectorFacts, tmp_path: Path
) -> None:
    found = fixed([0.5, 0.25], facts)
    place = found.save(tmp_path / "c.json")
    assert load_calibration(place) == found
    told = json.loads(place.read_text())
    changes = [{"promised_fpr": 0.001}, {"n": 5000}, {"n": 0}, {"languages": {"python": None}}]
    for change in (*changes, {"threshold_logit": "low"}, {"format": 2}):
        place.write_text(json.dumps(told | change))
        with pytest.raises(DataError, match=r"c\.json"):
            load_calibration(place)
    place.write_text("[]")
    with pytest.raises(DataError, match="is no calibration"):
        load_calibration(place)


def test_another_models_calibration_is_refused(facts: DetectorFacts, tmp_path: Path) -> None:
    found = fixed([0.5], facts)
    assert require_same_model(found, facts, "here") is found
    other = detector_facts(find_detector(write_run(tmp_path / "detector-b")))
    with pytest.raises(DataError, match="fixed with another model"):
        require_same_model(found, other, "here")
    with pytest.raises(DataError, match="fixed with another model"):
        require_same_model(replace(found, canonical="flat"), facts, "here")


def test_shares_out_of_range_and_no_program_at_all_are_errors(facts: DetectorFacts) -> None:
    for options in ({"target_fpr": 0.0}, {"target_fpr": float("nan")}, {"target_fpr": 0.5}):
        with pytest.raises(ConfigError, match="target_fpr"):
            fixed([1.0], facts, **options)
    with pytest.raises(ConfigError, match="confidence"):
        fixed([1.0], facts, confidence=1)
    with pytest.raises(DataError, match="no program") as error:
        fixed([], facts)
    assert "299 files" in error.value.fix
