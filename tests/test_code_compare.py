"""Guards: runs are compared sample by sample, luck is called noise, and unlike runs are refused."""

from __future__ import annotations

import itertools
import json
import random
from statistics import mean
from typing import Any

import numpy as np
import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.metrics.compare import (
    METRIC_NAMES,
    compare_over_seeds,
    compare_runs,
    why_not_comparable,
)
from nbhelpers.metrics.generation import Generated
from nbhelpers.metrics.intervals import holm

Rows = list[dict[str, Any]]
HOW = {"metric": "pass@1", "baseline": "a", "seed": 0, "resamples": 400}


def tasks(passed: list[bool | int], **more: Any) -> Rows:
    return [
        {
            "split": "humaneval",
            "id": f"t{at}",
            "prompt": f"do {at}",
            "reference": None,
            "answer": "x",
            "outcome": "passed" if each else "failed",
        }
        | more
        for at, each in enumerate(passed)
    ]


def answers(n: int, seed: int, share_right: float) -> Rows:
    """Return answers that equal their reference with some probability."""
    chance, rows = random.Random(seed), []
    for at in range(n):
        reference = f"def f{at}(x, y):\n    return x * {at} + y - {at % 7}\n"
        wrong = reference.replace("return", "return not").replace("+", "//")
        answer = reference if chance.random() < share_right else wrong
        row = {"split": "test", "id": at, "prompt": "p", "reference": reference, "answer": answer}
        rows.append(row | {"new_tokens": len(answer), "stopped": True})
    return rows


def one(runs: dict[str, Any], **how: Any) -> dict[str, Any]:
    return compare_runs(runs, **HOW | how)["against"]["b"]


# Runs on the same samples.


def test_a_run_against_itself_is_within_noise() -> None:
    rows = answers(50, 0, 0.5)
    for metric in ("bleu", "chrf", "exact_match", "syntax_accuracy", "mean_new_tokens"):
        found = one({"a": rows, "b": rows[::-1]}, metric=metric)
        assert (found["difference"], found["p_value"]) == (0, 1)
        assert found["interval"] == [0, 0]
        assert found["sentence"] == "b against a: within noise"


def test_a_clear_difference_has_a_direction_both_ways() -> None:
    weak, strong = tasks([0] * 30 + [1] * 10), tasks([0] * 5 + [1] * 35)
    assert one({"a": weak, "b": strong})["verdict"] == "better"
    assert one({"a": strong, "b": weak})["verdict"] == "worse"
    assert one({"a": weak, "b": strong})["difference"] == pytest.approx(25 / 40)


def test_the_length_of_answers_is_neither_better_nor_worse() -> None:
    short = [row | {"new_tokens": 5} for row in tasks([1] * 30)]
    long = [row | {"new_tokens": 9 + at % 3} for at, row in enumerate(short)]
    assert one({"a": short, "b": long}, metric="mean_new_tokens")["verdict"] == "higher"


def test_the_order_of_rows_does_not_matter() -> None:
    left, right = answers(40, 1, 0.4), answers(40, 2, 0.6)
    shuffled = random.Random(0).sample(right, k=40)
    assert one({"a": left, "b": right}, metric="bleu") == one(
        {"a": left, "b": shuffled}, metric="bleu"
    )


def test_pairing_sees_what_two_intervals_hide() -> None:
    """12 tasks of 200 more, none less: Wilson's intervals overlap widely, the pairs are settled."""
    base = [at % 2 for at in range(200)]
    more = [1 if at % 2 or at < 24 else 0 for at in range(200)]
    found = one({"a": tasks(base), "b": tasks(more)})
    assert found["verdict"] == "better"
    assert found["interval"][1] - found["interval"][0] < 0.08


def test_the_p_value_of_pass_rates_is_the_exact_sign_test() -> None:
    """Of 6 tasks that differ, 5 in favour: 2 * (1 + 6) / 64 of all swaps are as uneven."""
    left, right = [0] * 5 + [1] + [1] * 20, [1] * 5 + [0] + [1] * 20
    swaps = [sum(signs) for signs in itertools.product((-1, 1), repeat=6)]
    exact = mean(abs(total) >= 4 for total in swaps)
    found = one({"a": tasks(left), "b": tasks(right)}, resamples=100)
    assert found["p_value"] == pytest.approx(exact)


def test_four_samples_that_differ_are_too_few_although_the_bootstrap_leaves_zero_out() -> None:
    left, right = [0] * 4 + [1] * 60, [1] * 64
    found = one({"a": tasks(left), "b": tasks(right)}, resamples=2000, seed=1)
    assert found["interval"][0] > 0
    assert found["verdict"] == "within noise"
    assert "only 4 samples differ, p = 0.1" in found["sentence"]


