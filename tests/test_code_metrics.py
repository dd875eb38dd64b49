"""Guards: scores of code equal sacrebleu's and hand-worked numbers, and no text can end them."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from nbhelpers.errors import ConfigError
from nbhelpers.metrics import generation
from nbhelpers.metrics.generation import (
    GENERATION_METRICS,
    TASK_METRICS,
    Generated,
    score_generations,
    score_tasks,
)
from nbhelpers.metrics.intervals import interval, wilson
from nbhelpers.metrics.python_code import EMPTY, NUL, SURROGATE, TOO_DEEP, code_tokens
from nbhelpers.metrics.resampling import drawn_counts, resampled_sums

WORDS = ["x", "y", "total", "1", "2", "+", "*", "if", "return", "(", ")", "=", ":", "'a b'"]


def texts(n: int, seed: int, longest: int = 25) -> list[str]:
    """Return lines of random tokens, some of them empty."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(longest))) for _ in range(n)]


def score(metric: str, answers: list[str], references: Any = ()) -> float | None:
    """Return a score of answers, with their references where it takes them."""
    pairs = zip(answers, references or [None] * len(answers), strict=True)
    rows = [{"answer": answer, "reference": reference} for answer, reference in pairs]
    return Generated(rows).counts(metric).value


def rows_of(n: int, seed: int = 0) -> list[dict[str, Any]]:
    chance, answers, references = random.Random(seed), texts(n, seed), texts(n, seed + 1)
    for at in range(0, n, 2):
        references[at] = answers[at] + " + 1"
    return [
        {
            "split": "test",
            "id": str(at),
            "answer": answers[at],
            "reference": references[at],
            "new_tokens": chance.randrange(300),
            "stopped": chance.random() < 0.8,
            "outcome": chance.choice(["passed", "failed", "timeout", "error"]),
        }
        for at in range(n)
    ]


# Syntax.


def test_syntax_is_judged_in_the_fence_and_an_empty_answer_is_wrong() -> None:
    answers = ["Sure:\n```python\nx = 1\n```\nDone.", "", "x = (", "y = 2"]
    assert score("syntax_accuracy", answers) == 0.5
    found = Generated([{"answer": answer} for answer in answers]).error_counts
    assert found == {EMPTY: 1, "unclosed bracket": 1}


def test_hostile_answers_pass_through_every_score() -> None:
    hostile = [
        "(" * 4_000,
        "-" * 4_000 + "1",
        "x" * 300_000,
        "x = '\ud800'",
        "\0",
        "",
        "```",
        "'" * 999,
    ]
    rows = [
        {"id": str(at), "answer": text, "reference": "x = 1"} for at, text in enumerate(hostile)
    ]
    scores = score_generations(rows, seed=0, resamples=20)
    assert scores["n_samples"] == len(hostile)
    assert {TOO_DEEP, SURROGATE, NUL, EMPTY} <= set(scores["syntax_errors"])
    json.dumps(scores, allow_nan=False)


# BLEU, chrF, exact match.


@pytest.mark.parametrize("seed", range(3))
def test_bleu_and_chrf_are_sacrebleus(seed: int) -> None:
    answers, references = texts(60, seed), texts(60, seed + 50)
    references[::2] = [f"{text} x" for text in answers[::2]]
    cut = [[" ".join(code_tokens(text)) for text in side] for side in (answers, references)]
    bleu = BLEU(tokenize="none", force=True)
    assert score("bleu", answers, references) == pytest.approx(
        bleu.corpus_score(cut[0], [cut[1]]).score, abs=1e-9
    )
    chrf = CHRF()
    assert score("chrf", answers, references) == pytest.approx(
        chrf.corpus_score(answers, [references]).score, abs=1e-9
    )
    assert generation.signatures() == {
        "bleu": f"{bleu.get_signature()}|pretok:nb-python-1",
        "chrf": str(chrf.get_signature()),
    }


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (["a b c d e"], ["a b c d e"]),
        (["a b c"], ["a b c"]),  # no order 4 at all: 0 by sacrebleu
        (["a b x c d y e"], ["a b c d e"]),  # smoothing of orders 3 and 4
        (["q"], ["a b c d e"]),  # nothing matches
        ([""], ["a b c d e"]),
        (["a b c d"], ["a b c d e f g h"]),  # brevity
        (["a b c d", "q r s t u v"], ["a b c d", "q r x t u v w"]),
    ],
)
def test_the_formula_over_sums_is_sacrebleus_in_its_corners(
    made: list[str], wanted: list[str]
) -> None:
    bleu, chrf = BLEU(tokenize="none", force=True), CHRF()
    rows = np.array(bleu._extract_corpus_statistics(made, [wanted]), dtype=float)
    found = generation.bleu_scores(rows.sum(axis=0)[None, :])[0]
    assert found == pytest.approx(bleu.corpus_score(made, [wanted]).score, abs=1e-9)
    rows = np.array(chrf._extract_corpus_statistics(made, [wanted]), dtype=float)
    found = generation.chrf_scores(rows.sum(axis=0)[None, :], beta=2)[0]
    assert found == pytest.approx(chrf.corpus_score(made, [wanted]).score, abs=1e-9)


