"""Embeddings and indexing: sorts of the indices, copies of them, partial gradients."""

from __future__ import annotations

from nbhelpers.simulate.kernels_call import Rule

RULES: dict[str, Rule] = {}
