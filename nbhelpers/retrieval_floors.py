"""The floor of code similarity: how alike the words of two programs are spelled.

It sees every text of a comparison, also those of the test, because it learns from no label. That
makes it as strong as it can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_ngrams import NgramVectors

if TYPE_CHECKING:
    import numpy as np

SIZES = (3, 4)
CHARACTERS_READ = 200_000  # of one program
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PART = re.compile(r"[^\W\d_]+|\d+|[^\s\w]")


def similarity_text(code: str) -> str:
    """Return a program as lower-case words, numbers and signs with one blank between.

    Names are cut at underscores and capitals, so that habits of a language hide no word.

    >>> similarity_text("int maxValue = max_value2;")
    ' int max value = max value 2 ; '
    """
    parts = _PART.findall(_HUMP.sub(" ", code[:CHARACTERS_READ]).lower())
    return f" {' '.join(parts)} "


class TfidfSimilarity:
    """Cosines of character n-grams between programs, counted once for all comparisons."""

    def __init__(self, codes: Sequence[str], *, min_programs: int = 2) -> None:
        """Count the n-grams of every program.

        Args:
            codes: The programs.
            min_programs: Leave out n-grams that stand in fewer. One of a single program can match
                nothing; among a handful of programs it still shows how unlike the others it is.
        """
        import numpy as np

        counts = NgramVectors(sizes=SIZES).counts([similarity_text(code) for code in codes])
        texts_with = np.bincount(counts.indices, minlength=counts.shape[1])
        self._min_programs = min_programs
        self._counts = counts[:, np.flatnonzero(texts_with >= min_programs)]

    def between(
        self, left: Sequence[int] | np.ndarray, right: Sequence[int] | np.ndarray
    ) -> tuple[Any, Any]:
        """Return sparse unit vectors of the programs at `left` and at `right`.

        How rare an n-gram is follows from these programs alone; one that stands in fewer
        than `min_programs` of them is left out.

        Args:
            left: (m,) positions among the codes.
            right: (n,) likewise; `left` again for all pairs of one list.
        """
        import numpy as np
        from scipy.sparse import diags

        left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
        members = np.unique(np.concatenate([left, right]))
        chosen = self._counts[members]
        texts_with = np.bincount(chosen.indices, minlength=chosen.shape[1])
        kept = np.flatnonzero(texts_with >= self._min_programs)
        rarity = np.log((1 + len(members)) / (1 + texts_with[kept])) + 1
        weighted = chosen[:, kept] @ diags(rarity.astype(np.float32))
        length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
        scale = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
        unit = (diags(scale.astype(np.float32)) @ weighted).tocsr()
        return unit[np.searchsorted(members, left)], unit[np.searchsorted(members, right)]
