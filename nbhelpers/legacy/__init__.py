"""Legacy training scripts: repaired for `accelerate launch`, and launchers that start them."""

from __future__ import annotations

from nbhelpers.legacy.launcher import (
    RECIPES,
    Launcher,
    Recipe,
    ScriptFacts,
    make_launcher,
    passed_options,
    recipe_of,
    script_facts,
    write_launcher,
)
from nbhelpers.legacy.patch import patch_script
from nbhelpers.legacy.result import ScriptPatch, patch_text

__all__ = [
    "RECIPES",
    "Launcher",
    "Recipe",
    "ScriptFacts",
    "ScriptPatch",
    "make_launcher",
    "passed_options",
    "patch_script",
    "patch_text",
    "recipe_of",
    "script_facts",
    "write_launcher",
]
