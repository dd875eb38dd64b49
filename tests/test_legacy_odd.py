"""A script that the repair would break, or that Python cannot read here, is refused untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.legacy import patch_script
from tests.legacy_scripts import script, write

OWN_PARSERS = {
    "a comprehension": "args = [p.parse_args() for p in [parser]][0]",
    "a walrus": "if (p := parser) and (args := p.parse_args()):\n    pass",
}


@pytest.mark.parametrize("parse", OWN_PARSERS.values(), ids=OWN_PARSERS.keys())
def test_a_parser_that_its_own_statement_makes_leaves_no_place(tmp_path: Path, parse: str) -> None:
    path = write(tmp_path, script(parse))
    with pytest.raises(ConfigError, match="leaves no place"):
        patch_script(path, write=True)
    assert path.read_text() == script(parse)


def test_a_required_option_is_refused_because_accelerate_passes_none(tmp_path: Path) -> None:
    text = script().replace("default=-1", "required=True")
    with pytest.raises(ConfigError, match="required=True"):
        patch_script(write(tmp_path, text), write=True)


def test_syntax_of_a_later_python_may_be_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        patch_script(write(tmp_path, script() + "x = = 1\n"))
    assert "a later Python" in caught.value.fix