def test_bleu_differences_are_differences_of_corpus_bleu() -> None:
    left, right = answers(60, 3, 0.3), answers(60, 4, 0.7)
    whole = compare_runs({"a": left, "b": right}, **HOW | {"metric": "bleu"})
    found = whole["against"]["b"]
    scores = [Generated(rows).counts("bleu").value for rows in (left, right)]
    assert whole["scores"] == {"a": pytest.approx(scores[0]), "b": pytest.approx(scores[1])}
    assert found["difference"] == pytest.approx(scores[1] - scores[0])
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    assert found["verdict"] == "better"
    json.dumps(whole, allow_nan=False)


def test_noise_is_called_a_difference_in_at_most_one_of_twenty_cases() -> None:
    chance, called = np.random.default_rng(1), 0
    for trial in range(200):
        hard = chance.random(40)
        left, right = (tasks(chance.random(40) < hard) for _ in range(2))
        found = one({"a": left, "b": right}, seed=trial, resamples=200)
        called += found["verdict"] != "within noise"
    assert called <= 16  # 10 expected at most; 16 or fewer in 97 of 100 such tests


# What is not comparable.


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (tasks([1] * 9), "samples in one run only: 1 (such as t9)"),
        (tasks([1] * 10, id="t0"), "the id t0 occurs more than once"),
        (tasks([1] * 10, split="mbpp"), "samples in one run only: 20"),
        (tasks([1] * 9) + tasks([1] * 10, split="mbpp")[9:], "several splits (humaneval, mbpp)"),
        (tasks([1] * 10, reference="x"), "references that differ: 10 (such as t0)"),
        (tasks([1] * 10, prompt="p"), "prompts that differ: 10"),
        ([*tasks([1] * 9), tasks([1] * 10)[9] | {"outcome": None}], "pass@1 is known of other"),
        (tasks([1] * 10, outcome=None), "pass@1 is not defined"),
    ],
)
def test_unlike_runs_are_refused_with_the_reason(other: Rows, reason: str) -> None:
    found = one({"a": tasks([1] * 10), "b": other})
    assert found["verdict"] == found["verdict_holm"] == "not comparable"
    assert reason in found["sentence"]
    assert found["difference"] is found["interval"] is found["p_value"] is None


def scored(n: int = 256, signature: str = "v1", **more: Any) -> dict[str, Any]:
    decoding = {"mode": "greedy", "max_new_tokens": n, "batch_size": 8} | more
    return {"decoding": decoding, "signatures": {"bleu": signature}, "tokenizer": "t"}


@pytest.mark.parametrize(
    ("second", "metric", "reason"),
    [
        (scored(384), "pass@1", "max_new_tokens differs (256 and 384)"),
        (scored(mode="sampled"), "pass@1", "mode differs (greedy and sampled)"),
        (scored(top_p=0.9), "pass@1", "top_p differs (None and 0.9)"),
        (scored(signature="v2"), "bleu", "the bleu signature differs (v1 and v2)"),
        (scored() | {"tokenizer": "u"}, "bleu", "the tokenizer differs (t and u)"),
        (scored(signature="v2"), "pass@1", None),
        (scored(batch_size=2), "bleu", None),
    ],
)
def test_other_decoding_or_another_signature_is_not_comparable(
    second: dict[str, Any], metric: str, reason: str | None
) -> None:
    assert why_not_comparable(scored(), second, metric) == reason
    rows = answers(10, 0, 0.5) if metric == "bleu" else tasks([1] * 10)
    found = one({"a": rows, "b": rows}, metric=metric, scored={"a": scored(), "b": second})
    assert found["verdict"] == ("not comparable" if reason else "within noise")
    assert found["reason"] == reason


def test_a_run_of_unknown_decoding_is_not_comparable() -> None:
    rows = tasks([1] * 10)
    found = one({"a": rows, "b": rows}, scored={"a": scored()})
    assert found["reason"] == "nothing is known of how one of them was decoded"


def test_misspelt_names_are_told() -> None:
    rows = tasks([1])
    with pytest.raises(ConfigError, match="did you mean `bleu`"):
        compare_runs({"a": rows}, **HOW | {"metric": "bleus"})
    with pytest.raises(ConfigError, match="did you mean `r16`"):
        compare_runs({"r16": rows}, **HOW | {"baseline": "r166"})
    assert "pass@1" in METRIC_NAMES


# Many comparisons.


