"""Guards: the report of a detector says what its run folder holds, and never more than that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from detector_on_disk import predictions, result, similarity, write_detector
from report_page import PageText, seen

from nbhelpers.common.result_files import Record, Result
from nbhelpers.errors import DataError
from nbhelpers.reports.detector import alarms, cautions, details, headline, verdicts
from nbhelpers.reports.detector_tables import means_said
from nbhelpers.reports.facts import RunFacts, read_facts
from nbhelpers.reports.figures_jobs import (
    detector_loss_figure,
    edits_figure,
    read_scored,
    roc_figure,
)
from nbhelpers.reports.html import body
from nbhelpers.reports.page import Report
from nbhelpers.reports.text import as_text
from nbhelpers.reports.writing import make_tables, report
from nbhelpers.runs.progress import Progress
from nbhelpers.runs.run import Run, RunResult, list_runs

pytestmark = pytest.mark.slow  # a page is written and plots are drawn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a finished run."""
    return report(write_detector(tmp_path_factory.mktemp("runs") / "detector-1"), show=False)


def facts_of(status: str = "finished", **changes: Any) -> RunFacts:
    """Return the facts of a run whose result has other parts; nothing is on disk."""
    data = result(**changes)
    checked = Result.checked(data, "result.json")
    run = Run(Path("none"))
    return RunFacts(run=run, status=status, result=checked, saved=Record(), events=[])


def with_scores(split: str, **changes: Any) -> RunFacts:
    """Return facts in which parts of one split's scores are others."""
    scores = result()["scores"]
    for way, value in changes.items():
        target, keys = scores[split], way.split("__")
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
    return facts_of(scores=scores)


def lead(*values: float) -> dict[str, Any]:
    return {"roc_auc": list(values), "tpr_at_fpr": list(values)}


def test_the_page_needs_no_other_file(made: Report) -> None:
    parser, page = PageText(), made.path.read_text()
    parser.feed(page)
    assert parser.outside == []
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    names = {"loss", "roc", "scores", "edits", "slices", "memory", "gpu"}
    assert set(made.plots) == names
    assert page.count("data:image/png") == len(names)


def test_the_headline_has_areas_rates_and_the_best_floor(made: Report) -> None:
    test = result()["scores"]["test"]
    auc, tpr = (test["metrics"][name] for name in ("roc_auc", "tpr"))
    low, high = test["intervals"]["roc_auc"]
    first = made.text.replace("\n", " ")
    assert first.startswith(
        f"ROC-AUC {auc:.3f} ({low:.3f} to {high:.3f}) on test, and TPR {tpr:.3f}"
    )
    assert "at a realised false-positive rate of 2.5 % (0.5 % to 7.1 %), promised 1 %" in first
    assert "; it beats the best floor, TF-IDF (ROC-AUC " in first
    assert "On held-out data (source=humaneval) ROC-AUC is 0.660" in first


@pytest.mark.parametrize(
    "wanted",
    [
        "detector: microsoft/codebert-base",
        "A score is no evidence of misconduct.",
        "Audit of the data: usable with warnings: one human population.",
        "93 % of <human> files end with a newline",
        "The promise is broken on unseen humans: 70.5 % (63.7 % to 76.7 %) of 200 human programs",
        "was chosen on 400 human programs (the validation humans of this run)",
        "takes human programs as independent",
        "precision if 5 % are AI",
        "The calibration error (ECE) is",
        "the detector says undecided",
        "Worst slices, of at least 30 programs of each class that counts: TPR",
        "renamed",
        "not scored: too few rows",
        "raw encoder",
        "1,200",
        "lead in MRR",
        "largest difference 0.0002",
        "of one file at a time 9.5 ms",
        "31 programs of the data are longer than 512 tokens",
        "half-precision peak",
        "final newline",
        "predicted 10.20 GiB, measured 9.77 GiB (allocator peak), error +4.4 %",
        "half of the programs exceed 256",
        "The splits share no code, nearly equal code, task or author.",
        "nbhelpers train detector --preset h100",
        "f" * 64,
    ],
)
def test_the_page_says(made: Report, wanted: str) -> None:
    assert wanted in " ".join(seen(made).split())


