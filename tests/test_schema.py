"""Promise: a preset holds decisions that the code acts on, and nothing else."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from nbhelpers.presets.jobs import JOBS

PACKAGE = Path(__file__).resolve().parent.parent / "nbhelpers"
# These only name, check or list fields; reading one there is not using it.
NOT_USE = {
    "schema.py",
    "checks.py",
    "rules.py",
    "jobs.py",
    "loading.py",
    "preset.py",
    "parameters.py",
}


@functools.cache
def read_attributes() -> set[str]:
    """Names that the code reads from an object, as `settings.name` or `"name"` of a mapping."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name in NOT_USE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_field_of_a_preset_is_used_by_code(job: str):
    unused = set(JOBS[job].settings.model_fields) - read_attributes()
    # Read from result.json, where settings are plain values.
    assert unused <= {"targets"}, f"delete these fields or use them: {sorted(unused)}"


def test_targets_are_read_by_the_report():
    text = (PACKAGE / "reports" / "sections.py").read_text(encoding="utf-8")
    assert '"targets"' in text


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_field_says_what_it_means_or_has_a_standard_name(job: str):
    plain = {"epochs", "global_batch_size", "learning_rate", "lr_schedule", "weight_decay", "seed"}
    plain |= {"adam_epsilon", "max_grad_norm", "gradient_checkpointing", "logging_steps", "track"}
    plain |= {"per_device_eval_batch_size", "bootstrap_samples"}
    bare = {n for n, field in JOBS[job].settings.model_fields.items() if not field.description}
    assert bare <= plain
