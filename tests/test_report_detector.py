"""Guards: the report of a detector says what its run folder holds, and never more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from detector_on_disk import predictions, result, similarity, write_detector
from matplotlib.colors import to_hex
from report_page import check_report, seen

from nbhelpers.common.result_files import Record, Result
from nbhelpers.errors import DataError
from nbhelpers.reports import figures_detector
from nbhelpers.reports.blocks import Table, Text, walk
from nbhelpers.reports.detector import blocks, summary
from nbhelpers.reports.facts import RunFacts
from nbhelpers.reports.figures_detector import edits_figure, loss_figure, read_scored, roc_figure
from nbhelpers.reports.rendering import Report, as_html, as_text
from nbhelpers.reports.writing import report
from nbhelpers.runs.progress import Progress
from nbhelpers.runs.run import Run, RunResult, list_runs

pytestmark = pytest.mark.slow  # a page is written and plots are drawn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a finished run."""
    return report(write_detector(tmp_path_factory.mktemp("runs") / "detector-1"), show=False)


def test_predictions_are_read_once(made: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=read_scored)
    monkeypatch.setattr(figures_detector, "read_scored", read)
    report(made.path.parent, show=False)
    assert read.call_count == 1


def facts_of(**changes: Any) -> RunFacts:
    """Return the facts of a finished run whose result has other parts; nothing is on disk."""
    checked = Result.checked(result(**changes), "result.json")
    run = Run(Path("none"))
    return RunFacts(run=run, status="finished", result=checked, saved=Record(), events=[])


def with_scores(split: str, **changes: Any) -> RunFacts:
    """Return facts in which parts of one split's scores are others."""
    scores = result()["scores"]
    for way, value in changes.items():
        target, keys = scores[split], way.split("__")
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
    return facts_of(scores=scores)


def sentences(facts: RunFacts) -> list[str]:
    """Return the paragraphs below the opening."""
    return [block.text for block in walk(blocks(facts)) if isinstance(block, Text)]


def rows(facts: RunFacts, code: str) -> list[dict[str, str]]:
    """Return the rows of a table as they are shown."""
    (table,) = (b for b in walk(blocks(facts)) if isinstance(b, Table) and b.code == code)
    return [{name: str(cell) for name, cell in row.items()} for row in table.rows]


def lead(*values: float) -> dict[str, Any]:
    return {"roc_auc": list(values), "tpr_at_fpr": list(values)}


def test_page_and_text_keep_what_all_reports_keep(made: Report) -> None:
    check_report(made, {"loss", "roc", "scores", "edits", "slices", "memory", "gpu"})


def test_the_opening_has_areas_rates_and_the_best_baseline(made: Report) -> None:
    held_out = result()["scores"]["held_out"]
    auc, tpr = (held_out["metrics"][name] for name in ("roc_auc", "tpr"))
    low, high = held_out["intervals"]["roc_auc"]
    first = made.text.replace("\n", " ")
    assert first.startswith(
        "On held-out data (source=humaneval) the detector has a ROC-AUC of "
        f"{auc:.3f} ({low:.3f} to {high:.3f}) and does not beat the best baseline, TF-IDF (0.940: "
    )
    assert first.index("## Scores") < first.index(
        f"ROC-AUC {auc:.3f} ({low:.3f} to {high:.3f}) on held-out data (source=humaneval), and "
        f"TPR {tpr:.3f}"
    )
    assert "at a realised false-positive rate of 16.7 % (8.3 % to 28.5 %), promised 1 %" in first
    assert "; it does not beat the best baseline, TF-IDF (ROC-AUC 0.940" in first


@pytest.mark.parametrize(
    "wanted",
    [
        "detector: microsoft/codebert-base",
        "A score is no evidence of misconduct.",
        "Audit of the data: usable with warnings: one human population.",
        "93 % of <human> files end with a newline",
        "the tokenizer of <x> was converted",
        "The promise is broken on unseen humans: 70.5 % (63.7 % to 76.7 %) of 200 human programs",
        "400 human programs, the validation humans of this run",
        "takes human programs as independent",
        "Worst slices, of at least 30 programs of each class that counts: TPR",
        "renamed",
        "Not scored: layout features (too few rows).",
        "raw encoder",
        "1,200",
        "31 programs are longer than 512 tokens",
        "half-precision peak",
        "final newline",
        "half of the programs exceed 256",
        "The splits share no code, nearly equal code, task or author.",
        "nbhelpers train detector --preset h100",
        "f" * 64,
    ],
)
def test_the_page_says(made: Report, wanted: str) -> None:
    assert wanted in " ".join(seen(made).split())