def test_holm_by_hand_and_never_below_the_plain_value() -> None:
    # sorted .005 .01 .03 .04, times 4 3 2 1, made monotone
    plain = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    wanted = {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    assert holm(plain) == pytest.approx(wanted)
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_many_comparisons_ask_for_more() -> None:
    """7 tasks that differ, all in favour, settle one comparison (p = 1/64), not one of six."""
    base, better = tasks([0] * 7 + [1] * 40), tasks([1] * 47)
    runs = {"a": base, "b": better} | {f"same{at}": base for at in range(5)}
    found = compare_runs(runs, **HOW | {"resamples": 4000})["against"]["b"]
    assert (found["verdict"], found["verdict_holm"]) == ("better", "within noise")
    assert found["p_holm"] == pytest.approx(6 * found["p_value"])


# Seeds.


def study(n: int, k: int, chance: np.random.Generator, *, seed_noise: float) -> dict[str, Any]:
    """Return rows of two equal adapters: samples favour one or the other, seeds move each."""
    hard, favour = chance.normal(0, 1.5, n), chance.normal(0, 0.8, n)
    runs: dict[str, Any] = {"a": {}, "b": {}}
    for seed in range(k):
        for name, shift in (("a", 0), ("b", favour)):
            skill = hard + shift + chance.normal(0, seed_noise) + chance.normal(0, 0.5, n)
            runs[name][seed] = tasks(skill > 0)
    return runs


@pytest.mark.parametrize("seed_noise", [0.0, 0.4])
def test_both_sources_together_hold_their_level(seed_noise: float) -> None:
    chance, covered = np.random.default_rng(2), 0
    for trial in range(100):
        runs = study(60, 3, chance, seed_noise=seed_noise)
        found = compare_over_seeds(runs, **HOW | {"seed": trial, "resamples": 100})["against"]["b"]
        covered += found["interval"][0] <= 0 <= found["interval"][1]
    assert covered >= 88  # 95 expected


def test_with_equal_seeds_only_the_samples_are_left() -> None:
    chance = np.random.default_rng(3)
    left, right = (tasks(chance.integers(2, size=200)) for _ in range(2))
    runs = {"a": dict.fromkeys(range(3), left), "b": dict.fromkeys(range(3), right)}
    found = compare_over_seeds(runs, **HOW | {"resamples": 2000})["against"]["b"]
    single = one({"a": left, "b": right}, resamples=2000)
    assert found["spread"]["seeds"] == 0
    assert found["interval"] == pytest.approx(single["interval"], abs=0.015)


def test_the_base_model_stands_for_every_seed() -> None:
    base, tuned = tasks([0] * 30 + [1] * 30), tasks([0] * 5 + [1] * 55)
    runs = {"base": {0: base}, "r16": {1: tuned, 2: tuned[::-1], 3: tuned}}
    found = compare_over_seeds(runs, **HOW | {"baseline": "base"})
    assert found["against"]["r16"]["verdict"] == "better"
    assert list(found["against"]["r16"]["per_seed"]) == [1, 2, 3]
    assert found["adapters"]["base"]["verdict"] == "no seed takes part"
    json.dumps(found, allow_nan=False)


def test_every_seed_must_have_been_decoded_alike() -> None:
    rows = tasks([1] * 10)
    runs = {name: dict.fromkeys(range(3), rows) for name in "ab"}
    how = {name: dict.fromkeys(range(3), scored()) for name in "ab"}
    alike = compare_over_seeds(runs, **HOW, scored=how)["against"]["b"]
    how["b"] = how["b"] | {2: scored(384)}
    apart = compare_over_seeds(runs, **HOW, scored=how)["against"]["b"]
    assert (alike["verdict"], apart["verdict"]) == ("within noise", "not comparable")
    assert apart["reason"] == "max_new_tokens differs (256 and 384)"


def test_one_seed_has_an_interval_over_samples_but_no_verdict() -> None:
    base, tuned = tasks([0] * 30 + [1] * 30), tasks([0] * 5 + [1] * 55)
    found = compare_over_seeds({"a": {0: base}, "b": {0: tuned}}, **HOW)["against"]["b"]
    assert found["verdict"] == "one seed: no verdict about seeds"
    assert found["interval"][0] > 0


def test_a_seed_with_other_samples_is_named() -> None:
    rows = tasks([1] * 10)
    runs = {"a": dict.fromkeys(range(3), rows), "b": {0: rows, 1: rows[:-1], 2: rows}}
    found = compare_over_seeds(runs, **HOW)["against"]["b"]
    assert found["sentence"].startswith("b against a: not comparable (seed 1: samples in one")