def test_what_a_run_says_is_escaped_in_the_page(made: Report) -> None:
    page = made.path.read_text()
    assert "the tokenizer of &lt;x&gt; was converted" in page
    assert "93 % of &lt;human&gt; files" in page


def test_a_fact_stands_once_on_the_page() -> None:
    few = result()["operating_point"] | {"promised_fpr": 0.04, "warnings": ["humans are few"]}
    audit = {"verdict": "usable", "warnings": ["The validation split has 72 human rows; 299."]}
    versions = {"torch": "2.11.0", "peft": "0.19", "trl": "1.0"}
    warnings = ["humans are few", "9 programs (1 %) are longer than seq_len=512 and are cut."]
    facts = facts_of(operating_point=few, audit=audit, versions=versions, warnings=warnings)
    page = " ".join(body(facts, make_tables(facts), {}).split())
    for said in ("a promise of 1 % takes 299", "longer than", "Kept:", "says undecided"):
        assert page.count(said) == 1, said
    assert "72 human rows" not in page and "humans are few" not in page and "peft" not in page
    assert ">precision<" not in page and "precision if 5 % are AI" in page  # by one method


def test_a_worst_slice_is_named_where_another_does_better() -> None:
    slices = [
        {"by": "lines", "value": v, "n_human": 90, "n_ai": n, "fpr": 0.0, "tpr": t, "roc_auc": t}
        for v, n, t in (("<10", 90, 0.4), ("50+", 9, 0.9))
    ]
    worst = dict.fromkeys(("tpr", "fpr", "roc_auc"), slices[0])
    macro = {"lines": {"tpr": 0.4, "fpr": 0.0, "roc_auc": 0.4}}
    facts = with_scores("test", slices=slices, worst=worst, macro=macro)
    assert "Worst slices" not in details(facts)  # one is too small, and no FPR differs
    assert list(means_said(facts)) == ["lines FPR 0.000"]
    slices[1]["n_ai"] = 30
    facts = with_scores("test", slices=slices, worst=worst, macro=macro)
    assert "TPR 0.400 at lines = <10; ROC-AUC 0.400 at lines = <10." in details(facts)
    assert "FPR 0.000" not in details(facts)


def test_the_tables_hold_the_numbers_of_the_result(made: Report) -> None:
    scores = result()["scores"]
    table = made.tables["scores"].set_index(["split", "metric"])
    for split, found in scores.items():
        for metric in ("roc_auc", "fpr", "ece"):
            wanted = float("nan") if (value := found["metrics"][metric]) is None else value
            assert table.loc[(split, metric), "value"] == pytest.approx(wanted, nan_ok=True)
    edits = made.tables["edits"].set_index(["edit", "scorer"])
    ours = scores["test"]["edits"]["rename"]
    assert edits.loc[("rename", "this model"), "tpr lost"] == pytest.approx(ours["tpr_loss"])
    gained = ours["fpr"] - ours["fpr_unedited"]
    assert edits.loc[("rename", "this model"), "fpr gained"] == pytest.approx(gained)
    floor = ours["floors"]["tfidf"]
    assert edits.loc[("rename", "TF-IDF"), "tpr after"] == pytest.approx(floor["tpr"])


def test_targets_bound_errors_and_times_from_above(made: Report) -> None:
    rows = made.tables["targets"].set_index("metric")
    assert rows["passed"].to_dict() == {
        "roc_auc": True,
        "fpr": True,
        "similarity.mrr": False,
        "timing.total_s": True,
    }
    assert "Target fpr <= 0.12: passed (0.0250)." in made.text
    assert "Target similarity.mrr >= 0.9: missed (0.7100)." in made.text


def test_the_text_fits_100_columns_and_ends_with_the_path(made: Report) -> None:
    *lines, last = made.text.splitlines()
    assert max(map(len, lines)) <= 100
    assert last == f"Report: {made.path}"