def test_a_worst_slice_is_named_where_another_does_better() -> None:
    slices = [
        {"by": "lines", "value": v, "n_human": 90, "n_ai": n, "fpr": 0.0, "tpr": t, "roc_auc": t}
        for v, n, t in (("<10", 90, 0.4), ("50+", 9, 0.9))
    ]
    worst = dict.fromkeys(("tpr", "fpr", "roc_auc"), slices[0])
    facts = with_scores("test", slices=slices, worst=worst)
    assert "Worst slices" not in str(sentences(facts))  # one is too small, and no FPR differs
    assert [row["worst"] for row in rows(facts, "slices")] == ["", ""]
    slices[1]["n_ai"] = 30
    facts = with_scores("test", slices=slices, worst=worst)
    (text,) = (text for text in sentences(facts) if text.startswith("Worst slices"))
    assert text.endswith("TPR 0.400 at lines = <10; ROC-AUC 0.400 at lines = <10.")
    assert [row["worst"] for row in rows(facts, "slices")] == ["TPR, ROC-AUC", ""]


def test_the_tables_hold_the_numbers_of_the_result(made: Report) -> None:
    scores = result()["scores"]
    table = made.tables["scores"].set_index(["split", "metric"])
    for split, found in scores.items():
        for metric in ("roc_auc", "fpr", "ece"):
            wanted = float("nan") if (value := found["metrics"][metric]) is None else value
            assert table.loc[(split, metric), "value"] == pytest.approx(wanted, nan_ok=True)
    edits = made.tables["edits"].set_index(["edit", "scorer"])
    ours = scores["test"]["edits"]["rename"]
    assert edits.loc[("rename", "this model"), "lost"] == pytest.approx(ours["tpr_loss"])
    floor = ours["floors"]["tfidf"]
    assert edits.loc[("rename", "TF-IDF"), "TPR_after"] == pytest.approx(floor["tpr"])
    humans = made.tables["edits_of_humans"].set_index(["edit", "scorer"])
    assert humans.loc[("rename", "TF-IDF"), "FPR_after"] == pytest.approx(floor["fpr"])
    pairs = made.tables["pairs"].set_index("scorer")
    assert pairs.loc["this model", ["roc_auc", "roc_auc_low"]].tolist() == [0.931, 0.92]


def test_targets_bound_errors_and_times_from_above(made: Report) -> None:
    table = made.tables["targets"].set_index("metric")
    assert table["bound"].to_dict() == {
        "roc_auc": "at least",
        "fpr": "at most",
        "similarity.mrr": "at least",
        "timing.total_s": "at most",
    }
    assert table["passed"].tolist() == ["passed", "passed", "missed", "passed"]


@pytest.mark.parametrize(
    ("leads", "wanted", "standing"),
    [
        (lead(0.1, 0.05, 0.2), "it beats the best baseline, TF-IDF", "ahead"),
        (lead(0.1, -0.05, 0.2), "it does not beat the best baseline, TF-IDF", "level"),
        (lead(-0.1, -0.2, -0.05), "behind in ROC-AUC and TPR at promised FPR", "behind"),
        (lead(0.1, 0, 0) | {"roc_auc": [0.1, 0.05, 0.2]}, "ahead in ROC-AUC; level in", "ahead"),
        ({}, "above in ROC-AUC and TPR", "above"),
        ({"roc_auc": None, "tpr_at_fpr": [0.1, None, None]}, "above in ROC-AUC and TPR", "above"),
    ],
)
def test_the_verdict_on_tfidf_is_honest(leads: dict[str, Any], wanted: str, standing: str) -> None:
    scores = result()["scores"]
    del scores["held_out"]  # it would open the report
    scores["test"]["floors"]["tfidf"]["lead"] = leads
    facts = facts_of(scores=scores)
    assert wanted.removeprefix("it ") in summary(facts).verdict
    assert any(wanted in text for text in sentences(facts))
    table = {row["scorer"]: row for row in rows(facts, "floors") if row["split"] == "test"}
    assert table["TF-IDF"]["standing"] == standing


@pytest.mark.parametrize(
    ("fpr", "between", "verdict"),
    [(0.42, [0.38, 0.46], "broken"), (0.02, [0.004, 0.05], "open"), (0.001, [0.0, 0.008], "kept")],
)
def test_a_promise_is_broken_open_or_kept(fpr: float, between: list[float], verdict: str) -> None:
    facts = with_scores("unseen_humans", metrics__fpr=fpr, intervals__fpr=between)
    promises = {row["split"]: row["promise"] for row in rows(facts, "promise")}
    assert promises["unseen_humans"] == verdict and "valid" not in promises
    first = "The promise is broken on unseen humans: 42.0 %"
    assert summary(facts).alarms[0].startswith(first) is (verdict == "broken")


def test_a_split_of_one_class_is_undefined_never_a_half() -> None:
    facts = facts_of(scores={"test": result()["scores"]["unseen_humans"]})
    first = summary(facts).verdict
    assert first.startswith("No ROC-AUC on test, which has no AI program: FPR ")
    assert "0.500" not in first
    assert "No AI program in test: what needs both classes is undefined." in sentences(facts)
    scores = {row["metric"]: row["value"] for row in rows(facts, "scores")}
    assert scores["ROC-AUC"] == "–"


