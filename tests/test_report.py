"""Guards: a report says what the run folder holds, all of it and nothing else, complete or not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from report_page import changed, check_report, seen
from run_on_disk import MIB, floors, write_events, write_run

from nbhelpers.common.formatting import GIB
from nbhelpers.errors import ConfigError
from nbhelpers.metrics import predictions
from nbhelpers.presets.jobs import CLONES
from nbhelpers.reports.facts import read_facts
from nbhelpers.reports.rendering import Report
from nbhelpers.reports.writing import report

pytestmark = pytest.mark.slow  # pages are written and plots drawn


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run; no test changes its result."""
    return write_run(tmp_path_factory.mktemp("runs") / "clones-codegpt-0123456789")


@pytest.fixture(scope="module")
def made(finished: Path) -> Report:
    """Return the report of the finished run."""
    return report(finished, show=False)


def test_page_and_text_keep_what_all_reports_keep(made: Report) -> None:
    check_report(made, {"loss", "curves", "scores", "memory", "gpu"})


def test_predictions_are_read_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=predictions.read_predictions)
    monkeypatch.setattr(predictions, "read_predictions", read)
    report(finished, show=False)
    assert read.call_count == 1


def test_text_from_a_run_is_escaped(made: Report) -> None:
    assert "12 repeated &lt;train&gt; rows" in made.path.read_text()


def test_every_split_has_its_scores_with_average_and_interval(finished: Path, made: Report) -> None:
    data = json.loads((finished / "result.json").read_text())
    table = made.tables["scores"].set_index(["split", "metric", "average"])
    for split in ("valid", "test"):
        row = table.loc[(split, "f1", "binary")]
        scores = data["scores"][split]
        assert row["value"] == scores["orders"]["given"]["f1"]
        assert [row["low"], row["high"]] == scores["intervals"]["f1"]
        assert table.loc[(split, "f1", "macro"), "value"] == scores["orders"]["given"]["f1_macro"]


@pytest.mark.parametrize(
    "wanted",
    [
        *("natural 14.0 %", "was chosen on valid and frozen for test", "2505.04311", "2208.12588"),
        *("4.41 GiB", "4.19 GiB", "+5.4 %", "an estimate by formulas", "allocator peak"),
        *("f" * 64, "abcdef0123456789", "nbhelpers train clones --preset 2x-t4", "torch 2.9.0"),
        *("C-UDA", "repeated rows: 12", "19.5 % of functions exceed 400 tokens", "10 min 40 s"),
        *("Baselines: ", "Prior: ", "As given: ", "Seen in train"),
    ],
)
def test_the_page_says(made: Report, wanted: str) -> None:
    assert wanted in seen(made)


def test_the_page_opens_with_verdict_and_figures_and_folds_the_rest(made: Report) -> None:
    page = made.path.read_text()
    opening, _, rest = page.partition("<details")
    assert "the best baseline, TF-IDF classifier (F1 0.800)" in opening
    for title in ("F1 on test", "peak memory", "time"):
        assert f"<span>{title}</span>" in opening
    assert opening.count("<img") == 1 and rest.count("<summary>") > 8
    assert made.text.index("peak memory:") < made.text.index("## Scores")


def test_critiques_of_bigclonebench_stay_away_from_other_data(
    finished: Path, tmp_path: Path
) -> None:
    other = changed(finished, tmp_path, data__source="smoke", settings__data="smoke")
    assert "2505.04311" not in seen(other)


def test_targets_are_passed_or_missed_beside_the_measured_value(made: Report) -> None:
    rows = made.tables["targets"].set_index("metric")
    assert rows.loc["f1", "passed"] == "passed" and rows.loc["roc_auc", "passed"] == "missed"
    assert re.search(r"roc_auc +at least +0\.999 +0\.\d{4} +missed", made.text)


