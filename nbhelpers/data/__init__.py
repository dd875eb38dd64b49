"""Data sets as the jobs use them: distinct texts once, and small arrays that refer to them."""

from nbhelpers.common.lazy import exports

_HOMES = {
    "CloneData": "pairs",
    "ClonePairs": "pairs",
    "Findings": "findings",
    "InstructionData": "instructions",
    "MAIN_SPLITS": "files",
    "Sample": "instructions",
    "load_clone_data": "pair_sources",
    "load_instructions": "instructions",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
