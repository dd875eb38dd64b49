"""Guards: predictions are written whole, in file order, and none that is missing gets a score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nbhelpers.errors import DataError
from nbhelpers.metrics.pairs import binary_scores
from nbhelpers.metrics.predictions import (
    FIELDS,
    PredictionWriter,
    evaluate_predictions,
    read_predictions,
)

ANSWERS = [("1", "2", 1), ("3", "4", 0), ("5", "6", 1), ("2", "1", 0)]


def write_pairs(path: Path, rows: list[tuple[object, ...]]) -> Path:
    """Write rows as tab-separated lines."""
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "answers.txt", ANSWERS)


def write(folder: Path, n: int = 3, split: str = "test", **columns: object) -> PredictionWriter:
    """Write n predictions of one split."""
    with PredictionWriter(folder / "predictions.jsonl") as writer:
        rows = {
            "id1": [f"{row}" for row in range(n)],
            "id2": ["ä"] * n,
            "label": [row % 2 for row in range(n)],
            "p": [0.1 * row for row in range(n)],
            "p_reversed": None,
            "prediction": [1] * n,
        }
        writer.write_chunk(split=split, start=0, **rows | columns)
    return writer


def test_both_files_hold_every_pair_in_order_the_text_only_those_of_test(tmp_path: Path) -> None:
    writer = write(tmp_path)
    assert writer.n_written == 3
    assert writer.txt_path.read_text(encoding="utf-8") == "0\tä\t1\n1\tä\t1\n2\tä\t1\n"
    columns = read_predictions(writer.path)
    assert tuple(columns) == FIELDS
    assert columns["row"] == [0, 1, 2] and columns["id1"] == ["0", "1", "2"]
    assert columns["p"] == [0.0, 0.1, 0.2] and columns["p_reversed"] == [None] * 3
    assert read_predictions(writer.path, fields=("label",)) == {"label": [0, 1, 0]}
    assert read_predictions(writer.path, split="valid", fields=("row",)) == {"row": []}
    unseen = write(tmp_path, split="test_unseen")
    assert len(read_predictions(unseen.path)["p"]) == 3 and unseen.txt_path.read_text() == ""


def test_a_failed_writer_leaves_the_old_files_and_no_part_of_new_ones(tmp_path: Path) -> None:
    before = write(tmp_path, 2).path.read_text()
    with pytest.raises(TypeError):
        write(tmp_path, 3, label=None)
    assert (tmp_path / "predictions.jsonl").read_text() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_visible_before_all_is_written(tmp_path: Path) -> None:
    with PredictionWriter(tmp_path / "predictions.jsonl"):
        assert not (tmp_path / "predictions.jsonl").exists()
    assert (tmp_path / "predictions.jsonl").exists()


def test_a_chunk_is_written_as_json_writes_each_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(400), [0, 1, 1e-45, 5e-324, 0.1, 1 - 2**-24]])
    p = np.concatenate([p, p.astype(np.float32)])  # longer reprs
    ids = ["plain 7", 'quote " back \\ slash', "ä 你", "\u2028", "\x7f", "</script>"]
    columns = {
        "id1": [ids[i % len(ids)] for i in range(len(p))],
        "id2": [ids[i % 5] for i in range(len(p))],
        "label": rng.integers(0, 2, len(p)),
        "p": p,
        "p_reversed": p[::-1],
        "prediction": p > 0.5,
    }
    with PredictionWriter(tmp_path / "predictions.jsonl") as writer:
        for start in range(0, len(p), 100):
            part = {name: values[start : start + 100] for name, values in columns.items()}
            writer.write_chunk(split="test", start=start, **part)
    lists = {name: np.asarray(values).tolist() for name, values in columns.items()}
    lists["prediction"] = [int(value) for value in lists["prediction"]]
    rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    wanted = [
        json.dumps({"split": "test", "row": row} | values, ensure_ascii=False)
        for row, values in enumerate(rows)
    ]
    # not splitlines: U+2028 is part of an id
    assert writer.path.read_text(encoding="utf-8").split("\n") == [*wanted, ""]
    assert writer.n_written == len(p)
    assert read_predictions(writer.path)["p"] == p.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("column", ["p", "p_reversed"])
def test_a_score_that_is_not_finite_is_named_and_leaves_no_file(
    tmp_path: Path, column: str, bad: float
) -> None:
    with pytest.raises(DataError, match=f"test row 1 .* is {bad}"):
        write(tmp_path, **{column: [0.5, bad, 0.5]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"split": "test"}', "text", "[" * 100_000, "9" * 5000, "3", "{}", "null"]
)
def test_a_broken_line_is_named_by_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path).path
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match="line 4: not a prediction"):
        read_predictions(path)


def test_what_was_written_scores_against_its_own_answers(tmp_path: Path) -> None:
    writer = write(tmp_path, 3)
    rows = [json.loads(line) for line in writer.path.read_text().splitlines()]
    triples = [(r["id1"], r["id2"], r["label"]) for r in rows]
    found = evaluate_predictions(write_pairs(tmp_path / "answers.txt", triples), writer.txt_path)
    assert (found["precision"], found["recall"]) == (pytest.approx(1 / 3), 1.0)


def test_scores_are_binary_and_macro_by_name(tmp_path: Path, answers: Path) -> None:
    calls = [1, 1, 0, 0]
    rows = [(a, b, call) for (a, b, _), call in zip(ANSWERS, calls, strict=True)]
    found = evaluate_predictions(answers, write_pairs(tmp_path / "p.txt", rows[::-1]))
    wanted = binary_scores([label for *_, label in ANSWERS], calls, 0.5)
    assert found["n_pairs"] == 4 and found["prior"] == 0.5
    for name in ("precision", "recall", "f1", "f1_macro", "accuracy"):
        assert found[name] == wanted[name]
    assert "roc_auc" not in found


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (ANSWERS[:3], "1 missing predictions: 2 1"),
        ([], "4 missing predictions: .* …"),
        ([*ANSWERS, ("7", "8", 1)], "1 pairs that are not among the answers: 7 8"),
        ([("2", "3", 1), ("4", "3", 1)], "4 3 .the answers have it reversed."),
        ([*ANSWERS, ("1", "2", 0)], r"1 pairs with both labels: 1 2 .line 5."),
        ([*ANSWERS[:3], ("2", "1", 2)], "line 4"),
        ([*ANSWERS[:3], ("2", "1", "0.7")], "not id1<TAB>id2<TAB>0|1"),
        ([*ANSWERS[:3], ("2", "1")], "line 4"),
    ],
)
def test_predictions_that_do_not_answer_are_refused(
    tmp_path: Path, answers: Path, rows: list[tuple[object, ...]], wanted: str
) -> None:
    with pytest.raises(DataError, match=wanted) as caught:
        evaluate_predictions(answers, write_pairs(tmp_path / "p.txt", rows))
    assert caught.value.exit_code == 5 and "p.txt" in caught.value.message


def test_every_kind_of_fault_is_in_one_message(tmp_path: Path, answers: Path) -> None:
    rows = [("1", "2", 1), ("1", "2", 0), ("9", "9", 1), ("x",)]
    with pytest.raises(DataError) as caught:
        evaluate_predictions(answers, write_pairs(tmp_path / "p.txt", rows))
    for kind in ("3 missing", "both labels", "not among the answers", "line 4"):
        assert kind in caught.value.message


def test_equal_repeats_count_once(tmp_path: Path, answers: Path) -> None:
    rows = [*ANSWERS, ANSWERS[0]]
    found = evaluate_predictions(answers, write_pairs(tmp_path / "p.txt", rows))
    assert (found["n_pairs"], found["n_repeated_predictions"], found["f1"]) == (4, 1, 1.0)


def test_bom_crlf_and_blank_lines_are_no_content(tmp_path: Path, answers: Path) -> None:
    path = tmp_path / "p.txt"
    text = "\n".join("\t".join(map(str, row)) for row in ANSWERS)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    assert evaluate_predictions(answers, path)["f1"] == 1.0


def test_contradicting_answers_and_a_missing_file_are_refused(
    tmp_path: Path, answers: Path
) -> None:
    torn = write_pairs(tmp_path / "torn.txt", [*ANSWERS, ("1", "2", 0)])
    with pytest.raises(DataError, match="torn"):
        evaluate_predictions(torn, answers)
    with pytest.raises(DataError, match="cannot read"):
        evaluate_predictions(answers, tmp_path / "absent.txt")


@pytest.mark.parametrize("content", [b"\xff\xfe1\0", b"1\t2\t1\n\xe9\t1\t1\n", b"\x1f\x8b\x08\0"])
def test_a_file_that_is_not_utf_8_is_refused_in_words(
    tmp_path: Path, answers: Path, content: bytes
) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not UTF-8"):
        evaluate_predictions(answers, path)
    with pytest.raises(DataError):
        read_predictions(path)