def test_bleu_treats_answer_and_reference_alike() -> None:
    code = "def f(x):\n    return x + 1\n"
    fenced = f"Here you are:\n```python\n{code}```\n"
    for metric, whole in (("bleu", pytest.approx(100)), ("exact_match", 1)):
        assert score(metric, [fenced], [code]) == score(metric, [code], [fenced]) == whole


def test_only_white_space_at_the_ends_of_lines_is_set_aside_in_exact_match() -> None:
    reference = "def f():\n    return 1\n"
    same = ["def f():  \r\n    return 1\n\n\n", "def f():\n    return 1"]
    other = ["def f():\n  return 1", "def f():\n\n    return 1", "def f():\n    return  1"]
    assert score("exact_match", same, [reference] * 2) == 1
    assert score("exact_match", other, [reference] * 3) == 0


def test_an_answer_without_reference_takes_no_part() -> None:
    whole = (("bleu", pytest.approx(100)), ("chrf", pytest.approx(100)), ("exact_match", 1))
    for metric, highest in whole:
        assert score(metric, ["a = 1", "junk"], ["a = 1", None]) == highest


@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_what_is_undefined_is_none_never_zero(metric: str) -> None:
    assert score(metric, []) is score(metric, ["x"]) is score("syntax_accuracy", []) is None


# Pass rates and plain shares.


def test_wilson_by_hand_and_at_the_edges() -> None:
    # Newcombe 1998, Stat. Med. 17, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for trial, wanted in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0000, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(*trial) == pytest.approx(wanted, abs=6e-5)
    assert wilson(0, 0) is None


# Scores of rows.


def test_scores_of_generations_have_the_agreed_form() -> None:
    rows = rows_of(40)
    scores = score_generations(rows, seed=1, resamples=200)
    assert scores["n_samples"] == scores["n_references"] == 40
    assert tuple(scores["metrics"]) == tuple(scores["intervals"]) == GENERATION_METRICS
    answers, references = [r["answer"] for r in rows], [r["reference"] for r in rows]
    texts_only = ("syntax_accuracy", "bleu", "chrf", "exact_match")
    assert scores["metrics"] == {
        **{metric: score(metric, answers, references) for metric in texts_only},
        "stopped": pytest.approx(np.mean([r["stopped"] for r in rows])),
        "mean_new_tokens": pytest.approx(np.mean([r["new_tokens"] for r in rows])),
    }
    for name, (low, high) in scores["intervals"].items():
        assert low <= scores["metrics"][name] <= high, name
    assert scores["interval_methods"]["bleu"] == "bootstrap"
    assert scores["interval_methods"]["stopped"] == "wilson"
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert score_generations(rows, seed=1, resamples=200) == scores


def test_scores_of_tasks_have_the_agreed_form() -> None:
    rows = [
        {"id": str(at), "answer": "x = 1", "outcome": outcome, "new_tokens": at, "stopped": True}
        for at, outcome in enumerate(["passed", "failed", "passed", "timeout", None])
    ]
    scores = score_tasks(rows)
    assert tuple(scores["metrics"]) == TASK_METRICS
    assert scores["metrics"]["pass@1"] == 0.5
    assert scores["intervals"]["pass@1"] == wilson(2, 4)
    assert scores["outcomes"] == {"passed": 2, "failed": 1, "timeout": 1, "not run": 1}


def test_no_rows_give_none_everywhere() -> None:
    for scores in (score_generations([], seed=0, resamples=5), score_tasks([])):
        assert set(scores["metrics"].values()) == set(scores["intervals"].values()) == {None}
        assert scores["n_samples"] == 0


def test_one_row_has_scores_but_no_bootstrap_interval() -> None:
    scores = score_generations(rows_of(1), seed=0, resamples=5)
    assert scores["metrics"]["bleu"] is not None
    assert scores["intervals"]["bleu"] is None
    assert scores["intervals"]["stopped"] is not None


def test_a_resampled_bleu_is_the_bleu_of_the_resampled_texts() -> None:
    rows = generation.Generated(rows_of(30, seed=3))
    for metric in ("bleu", "chrf"):
        counts = rows.counts(metric)
        sums = resampled_sums(counts.rows, 4, 9)
        for drawn, found in zip(drawn_counts(30, 4, 9), counts.score(sums), strict=True):
            chosen = [at for at in range(30) for _ in range(int(drawn[at]))]
            made = [rows.rows[at]["answer"] for at in chosen]
            wanted = [rows.rows[at]["reference"] for at in chosen]
            assert found == pytest.approx(score(metric, made, wanted), abs=1e-9)


def test_a_thousand_resamples_of_500_rows_take_less_than_two_seconds() -> None:
    rows = generation.Generated(rows_of(500, seed=7))
    counts = [rows.counts(metric) for metric in ("bleu", "chrf")]
    start = time.process_time()
    for each in counts:
        interval(each.score(resampled_sums(each.rows, 1000, 0)))
    assert time.process_time() - start < 2


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"resamples": 0}, {"seed": 0.5}])
def test_numbers_that_cannot_be_drawn_with_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        score_generations(rows_of(2), **{"seed": 0, "resamples": 5} | wrong)
