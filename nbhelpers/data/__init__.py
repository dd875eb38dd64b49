"""Data sets as the jobs use them: distinct texts once, and small arrays that refer to them."""

from __future__ import annotations

from .instructions import InstructionData, Sample, load_instructions
from .pairs import MAIN_SPLITS, CloneData, ClonePairs
from .problems import Problems
from .sources import load_clone_data

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
