"""Faults that the repair leaves: only such as this file alone shows, each with its lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nbhelpers.legacy.flow import Flow, sampled
from nbhelpers.legacy.source import (
    Script,
    base_name,
    calls,
    is_evaluation,
    is_training,
    last_name,
    words,
)

_ACCUMULATION = {"accumulation", "accumulate", "accum"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that stays: a short name, what it does to a result, and the lines where it stands."""

    name: str
    harm: str
    lines: tuple[int, ...]


def find_faults(flow: Flow) -> list[Fault]:
    """Return the faults that are seen, in the order of their weight."""
    script = flow.script
    found = [
        Fault(
            "each evaluation draws other pairs",
            "its data set is sampled anew, so best scores are compared across different sets",
            tuple(_drawn_anew(flow)),
        ),
        Fault(
            "the threshold on test is 0.5",
            "the one that evaluation finds is not used",
            tuple(_fixed_threshold(script)),
        ),
        Fault(
            "the last partial group of micro-steps makes no step",
            "its gradients leak into the next epoch",
            tuple(_last_group(script)),
        ),
        Fault(
            "gradients are clipped before they are complete",
            "with accumulation each partial sum is clipped, not the whole",
            tuple(_partial_clipping(script)),
        ),
        Fault(
            "no set_epoch",
            "every epoch gives each process the same samples in the same order",
            tuple(_no_set_epoch(flow)),
        ),
    ]
    return [fault for fault in found if fault.lines]


def _functions(script: Script) -> Iterator[ast.FunctionDef]:
    return (node for node in script.nodes if isinstance(node, ast.FunctionDef))


def _drawn_anew(flow: Flow) -> Iterator[int]:
    """Samples without a seed or a cache, in what a training loop's evaluation enters."""
    for frame in flow.frames.values():
        function = frame.function
        is_seeded = any(last_name(call) == "seed" for call in calls(function))
        if not frame.is_in_training or is_seeded or is_training(function):
            continue
        for call in calls(function):
            if base_name(call) == "random" and last_name(call) in ("sample", "choice", "choices"):
                stored = flow.script.statement(call)
                targets = getattr(stored, "targets", [])
                tests = [n.test for n in flow.script.ancestors(call) if isinstance(n, ast.If)]
                is_cache = any(isinstance(each, ast.Subscript) for each in targets)
                if not is_cache and not any(_is_training_test(test) for test in tests):
                    yield call.lineno


def _is_training_test(test: ast.expr) -> bool:
    """Whether a condition asks for the training data, or for nothing there yet."""
    texts = {str(getattr(node, "value", "")) for node in ast.walk(test)}
    is_missing = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)
    return is_missing or any("train" in text for text in texts)


def _fixed_threshold(script: Script) -> Iterator[int]:
    """A test that is handed 0.5 for a name that an evaluation searches."""
    searched = {
        last_name(target)
        for function in _functions(script)
        if is_evaluation(ast.Call(ast.Name(function.name), [ast.Constant(0)], []))
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant)
        for target in node.targets
    }
    for call in script.calls:
        for each in call.keywords:
            name, value = each.arg or "", getattr(each.value, "value", None)
            if "threshold" in words(name) and name in searched and value == 0.5:
                yield each.value.lineno


def accumulation_tests(tree: ast.AST) -> Iterator[tuple[ast.If, ast.expr]]:
    """Yield `if (step + 1) % accumulation_steps == 0:` with what it divides by."""
    for node in ast.walk(tree):
        for part in ast.walk(node.test) if isinstance(node, ast.If) else ():
            is_modulo = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
            if is_modulo and words(last_name(part.right)) & _ACCUMULATION:
                yield node, part.right  # type: ignore[misc]


def intervals(script: Script) -> Iterator[tuple[ast.expr, str]]:
    """Yield intervals of an epoch's batches that a counter of optimizer steps must meet.

    Each with the code of the accumulation steps.
    """
    for function in _functions(script):
        tests = list(accumulation_tests(function))
        counted = {
            last_name(each.target)
            for test, _ in tests
            for each in ast.walk(test)
            if isinstance(each, ast.AugAssign)
        }
        met = {
            last_name(node.right)
            for node in ast.walk(function)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            if last_name(node.left) in counted
        }
        for node in ast.walk(function):
            is_set = isinstance(node, ast.Assign) and last_name(node.targets[0]) in met
            if is_set and isinstance(node.value, ast.Call) and last_name(node.value) == "len":
                yield node.value, script.source(tests[0][1])


def _last_group(script: Script) -> Iterator[int]:
    for function in _functions(script):
        tests = [test for test, _ in accumulation_tests(function)]
        inside = {call for test in tests for call in calls(test)}
        others = [c for c in calls(function) if last_name(c) == "step" and c not in inside]
        for test in tests:
            steps = [c for c in calls(test) if last_name(c) == "step" and "optim" in base_name(c)]
            if steps and not others and isinstance(test.test, ast.Compare):
                yield test.lineno


def _partial_clipping(script: Script) -> Iterator[int]:
    for function in _functions(script):
        blocks = {test for test, _ in accumulation_tests(function)}
        for call in calls(function):
            is_clipping = last_name(call) in ("clip_grad_norm_", "clip_grad_value_")
            if blocks and is_clipping and not blocks & {*script.ancestors(call)}:
                yield call.lineno


def _no_set_epoch(flow: Flow) -> list[int]:
    is_set = any(last_name(node) == "set_epoch" for node in flow.script.nodes)
    lines = {each.line for each in flow.of("sampler") if sampled(each, flow.script) == "train"}
    return [] if is_set else sorted(lines)