@pytest.mark.parametrize(
    ("tfidf", "verb", "standing"),
    [
        (floors(0.5), "scores above", "above"),
        (floors(0.99), "scores no higher than", "not above"),
        (floors(0.7, lead={"f1": 0.4, "interval": [0.3, 0.5]}), "beats", "ahead"),
        (floors(0.7, lead={"f1": 0.1, "interval": [-0.1, 0.2]}), "is level with", "level"),
        (floors(0.9, lead={"f1": -0.1, "interval": [-0.2, 0.1]}), "is level with", "level"),
        (floors(0.9, lead={"f1": -0.1, "interval": [-0.2, -0.1]}), "is behind", "behind"),
    ],
)
def test_the_verdict_on_the_best_baseline_is_plain(
    finished: Path, tmp_path: Path, tfidf: dict[str, Any], verb: str, standing: str
) -> None:
    other = changed(finished, tmp_path, scores__test__floors=tfidf)
    assert f"it {verb} the best baseline" in seen(other)
    table = other.tables["floors"]
    standings = table[(table["split"] == "test") & (table["scorer"] == "TF-IDF classifier")]
    assert standings["standing"].item() == standing


def test_a_ranking_that_may_be_chance_says_so_first(finished: Path, tmp_path: Path) -> None:
    other = changed(finished, tmp_path, scores__test__intervals__roc_auc=[0.48, 0.61])
    assert re.search(
        r"^Not better than chance on test \(ROC-AUC 0.\d+, 0.480 to 0.610\)\.", other.text, re.M
    )


SAMPLE = "A sample of methods: small. Scores on it say nothing about real code."