@pytest.mark.parametrize(
    ("leads", "said"),
    [
        (lead(0.1, 0.05, 0.2), "it beats the best floor, TF-IDF"),
        (lead(0.1, -0.05, 0.2), "it does not beat the best floor, TF-IDF"),
        (lead(-0.1, -0.2, -0.05), "behind in ROC-AUC and TPR at promised FPR"),
        (lead(0.1, 0, 0) | {"roc_auc": [0.1, 0.05, 0.2]}, "ahead in ROC-AUC; level in TPR"),
        ({}, "above in ROC-AUC and TPR"),
        ({"roc_auc": None, "tpr_at_fpr": [0.1, None, None]}, "above in ROC-AUC and TPR"),
    ],
)
def test_the_verdict_on_tfidf_is_honest(leads: dict[str, Any], said: str) -> None:
    facts = with_scores("test", floors__tfidf__lead=leads)
    assert said in headline(facts)
    wins = said == "it beats the best floor, TF-IDF"
    line = next(v for v in verdicts(facts) if v.startswith("On test") and "TF-IDF" in v)
    assert line.startswith("On test it beats TF-IDF") is wins


@pytest.mark.parametrize(
    ("fpr", "between", "said", "alarmed"),
    [
        (0.42, [0.38, 0.46], "The promise is broken on unseen humans: 42.0 %", True),
        (0.02, [0.004, 0.05], "Whether the promise is kept on unseen humans is open", False),
        (0.001, [0.0, 0.008], "The promise is kept on unseen humans: 0.1 %", False),
    ],
)
def test_a_promise_is_broken_open_or_kept(
    fpr: float, between: list[float], said: str, alarmed: bool
) -> None:
    facts = with_scores("unseen_humans", metrics__fpr=fpr, intervals__fpr=between)
    where = alarms(facts) if alarmed else cautions(facts)
    assert any(text.startswith(said) for text in where)
    assert any(text.startswith(said) for text in alarms(facts)) is alarmed
    assert not alarmed or alarms(facts)[0].startswith(said)


def test_a_split_of_one_class_is_undefined_never_a_half() -> None:
    scores = {"test": result()["scores"]["unseen_humans"]}
    facts = facts_of(scores=scores)
    first = headline(facts)
    assert first.startswith("No ROC-AUC on test, which has no AI program: false-positive rate")
    assert "0.500" not in first
    assert "No AI program in test: what needs both classes is undefined." in cautions(facts)


def test_a_hopeless_audit_is_an_alarm() -> None:
    settings = result()["settings"] | {"on_failed_audit": "go_on"}
    audit = {"verdict": "hopeless", "reasons": ["the class ai is empty."]}
    (said,) = [text for text in alarms(facts_of(audit=audit, settings=settings)) if "Audit" in text]
    assert said.endswith("hopeless, and the run went on as it was told: the class ai is empty.")


def test_a_run_without_labels_reports_its_similarity() -> None:
    facts = facts_of(scores={}, operating_point=None, audit=None)
    first, said = headline(facts), verdicts(facts)
    assert first.startswith(
        "MRR 0.710 (0.690 to 0.730), MAP@R 0.410 (0.380 to 0.440) for 300 queries"
    )
    assert "in a pool of 1,200 programs" in first and "it beats TF-IDF (MRR 0.630" in first
    assert said[0].startswith("Similarity is no evidence of misconduct: people who solve the same")
    assert alarms(facts) == []
    level = facts_of(scores={}, similarity=similarity(lead=0.01))
    assert "it does not beat TF-IDF" in headline(level)
    assert any(
        "ahead in 0 of 2 further retrievals; not in: python to java" in v for v in verdicts(level)
    )


