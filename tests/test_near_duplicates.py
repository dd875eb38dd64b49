"""Promise: every text that nearly repeats another is found, and nothing else; in little time."""

from __future__ import annotations

import random
import time

import pytest

from nbhelpers.data import near_duplicates
from nbhelpers.data.near_duplicates import ShingleIndex, jaccard, shingles, tokens

CODE = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n"


def changed(text: str, draw: random.Random, share: float) -> str:
    return " ".join(f"w{draw.randrange(99)}" if draw.random() < share else w for w in text.split())


def test_white_space_and_case_do_not_count() -> None:
    assert tokens("A  b\n(c)") == ["a", "b", "(", "c", ")"]
    assert jaccard(CODE, CODE.upper().replace("\n", "   ")) == 1.0


@pytest.mark.parametrize(
    ("one", "other", "similarity"),
    [
        ("a b c d e", "a b c d e", 1.0),
        ("a b c d", "b c d e", 1 / 3),
        ("a b c", "c b a", 0.0),
        ("a b", "a b", 1.0),
        ("a", "b", 0.0),
        ("", "a", 0.0),
        ("", "", 0.0),
    ],
)
def test_similarity_is_shared_shingles_over_all(one: str, other: str, similarity: float) -> None:
    assert jaccard(one, other) == pytest.approx(similarity)


@pytest.mark.parametrize("most_pairs", [0, near_duplicates.MOST_PAIRS])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_the_index_finds_exactly_what_comparing_all_pairs_finds(
    threshold: float, most_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "MOST_PAIRS", most_pairs)
    draw = random.Random(3)
    base = [
        " ".join(f"w{draw.randrange(60)}" for _ in range(draw.randrange(1, 40))) for _ in range(60)
    ]
    texts = base + [changed(draw.choice(base), draw, 0.06) for _ in range(120)] + ["", "w1"]
    index = ShingleIndex(texts, threshold=threshold)
    references, rows = range(60), range(60, len(texts))
    near = {r: [o for o in references if jaccard(texts[r], texts[o]) >= threshold] for r in rows}
    found = {match.row: match for match in index.matches(rows, references)}
    assert found.keys() == {row for row, others in near.items() if others}
    assert sum(map(bool, near.values())) > 20
    for row, match in found.items():
        assert match.of in near[row]
        assert match.similarity == pytest.approx(jaccard(texts[row], texts[match.of]))


def test_looking_only_at_texts_with_a_pair_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, answers = random.Random(4), []
    base = [" ".join(f"w{draw.randrange(30)}" for _ in range(n % 40)) for n in range(80)]
    texts = base + [changed(draw.choice(base), draw, 0.06) for _ in range(200)]
    orders = [draw.sample(range(len(texts)), len(texts)) for _ in range(5)]
    for most_pairs in (0, near_duplicates.MOST_PAIRS):
        monkeypatch.setattr(near_duplicates, "MOST_PAIRS", most_pairs)
        index = ShingleIndex(texts)
        assert (index.paired is None) is (most_pairs == 0)
        answers.append([index.repeats(order) for order in orders])
        answers[-1] += [index.matches(order[:150], order[150:]) for order in orders]
        answers[-1] += [index.matches(order[:150], order[100:]) for order in orders]
        answers[-1] += [index.repeats([*order[:50], *order[:50]]) for order in orders]
    assert answers[0] == answers[1] and all(map(len, answers[0]))


def test_a_similarity_of_exactly_the_threshold_matches() -> None:
    texts = ["a b c d e f", "a b c d e f g"]  # 4 of 5 shingles
    assert jaccard(*texts) == 0.8
    assert ShingleIndex(texts).matches([1], [0])[0].similarity == 0.8
    assert not ShingleIndex(texts, threshold=0.81).matches([1], [0])


def test_repeats_name_the_first_of_their_kind() -> None:
    texts = [CODE, "something else entirely, in words", CODE + "\n", CODE.replace("  ", " "), ""]
    found = ShingleIndex(texts).repeats(range(len(texts)))
    assert [(match.row, match.of) for match in found] == [(2, 0), (3, 0)]


@pytest.mark.parametrize("threshold", [0, -1, 1.1])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        ShingleIndex([], threshold=threshold)


def test_a_crowd_of_near_copies_is_compared_in_steps_not_in_pairs() -> None:
    texts = [f"{CODE} # number {i}" for i in range(3000)]
    began = time.process_time()
    found = ShingleIndex(texts).repeats(range(len(texts)))
    assert len(found) == 2999 and time.process_time() - began < 3


def test_shingles_of_a_short_text_are_the_text() -> None:
    assert shingles("x y") == {("x", "y")} and shingles("x y z") == {("x", "y", "z")}


def test_a_crowd_of_one_template_that_is_not_alike_enough_costs_little() -> None:
    texts = [f"def add_{i}(a, b):\n    return a + b\n" for i in range(3000)]
    assert jaccard(texts[0], texts[1]) < 0.8
    began = time.process_time()
    assert not ShingleIndex(texts).repeats(range(len(texts)))
    assert time.process_time() - began < 1.0
