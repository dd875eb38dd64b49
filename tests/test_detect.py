"""Promise: a score ranks; a call needs the user's own people; a sheet says how to contest it."""

from __future__ import annotations

import copy
import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_detector import program, write_run
from typer.testing import CliRunner

from nbhelpers.cli.app import app
from nbhelpers.data.samples.styles import SAMPLE_NOTE
from nbhelpers.errors import ConfigError, DataError, NonFinite, RequirementMissed
from nbhelpers.use import model_process
from nbhelpers.use.calls import Scored
from nbhelpers.use.code_files import code_file
from nbhelpers.use.detector import Detector, load_detector
from nbhelpers.use.facts import NO_EVIDENCE, detector_facts
from nbhelpers.use.sheets import EditLogits, evidence_of
from nbhelpers.use.trained import find_detector

NEED = 59  # programs that promise 5 %


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "detector-tiny-1")


@pytest.fixture(scope="module")
def humans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Known-human programs with logits from -2 to 1, and things that do not count."""
    folder = tmp_path_factory.mktemp("humans")
    for i in range(NEED):
        name = "".join(chr(97 + int(digit)) for digit in f"{i:03d}")
        text = program(round(-2 + 3 * i / (NEED - 1), 4), name)
        (folder / f"{name}.py").write_text(text)
    (folder / "copy.py").write_text(text)
    (folder / "tiny.py").write_text("x = 1\n")
    (folder / "ai").mkdir()
    (folder / "ai" / "made.py").write_text(program(9, "machine"))
    return folder


@pytest.fixture(scope="module")
def detector(run: Path) -> Iterator[Detector]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setattr(model_process, "MODULE", "fake_detector")
        with load_detector(run, device="cpu") as found:
            yield found


@pytest.fixture
def calibrated(detector: Detector, humans: Path) -> Iterator[Detector]:
    detector.calibrate(humans, target_fpr=0.05, progress=False)
    yield detector
    (detector.facts.home / "calibration.json").unlink()


def test_without_a_calibration_there_is_a_score_and_no_flag(
    detector: Detector, tmp_path: Path
) -> None:
    sheet = detector.score_code(program(9), language="python", edits=False)
    assert sheet.p_ai > 0.999 and sheet.call is None
    assert "does not carry over to other people" in sheet.reasons[0]
    (tmp_path / "a.py").write_text(program(9, "a"))
    (tmp_path / "b.py").write_text(program(-3, "b"))
    batch = detector.detect(tmp_path, progress=False)
    assert [row.name for row in batch.rows] == ["a.py", "b.py"]
    assert [row.verdict.call for row in batch.rows] == [None, None]
    text = batch.text()
    assert "Nothing is called AI" in text and NO_EVIDENCE in text
    assert "own threshold lay 3 of 200 human programs of the run's own test (1.5 %, " in text
    (tmp_path / "b.py").write_text("x = 1\n")
    text, table = (found := detector.detect(tmp_path, progress=False)).text(), found.csv()
    assert "too short  b.py" in text and text.count("does not carry over") == 1
    assert "no calibration" in table and "does not carry over" not in table
    assert [each["expected"] for each in batch.expected_false_accusations()] == [0.03, 1.0]


def test_a_calibration_counts_each_program_once_and_leaves_out_what_is_no_human_code(
    detector: Detector, humans: Path, tmp_path: Path
) -> None:
    found = detector.calibrate(humans, target_fpr=0.05, out=tmp_path / "c.json", progress=False)
    assert (found.n, found.n_duplicates, found.n_files) == (NEED, 1, NEED + 2)
    assert found.left_out == {"labelled AI": 1, "too short": 1}
    assert found.is_met and found.threshold_logit == 1.0
    assert found.languages == {"python": NEED}
    strict = detector.calibrate(humans, out=tmp_path / "d.json", progress=False)
    sheet = detector.score_code(program(9), language="python", calibration=strict, edits=False)
    assert sheet.call is None and "takes 299, 240 more" in sheet.reasons[0]


@pytest.mark.parametrize(
    ("score", "call", "words"),
    [
        (9, "ai", ""),
        (1.0, "undecided", "the band 0.5 to 0.731"),
        (0.5, "undecided", "the band"),
        (-0.1, "human", ""),
    ],
)
def test_with_a_calibration_a_score_gets_a_call(
    calibrated: Detector, score: float, call: str, words: str
) -> None:
    sheet = calibrated.score_code(program(score), language="python", edits=False)
    assert sheet.call == call and words in "; ".join(sheet.reasons)


@pytest.mark.parametrize(
    ("code", "language", "words"),
    [
        (program(9), "", "unknown language: say which"),
        (program(9), "COBOL", "was trained on java, python, not on cobol"),
        (program(9), "java", "0 of the calibration's programs are in java"),
        ("score(9)", "python", "too short: 4 words"),
        (program(9) + "x = 1\n" * 80, "python", "the first 100 of"),
    ],
)
def test_it_abstains_and_says_why(
    calibrated: Detector, code: str, language: str, words: str
) -> None:
    sheet = calibrated.score_code(code, language=language, edits=False)
    assert sheet.call == "not judged" and words in "; ".join(sheet.reasons)
    assert words in sheet.text()


def test_a_calibration_that_came_with_an_export_is_of_other_people(
    detector: Detector, humans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(model_process, "MODULE", "fake_detector")
    found = detector.calibrate(humans, target_fpr=0.05, out=tmp_path / "c.json", progress=False)
    folder = tmp_path / "exported"
    shutil.copytree(detector.facts.place.folder, folder)
    told = json.loads((folder / "detector.json").read_text())
    theirs = replace(found, source="code of the one who exported this")
    (folder / "detector.json").write_text(json.dumps(told | {"calibration": theirs.to_dict()}))
    place = theirs.save(folder / "calibration.json")
    with load_detector(folder, device="cpu") as exported:
        options = {"language": "python", "edits": False}
        sheet = exported.score_code(program(9), **options)
        assert sheet.call is None and "on other people" in sheet.reasons[0]
        assert exported.score_code(program(9), calibration=place, **options).call == "ai"
        exported.calibrate(humans, target_fpr=0.05, progress=False)
        assert exported.score_code(program(9), **options).call == "ai"


def test_a_batch_says_how_many_false_accusations_to_expect(
    calibrated: Detector, tmp_path: Path
) -> None:
    for i, score in enumerate((9, 0.7, -5)):
        (tmp_path / f"{i}.py").write_text(program(score))
    (tmp_path / "short.py").write_text("score(9)")
    batch = calibrated.detect(tmp_path, progress=False)
    assert [row.verdict.call for row in batch.rows] == ["ai", "not judged", "undecided", "human"]
    (told,) = batch.expected_false_accusations()
    assert told["files"] == 3 and told["expected"] == pytest.approx(3 / (NEED + 1))
    low, high = told["interval"]
    assert low == 0 and high == pytest.approx(3 * (1 - 0.025 ** (1 / NEED)))
    text = batch.text()
    assert "Called AI: 1; undecided (the score lies in the band): 1; not judged" in text
    assert "3 of the 4 files can be judged. If people like yours wrote all of these, about " in text
    assert f"0 of {NEED} known-human programs of your own (0 %, 95 % interval 0 to 6.06 %)" in text


def test_a_model_of_the_bundled_sample_calls_nothing_and_every_output_says_what_it_is(
    detector: Detector, humans: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "detector-toy")
    told = json.loads((run / "result.json").read_text())
    told["data"]["note"] = SAMPLE_NOTE
    (run / "result.json").write_text(json.dumps(told))
    toy = copy.copy(detector)
    toy.facts = detector_facts(find_detector(run))
    assert SAMPLE_NOTE in toy.calibrate(humans, target_fpr=0.05, progress=False).text()
    batch, pairs = toy.detect(humans, progress=False), toy.similar(humans, progress=False)
    assert {row.verdict.call for row in batch.rows} == {None}
    sheet = toy.score_code(program(9), language="python", edits=False)
    assert sheet.call is None and "detects nothing real" in sheet.reasons[0]
    outputs = [batch.text(), batch.csv(), batch._repr_html_(), sheet.text(), sheet.html()]
    outputs += [pairs.text(), json.dumps(pairs.to_dict()), json.dumps(batch.to_dict())]
    outputs.append(pairs.save(tmp_path / "pairs.csv").read_text())
    assert all("detects nothing real" in each for each in outputs)
    assert batch.csv().startswith("rank,file,") and outputs[-1].startswith("rank,file_a,")
    assert all(row["note"] == SAMPLE_NOTE for row in csv.DictReader(batch.csv().splitlines()))


def test_a_score_without_a_result_says_that_it_is_not_known(
    detector: Detector, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "detector-stopped")
    (run / "result.json").unlink()
    bare = copy.copy(detector)
    bare.facts = detector_facts(find_detector(run))
    (tmp_path / "a.py").write_text(program(9))
    batch = bare.detect(tmp_path / "a.py", progress=False)
    sheet = bare.score_code(program(9), language="python", edits=False)
    outputs = [batch.text(), sheet.text(), sheet.html(), json.dumps(sheet.to_dict())]
    words = "its temperature are not known, and the encoder alone at temperature 1 is taken"
    assert all(words in text.replace("\n", " ") for text in outputs)
    assert words not in detector.detect(tmp_path / "a.py", progress=False).text()


def test_a_checkpoint_without_a_result_is_known_by_the_data_of_its_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "detector-toy")
    (run / "result.json").unlink()
    assert not detector_facts(find_detector(run)).is_sample
    record = json.loads((run / "run.json").read_text()) | {
        "preset": {"settings": {"data": "smoke"}}
    }
    (run / "run.json").write_text(json.dumps(record))
    assert detector_facts(find_detector(run)).is_sample


def test_tables_survive_hostile_names(detector: Detector, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("=cmd|' -C calc'!A0.py", "<img src=x>.py", "a\nb.py"):
        (folder / name).write_text(program(1))
    (folder / "@left.bin").write_bytes(b"\0")
    batch = detector.detect(folder, out=tmp_path / "t.csv", progress=False)
    batch.save(tmp_path / "t.json")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["file"] for row in rows}
    assert names == {"'=cmd|' -C calc'!A0.py", "<img src=x>.py", "a\\nb.py", "'@left.bin"}
    assert float(rows[0]["logit"]) == 1.0
    told = json.loads((tmp_path / "t.json").read_text())
    assert len(told["rows"]) == 3 and told["skipped"][0]["reason"] == "unknown language"
    assert told["inference"]["ms_per_file"] > 0
    assert "<img" not in batch._repr_html_()


def test_a_sheet_names_the_bytes_the_model_and_what_would_change_the_call(
    calibrated: Detector, tmp_path: Path
) -> None:
    judge = calibrated.judge()
    file = code_file(program(9), "python", "<b>.py")
    logits = {"rename": -3.0, "reformat": 8.5, "strip_comments": None}
    edited = EditLogits(logits=logits | {"rename_reformat": 9.0}, unchanged={"rename_reformat"})
    sheet = evidence_of(judge, file, Scored(logit=9.0, tokens=60), edited)
    text, page = sheet.text(), sheet.html()
    for words in (NO_EVIDENCE, file.sha256, calibrated.facts.weights_sha256, "How to contest it"):
        assert words in text and words in page
    assert "Local names changed: the program then scores 0.047 and would be not called" in text
    assert "Other blanks and line breaks: the program then scores 1.000." in text  # the call stays
    assert "and other blanks and line breaks: what the model reads stays the same." in text
    assert "nbhelpers detect '<b>.py' --model detector-tiny-1, with" in text
    assert "<b>.py" not in page and "&lt;b&gt;.py" in page and "<script" not in page
    told = json.loads(sheet.save(tmp_path / "s.json").read_text())
    assert told["sha256"] == file.sha256 and told["threshold"]["kind"] == "calibration"
    assert [each["call"] for each in told["edits"]] == ["human", "ai", None, "ai"]
    assert told["edits"][2]["p_ai"] is None
    with pytest.raises(ConfigError, match=r"\.pdf"):
        sheet.save(tmp_path / "s.pdf")


def test_what_cannot_be_scored_is_an_error_with_its_reason(
    detector: Detector, tmp_path: Path
) -> None:
    for text, words in (('{"cells": []}', "no cell of code"), ("[1]", "no notebook that can be")):
        (tmp_path / "book.ipynb").write_text(text)
        with pytest.raises(DataError, match=words):
            detector.score_code(tmp_path / "book.ipynb")
    (tmp_path / "x.py").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(DataError, match="binary"):
        detector.score_code(tmp_path / "x.py")
    for code in ("", " \n"):
        with pytest.raises(ConfigError, match="empty"):
            detector.score_code(code)
    with pytest.raises(ConfigError, match="no file"):
        detector.score_code("missing.py")
    with pytest.raises(NonFinite):
        detector.score_code(program(float("nan")), language="python", edits=False)
    with pytest.raises(ConfigError, match="folder that does not exist"):
        detector.detect(tmp_path, out=tmp_path / "no" / "t.csv")
    assert detector.detect(tmp_path, progress=False).rows == ()


def test_another_objective_is_refused(tmp_path: Path, detector: Detector) -> None:
    folder = write_run(tmp_path / "detector-b", objective="similar")
    other = copy.copy(detector)
    other.facts = detector_facts(find_detector(folder))
    with pytest.raises(ConfigError, match="objective=similar: it cannot score code"):
        other.score_code(program(1))
    (folder / "checkpoints" / "step-00000008" / "detector.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match="objective is missing"):
        detector_facts(find_detector(folder))


def test_similar_programs_rank_first_and_the_floor_stands_beside(
    detector: Detector, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(program(1, "total"))
    (tmp_path / "b.py").write_text(program(1, "total") + "\n# end\n")
    (tmp_path / "c.java").write_text("class Other { int x; int y; int z; }\n" * 6)
    found = detector.similar(tmp_path, progress=False, out=tmp_path / "pairs.csv")
    rows = found.rows()
    assert (rows[0]["file_a"], rows[0]["file_b"]) == ("a.py", "b.py") and found.n_pairs == 3
    assert rows[0]["same_task"] and not rows[-1]["same_task"] and rows[0]["floor_rank"] == 1
    assert rows[-1]["language_b"] == "java" and "no evidence of misconduct" in found.text()
    assert len((tmp_path / "pairs.csv").read_text().splitlines()) == 4
    one = detector.similar(tmp_path / "a.py", tmp_path / "b.py", progress=False)
    assert one.n_pairs == 1 and one.pairs[0].cosine > 0.9


def test_a_lost_process_is_started_again_and_a_closed_detector_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(model_process, "MODULE", "fake_detector")
    found = load_detector(run, device="cpu")
    found.child.kill()
    assert found.score_code(program(1), language="python", edits=False).logit == 1.0
    found.close()
    with pytest.raises(ConfigError, match="is closed"):
        found.score_code(program(1), language="python", edits=False)
    with pytest.raises(ConfigError, match="device='tpu'"):
        load_detector(run, device="tpu")


def test_the_shell_says_the_same_and_ends_with_its_codes(
    run: Path, humans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(model_process, "MODULE", "fake_detector")
    shell, model = CliRunner(), ["--model", str(run), "--device", "cpu", "-q"]
    out = tmp_path / "c.json"
    few = shell.invoke(app, ["calibrate", "--humans", str(humans), "--out", str(out), *model])
    assert isinstance(few.exception, RequirementMissed) and "240 more" in few.exception.message
    assert "--fpr 0.05" in few.exception.fix and out.is_file()
    good = ["calibrate", "--humans", str(humans), "--fpr", "0.05", *model]
    assert shell.invoke(app, good).exit_code == 0
    place = run / "calibration.json"
    before = place.read_bytes()
    few = shell.invoke(app, ["calibrate", "--humans", str(humans), *model])
    assert place.read_bytes() == before and "stays as it is" in few.output
    place.unlink()
    (tmp_path / "empty").mkdir()
    nothing = shell.invoke(app, ["detect", str(tmp_path / "empty"), *model])
    assert "holds no file" in nothing.exception.message
    assert "--model" in shell.invoke(app, ["similar", str(humans)]).output
    told = shell.invoke(app, ["detect", str(humans), *model, "--json", str(tmp_path / "t.json")])
    assert told.exit_code == 0 and "Nothing is called AI" in told.output
    wrong = shell.invoke(app, ["detect", str(humans), *model, "--csv", "t.txt"])
    assert isinstance(wrong.exception, ConfigError)
    pairs = shell.invoke(app, ["similar", str(humans), *model, "--top", "3"])
    assert pairs.exit_code == 0 and "pairs compared" in pairs.output
