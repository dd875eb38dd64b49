"""Promise: what a study varies is checked before a cell runs, and every trained run is judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.notebook.headless import check_notebook
from nbhelpers.presets.parameters import check_parameters
from nbhelpers.runs.thresholds import parse_requirements, require_scores

ROOT = Path(__file__).resolve().parent.parent
FINETUNE = ROOT / "notebooks" / "01_finetune_gemma.ipynb"


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ("r61x", "There is no adapter `r61x`"),
        ("qlora-16x", "did you mean `qlora-r16`?"),
        (16, "did you mean `r16`?"),
        (True, "There is no adapter `True`"),
        ("r8, r8", "names r8 twice"),
        ("all,r8", "`all` holds it"),
        ([], "names no adapter"),
        (["r8", {"name": "mine", "lora_rank": 4}], "did you mean `lora_r`?"),
    ],
    ids=str,
)
def test_the_fine_tuning_notebook_refuses_adapters_that_are_none(
    adapters: object, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_notebook(FINETUNE, {"adapters": adapters})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"adapters": None, "preset": "smoke"},
        {"adapters": "", "evaluate": "all"},
        {"adapters": "all", "max_train_samples": 200, "track": "none"},
        {"adapters": "base,r8,qlora-r16", "model": "smollm2", "seq_len": 256},
        {"adapters": ["r8", {"name": "attention", "lora_target_modules": ["q_proj", "v_proj"]}]},
        {"preset": "t4", "adapters": "r64", "data": "owner/rows"},
    ],
    ids=str,
)
def test_the_fine_tuning_notebook_takes_what_its_comments_say(
    parameters: dict[str, object],
) -> None:
    assert check_notebook(FINETUNE, parameters) == (FINETUNE, ROOT)


def test_adapters_are_a_parameter_of_a_fine_tuning_and_no_setting() -> None:
    cell = 'adapters = "all"  # @param {type:"string"} # which\nseed = 1'
    namespace = {"In": ["", cell], "adapters": "all", "seed": 1}
    assert dict(check_parameters("finetune", namespace)) == {"seed": 1}
    with pytest.raises(ConfigError, match="no setting `adapters`"):
        check_parameters("clones", namespace)


def test_all_wrong_parameters_are_told_at_once() -> None:
    wrong = {"adapters": "r9999", "epochs": 0, "evaluate": "some"}
    with pytest.raises(ConfigError, match="3 problems"):
        check_notebook(FINETUNE, wrong)


def test_of_a_study_every_trained_run_must_meet_a_requirement() -> None:
    def row(name: str, method: str, bleu: float) -> SimpleNamespace:
        data = {"job": "finetune", "scores": {"test": {"metrics": {"bleu": bleu}}}}
        settings = SimpleNamespace(method=method)
        return SimpleNamespace(name=name, settings=settings, result=SimpleNamespace(data=data))

    rows = (row("base", "base", 5.0), row("r8", "lora", 50.0), row("r16", "lora", 60.0))
    study = SimpleNamespace(finished=rows)
    require_scores(study, parse_requirements(["bleu>=50"], "finetune"))
    with pytest.raises(RequirementMissed) as caught:
        require_scores(study, parse_requirements(["bleu>=55", "bleu>=99"], "finetune"))
    assert caught.value.message.count("r8: ") == 2 and caught.value.message.count("r16: ") == 1
    assert "base" not in caught.value.message
    with pytest.raises(RequirementMissed, match="base: required"):
        require_scores(SimpleNamespace(finished=rows[:1]), parse_requirements(["bleu>=50"]))
