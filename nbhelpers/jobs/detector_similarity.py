"""Scores of the similarity space: retrieval across languages and same-task pairs, beside floors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