def test_a_hopeless_audit_is_an_alarm() -> None:
    settings = result()["settings"] | {"on_failed_audit": "go_on"}
    audit = {"verdict": "hopeless", "reasons": ["the class ai is empty."]}
    alarms = summary(facts_of(audit=audit, settings=settings)).alarms
    (alarm,) = [text for text in alarms if "Audit" in text]
    assert alarm.endswith("hopeless, and the run went on as it was told: the class ai is empty.")


def test_a_run_without_labels_reports_its_similarity() -> None:
    facts = facts_of(scores={}, operating_point=None, audit=None)
    first = summary(facts)
    assert first.verdict.startswith(
        "MRR 0.710 (0.690 to 0.730), MAP@R 0.410 (0.380 to 0.440) for 300 queries"
    )
    assert "in a pool of 1,200 programs" in first.verdict
    assert "it beats TF-IDF (MRR 0.630" in first.verdict and not first.alarms
    start = "Similarity is no evidence of misconduct: people who solve the same"
    assert sentences(facts)[0].startswith(start)
    level = facts_of(scores={}, similarity=similarity(lead=0.01))
    assert "it does not beat TF-IDF" in summary(level).verdict
    stands = [r["standing"] for r in rows(level, "retrieval") if r["scorer"] == "TF-IDF"]
    assert stands == ["level"] * 3
    only_pairs = facts_of(scores={}, similarity={"pairs": similarity()["pairs"]})
    assert summary(only_pairs).verdict.startswith("Pairs of the same task: ROC-AUC 0.931 (0.920")


@pytest.mark.parametrize(
    "missing",
    ["similarity", "audit", "operating_point", "compile", "phases", "scores", "training", "data"],
)
def test_a_missing_part_costs_only_itself(missing: str) -> None:
    facts = facts_of(**{missing: None})
    first, parts = summary(facts), blocks(facts)
    assert "no evidence" in as_text(first, parts, "x") and "Memory" in as_html(first, parts, {})
    assert bool(rows(facts, "retrieval")) is (missing != "similarity")
    assert bool(rows(facts, "floors")) is (missing != "scores")


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio", "none"])
def test_a_tracked_run_says_where_its_numbers_are(tracker: str) -> None:
    opening = summary(facts_of(settings=result()["settings"] | {"track": tracker}))
    assert ("Tracked: " in opening.where) is (tracker != "none")


def test_what_balanced_classes_do_to_probabilities_is_held_against_them() -> None:
    for kind in ("balanced", "none"):
        facts = facts_of(settings=result()["settings"] | {"class_weights": kind})
        assert ("equal shares of human and AI" in str(sentences(facts))) is (kind == "balanced")


def test_the_two_losses_are_drawn_apart_and_one_alone_where_there_is_one() -> None:
    training = facts_of().result.training
    labels = [axis.get_ylabel() for axis in loss_figure(training).axes]
    assert labels == ["classification loss (nats)", "contrastive loss (nats)", "score on valid"]
    changes = result()["training"] | {"history": [{"step": 1, "loss": 2.0}], "evals": []}
    (axis,) = loss_figure(facts_of(training=changes).result.training).axes
    assert axis.get_ylabel() == "loss (nats)"


def test_a_scorer_that_was_skipped_has_no_bars() -> None:
    figure = edits_figure(facts_of().result.scores["test"].edits)
    names = figure.axes[0].get_legend_handles_labels()[1]
    assert names == ["this model", "TF-IDF", "length"]


def test_the_curve_is_drawn_where_both_classes_are(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in predictions()))
    scored = read_scored(path)
    assert len(scored["test"].p) == 240 and scored["test"].labels.sum() == 120
    test = facts_of().result.scores["test"]
    assert roc_figure({"test": scored["unseen_humans"]}, 0.01, test) is None
    (axis,) = roc_figure({"test": scored["test"]}, 0.01, test).axes
    handles, names = axis.get_legend_handles_labels()
    assert names == ["test", "promised FPR", "this model, test", "TF-IDF, test", "length, test"]
    bars, scorers = edits_figure(test.edits).axes[0].get_legend_handles_labels()
    colours = [to_hex(bar.patches[0].get_facecolor()) for bar in bars]
    of_bars = dict(zip(scorers, colours, strict=True))
    for name, mark in zip(names[2:], handles[2:], strict=True):
        assert to_hex(mark.get_color()) == of_bars[name.removesuffix(", test")]
    unlabelled = {"split": "test", "label": None, "p_ai": 0.5}
    path.write_text(json.dumps(unlabelled) + "\n")
    assert read_scored(path) == {}


def test_a_run_that_failed_says_how_far_it_came(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "detector-2")
    (folder / "result.json").unlink()
    with (folder / "events-rank0.jsonl").open("a") as file:
        error = {"t": 1700.0, "type": "error", "rank": 0, "kind": "DataError", "message": "bad"}
        file.write(json.dumps(error | {"fix": "mend it"}) + "\n")
    text = report(folder, show=False).text
    assert text.startswith("No scores yet: the run is ") and "at optimizer step 58 of 200" in text
    assert "DataError: bad" in text and "Fix: mend it" in text
    assert (folder / "loss.png").exists()


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
