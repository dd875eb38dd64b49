"""Data sets as the jobs use them: distinct texts once, and small arrays that refer to them."""

from __future__ import annotations

from nbhelpers.data.instructions import InstructionData, Sample, load_instructions
from nbhelpers.data.pair_sources import load_clone_data
from nbhelpers.data.pairs import MAIN_SPLITS, CloneData, ClonePairs
from nbhelpers.data.problems import Problems

__all__ = [
    "MAIN_SPLITS",
    "CloneData",
    "ClonePairs",
    "InstructionData",
    "Problems",
    "Sample",
    "load_clone_data",
    "load_instructions",
]