@pytest.fixture(params=CLONES.models.embedded)
def sample(finished: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Report:
    """Return the report of a run of an embedded model on the bundled sample."""
    settings = {"model": request.param, "data": "smoke", "pretrain_steps": 500}
    facts = {"fact": {"train/valid": 0, "test_unseen": 60}, "distinct_texts": 1080}
    data = {"source": "smoke", "note": SAMPLE, "n_functions": 1080}
    data |= {"problems": {"counts": {"shared_ids": 60}, "facts": facts}}
    model = {"name": request.param, "random_weights": True}
    return changed(finished, tmp_path, settings=settings, data=data, model=model)


def test_the_note_of_the_sample_comes_first_everywhere(sample: Report) -> None:
    assert "scores on it say nothing about real code" in sample.text.replace("\n", " ")[:400]
    assert f"What to hold against these scores {SAMPLE}" in seen(sample)


def test_the_sample_names_its_weights(sample: Report) -> None:
    assert "random, pre-trained for 500 language-model steps on the sample" in seen(sample)
    assert "started from random weights" not in seen(sample) + sample.text


def test_findings_about_the_data_are_lines_not_dictionaries(sample: Report) -> None:
    assert "fact: train/valid: 0 · test_unseen: 60\ndistinct texts: 1,080" in seen(sample)
    assert "The data has 1,080 functions." in seen(sample)


def evaluated(finished: Path, tmp_path: Path, **memory: Any) -> Report:
    """Return the report of an evaluation of a checkpoint."""
    folder = "/a/runs/clones-one/checkpoints/step-00000060"
    return changed(
        finished,
        tmp_path,
        mode="evaluate",
        checkpoint=f"{folder}/model.safetensors",
        model={"name": folder, "random_weights": True},
        memory={"device": "cpu", "what": "live tensor bytes", "predicted_bytes": None, **memory},
    )


def test_an_evaluation_that_measured_no_memory_speaks_of_none(
    finished: Path, tmp_path: Path
) -> None:
    made = evaluated(finished, tmp_path, measured_bytes=None)
    assert "memory" not in made.plots and "Memory" not in made.text + seen(made)
    assert not {"memory", "memory_lines"} & set(made.tables)


def test_an_evaluation_shows_its_own_memory_not_the_budget_of_training(
    finished: Path, tmp_path: Path
) -> None:
    made = evaluated(finished, tmp_path, measured_bytes=100 * MIB)
    assert re.search(r"peak memory: +100.0 MiB +no prediction", made.text)
    assert "budget" not in seen(made) and "The measured peak of memory." in seen(made)


def test_an_evaluation_names_its_checkpoint_not_random_weights(
    finished: Path, tmp_path: Path
) -> None:
    made = evaluated(finished, tmp_path)
    assert "from checkpoint step-00000060" in seen(made)
    assert "started from random weights" not in seen(made) + made.text
    assert "<h1>clones: step-00000060</h1>" in made.path.read_text()
    assert " /a/runs/clones-one/checkpoints/step-00000060 " in seen(made)


def bars(folder: Path) -> dict[str, float]:
    """Return the length of each bar of the memory figure, in MiB or GiB."""
    from nbhelpers.reports.figures import memory_figure

    (axis,) = memory_figure(read_facts(folder)).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    found = dict.fromkeys(names, 0.0)
    for bar in axis.patches:
        found[names[round(bar.get_y() + bar.get_height() / 2)]] += bar.get_width()
    return found


def test_the_memory_figure_stacks_the_prediction_beside_the_budget(
    finished: Path, tmp_path: Path
) -> None:
    lines = [{"name": "weights", "size_bytes": 1024 * MIB}, {"name": "rest", "size_bytes": GIB}]
    made = changed(finished, tmp_path, memory__predicted_lines=lines, memory__per_rank=[])
    found = bars(made.path.parent)
    assert found["predicted"] == pytest.approx(2)
    assert found["budget before the run"] == pytest.approx(4520 / 1024)
    assert found["measured"] == pytest.approx(4290 / 1024)
    assert "Thin: the budget before the run" in seen(made)


def test_a_run_without_a_prediction_of_its_own_shows_the_budget_as_such(finished: Path) -> None:
    found = bars(finished)
    assert "predicted" not in found
    assert found["budget before the run"] == pytest.approx(4520 / 1024)


def test_strata_without_a_pair_are_left_out(finished: Path, tmp_path: Path) -> None:
    strata = {"0": {"n_pairs": 5, "f1": 0.5}, "1": {"n_pairs": 0}, "2": {"n_pairs": 0}}
    made = changed(finished, tmp_path, scores__test__strata=strata)
    table = made.tables["strata"]
    assert list(table[table["split"] == "test"]["texts seen in train"]) == ["0"]


def test_a_floor_that_was_skipped_says_why(finished: Path, tmp_path: Path) -> None:
    skipped = floors(0.5) | {"tfidf_mlp": {"skipped": "no train pairs"}}
    assert "no train pairs" in seen(changed(finished, tmp_path, scores__test__floors=skipped))


def test_show_writes_the_text_once(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report(finished).text
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("form", ["text", "path", "object", "file"])
def test_a_run_is_named_by_path_or_by_anything_that_has_one(finished: Path, form: str) -> None:
    forms = {"text": str(finished), "path": finished, "object": SimpleNamespace(path=finished)}
    forms["file"] = finished / "result.json"
    assert read_facts(forms[form]).result.run_id == finished.name


def test_a_failed_run_reports_its_error_and_what_is_known(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "failed")
    for name in ("result.json", "predictions.jsonl", "predictions.txt"):
        (folder / name).unlink()
    error = {"kind": "OutOfMemory", "message": "asked for 2 GiB", "fix": "halve the batch"}
    write_events(folder, [{"t": 1700.0, "type": "error", "rank": 0} | error])
    made = report(folder, show=False)
    said = seen(made)
    assert "No scores yet" in said and "optimizer step 60 of 200" in said
    assert "OutOfMemory: asked for 2 GiB" in said and "halve the batch" in said
    assert {"loss", "memory", "gpu"} <= set(made.plots)
    assert made.tables["memory"].iloc[0]["measured_bytes"] == 4000 * MIB


def test_an_empty_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither result"):
        report(tmp_path, show=False)
    with pytest.raises(ConfigError, match="no run folder"):
        report(tmp_path / "absent", show=False)
