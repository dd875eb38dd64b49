"""The nearest known name to one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Say which option is closest to a misspelt name, or list them all.

    >>> did_you_mean("lerning_rate", ["learning_rate", "seed"])
    'did you mean `learning_rate`?'
    >>> did_you_mean("zzz", ["a", "b"])
    'choose one of: a, b'
    """
    names = sorted(options)
    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "choose one of: " + ", ".join(names)