@pytest.mark.parametrize("missing", ["similarity", "audit", "operating_point", "compile", "phases"])
def test_a_missing_part_costs_only_itself(missing: str) -> None:
    facts = facts_of(**{missing: None})
    tables = make_tables(facts)
    assert "ROC-AUC" in as_text(facts, tables, "x") and "Beside the floors" in body(
        facts, tables, {}
    )
    assert ("retrieval" in tables) is (missing != "similarity")
    assert ("phases" in tables) is (missing != "phases")


def test_a_run_that_failed_says_how_far_it_came(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "detector-2")
    (folder / "result.json").unlink()
    with (folder / "events-rank0.jsonl").open("a") as file:
        error = {"t": 1700.0, "type": "error", "rank": 0, "kind": "DataError", "message": "bad"}
        file.write(json.dumps(error | {"fix": "mend it"}) + "\n")
    facts = read_facts(folder)
    text = as_text(facts, make_tables(facts), "x")
    assert text.startswith("No scores yet: the run is ") and "at optimizer step 58 of 200" in text
    assert "DataError: bad" in text and "Fix: mend it" in text
    assert detector_loss_figure(facts) is not None


def test_the_two_losses_are_drawn_apart_and_one_alone_where_there_is_one() -> None:
    figure = detector_loss_figure(facts_of())
    labels = [axis.get_ylabel() for axis in figure.axes]
    assert labels == ["classification loss (nats)", "contrastive loss (nats)", "score on valid"]
    training = result()["training"] | {"history": [{"step": 1, "loss": 2.0}], "evals": []}
    (axis,) = detector_loss_figure(facts_of(training=training)).axes
    assert axis.get_ylabel() == "loss (nats)"


def test_a_scorer_that_was_skipped_has_no_bars() -> None:
    names = edits_figure(facts_of()).axes[0].get_legend_handles_labels()[1]
    assert names == ["this model", "TF-IDF", "length"]


def test_the_curve_is_drawn_where_both_classes_are(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in predictions()))
    scored = read_scored(path)
    assert len(scored["test"].p) == 240 and scored["test"].labels.sum() == 120
    assert roc_figure(facts_of(), {"test": scored["unseen_humans"]}) is None
    unlabelled = {"split": "test", "label": None, "p_ai": 0.5}
    path.write_text(json.dumps(unlabelled) + "\n")
    assert read_scored(path) == {}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"split": "test", "label": "ai", "p_ai": NaN}',
        '{"split": 1, "p_ai": 0.5}',
        '{"split": "test", "label": [], "p_ai": 0.5}',
        '{"split": "test", "p_ai": 7}',
    ],
)
def test_a_line_that_is_no_prediction_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text(f"{json.dumps(predictions()[0])}\n{line}\n")
    with pytest.raises(DataError, match="line 2: "):
        read_scored(path)


def test_the_list_of_runs_and_a_result_show_the_headline_scores(made: Report) -> None:
    (row,) = list_runs(made.path.parent.parent).rows()
    assert row["score"] == "ROC-AUC 0.978"
    found = RunResult.from_path(made.path.parent).headline_scores
    assert list(found) == ["test ROC-AUC", "test TPR (recall)", "test FPR", "similarity MRR"]
    assert found["similarity MRR"] == "0.710"


def test_progress_counts_programs_and_shows_both_losses_and_scores() -> None:
    progress = Progress(job="detector", phase="train")
    step = {"type": "step", "t": 2.0, "step": 3, "total_steps": 9, "loss": 4.2}
    progress.update(step | {"classification_loss": 0.6, "contrastive_loss": 3.6})
    scores = {"roc_auc": 0.91, "tpr": 0.4, "mrr": 0.5}
    progress.update({"type": "eval", "t": 3.0, "split": "valid", "scores": scores})
    assert "loss 4.2000 (classification 0.6000, contrastive 3.6000)" in progress.line()
    assert "valid ROC-AUC 0.910, TPR 0.400, MRR 0.500" in progress.line()
    event = {"type": "progress", "t": 4.0, "name": "evaluate test", "done": 5, "total": 10}
    progress.update(event)
    assert "evaluate test 5/10 programs (50%)" in progress.line()
