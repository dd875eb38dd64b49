"""`canonical` takes the traces of a download away, is stable, and takes any text."""

import random

import pytest

from nbhelpers.data.canonical import FORMS, canonical
from nbhelpers.errors import ConfigError

PIECES = [*"ab \t\n\r\x00\x0b\x0c\x1c\x85", "\ufeff", "\u200b", "\u2028", "\xa0", "\ud800", "😀"]


def random_text(seed: int) -> str:
    draw = random.Random(seed)
    return "".join(draw.choices(PIECES, k=draw.randrange(40)))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("a\r\nb\rc", "a\nb\nc\n"),
        ("a\r\r\nb", "a\nb\n"),
        ("\n\n  a\n\n\n\nb\n\n", "  a\n\nb\n"),
        ("a  \n \t \nb", "a\n\nb\n"),
        ("if a:\n\tb\n\t\tc", "if a:\n    b\n        c\n"),
        ("if a:\n    if b:\n\tc", "if a:\n    if b:\n        c\n"),  # as Python 2 reads it
        ("a\tb", "a   b\n"),
        ("a\x0c\n\x0cclass A", "a\nclass A\n"),
        ("a\x00\x07b\xa0c\u2003d\u2028e", "ab c d e\n"),
        ("\ufeffa\u200bb\u202e", "ab\n"),
        ("a\ud800", "a\ufffd\n"),
        ("", ""),
        (" \n\t\x00", ""),
    ],
)
def test_the_text_form_of_each_trace(code, text):
    assert canonical(code, "text") == text


def test_every_form_is_stable_and_can_be_encoded():
    for seed in range(3000):
        code = random_text(seed)
        for form in FORMS:
            once = canonical(code, form)
            assert canonical(once, form) == once
        text = canonical(code, "text")
        text.encode()
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n"))
        assert not set(text) & set("\t\r\x00\x0b\x0c\u2028\ufeff") and "\n\n\n" not in text
        assert not any(line.endswith(" ") for line in text.split("\n"))
        # One order of forms: what `text` makes alike stays alike when it is made flat.
        assert canonical(text, "flat") == canonical(code, "flat") == " ".join(text.split())


def test_flat_is_what_the_clone_job_feeds():
    code = "int  f() {\n\treturn 1;\n\n}\n"
    assert canonical(code, "flat") == "int f() { return 1; }"
    assert canonical(code, "raw") == code


def test_an_unknown_form_is_refused_with_the_choices():
    with pytest.raises(ConfigError) as caught:
        canonical("a", "flatt")
    assert "raw, text, flat" in str(caught.value)
