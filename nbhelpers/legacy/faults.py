"""What the two repairs do not mend, found by the shape of the code, with its lines.

Each fault is a pattern of the syntax tree. A pattern that does not occur is reported as "not seen":
the code may be spelled in a way that is not known here, so nothing is said to be right.

Source: the scripts of CodeXGLUE (Clone-detection-BigCloneBench), GraphCodeBERT and
ISSTA22-CodeStudy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .guards import Guards
from .source import Script
from .syntax import base_name, calls, is_collective, is_evaluation, is_training, last_name, words

Finder = Callable[[Script, Guards], Iterable[int]]
_FINDERS: list[tuple[str, str, Finder]] = []
_INTERVALS = {"save_steps", "eval_steps", "valid_steps", "checkpoint_steps"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that stays: a short name, what it does to a result, and the lines where it stands."""

    name: str
    harm: str
    lines: tuple[int, ...] = ()


def find_faults(script: Script, guards: Guards) -> list[Fault]:
    """Return every known fault; those that are not seen have no lines."""
    return [
        Fault(name, harm, tuple(sorted(set(finder(script, guards)))))
        for name, harm, finder in _FINDERS
    ]


def _fault(name: str, harm: str) -> Callable[[Finder], Finder]:
    """Note a function as the finder of a fault; reports keep the order of this file."""

    def noted(finder: Finder) -> Finder:
        _FINDERS.append((name, harm, finder))
        return finder

    return noted


def _functions(script: Script) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in script.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _lines(found: Iterable[ast.AST]) -> list[int]:
    return [node.lineno for node in found]  # type: ignore[attr-defined]


def _samplers(node: ast.AST) -> list[ast.Call]:
    """Samplers that give each process a share."""
    return [call for call in calls(node) if last_name(call) == "DistributedSampler"]


def _is_of_training_data(call: ast.Call) -> bool:
    return bool(call.args) and "train" in words(last_name(call.args[0]))


def _training_samplers(script: Script) -> list[ast.Call]:
    return [
        call
        for call in _samplers(script.tree)
        if _is_of_training_data(call) or is_training(script.scope(call))
    ]


def _evaluating(script: Script) -> Iterator[tuple[ast.AST, list[ast.Call]]]:
    """Functions that sample by rank and do not train, with these samplers."""
    for function in _functions(script):
        samplers = [call for call in _samplers(function) if not _is_of_training_data(call)]
        if samplers and not is_training(function):
            yield function, samplers


@_fault(
    "test predictions are sharded and out of order",
    "each process predicts a shuffled share and the result is written beside the file's own "
    "order: half the predictions on two GPUs, in the wrong lines",
)
def _sharded_predictions(script: Script, _: Guards) -> Iterator[int]:
    for function, samplers in _evaluating(script):
        writes = _lines(call for call in calls(function) if _is_written_open(call))
        if writes:
            walks = [call for call in calls(function) if last_name(call) in ("zip", "enumerate")]
            order = _lines(call for call in walks if isinstance(script.parents[call], ast.For))
            yield from _lines(samplers)
            yield from [line for line in order if line >= writes[0]] or writes[:1]


def _is_written_open(call: ast.Call) -> bool:
    """Whether a call opens a file to write: `open(path, "w")`."""
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    texts = [str(getattr(mode, "value", "")) for mode in modes]
    return last_name(call) == "open" and any(text[:1] in ("w", "a", "x") for text in texts)


@_fault(
    "scores come from one share of the data",
    "rank 0 scores only what its sampler gives it, and nothing is gathered",
)
def _sharded_scores(script: Script, _: Guards) -> Iterator[int]:
    for function, samplers in _evaluating(script):
        if not any(map(is_collective, calls(function))):
            yield from _lines(samplers)


@_fault(
    "results may be unbound",
    "the score is asked for although the branch that makes it may not have run",
)
def _unbound_results(script: Script, _: Guards) -> Iterator[int]:
    for function in _functions(script):
        nodes = list(ast.walk(function))
        for node in nodes:
            if not isinstance(node, ast.Assign) or not any(map(is_evaluation, calls(node.value))):
                continue
            block = next((n for n in script.ancestors(node) if isinstance(n, ast.If)), None)
            made = getattr(node.targets[0], "id", "")
            named = [n for n in nodes if isinstance(n, ast.Name) and n.id == made]
            if block is None or sum(isinstance(n.ctx, ast.Store) for n in named) > 1:
                continue
            uses = [n for n in named if isinstance(script.parents[n], ast.Subscript)]
            outside = [use for use in uses if block not in script.ancestors(use)]
            yield from (line for line in _lines(outside) if line > node.lineno)


@_fault("a best score of 0 saves nothing", "the first score must exceed 0 to be saved")
def _best_from_zero(script: Script, _: Guards) -> Iterator[int]:
    for function in filter(is_training, _functions(script)):
        nodes = list(ast.walk(function))
        asked = {
            last_name(part)
            for node in nodes
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt)
            for part in node.comparators
        }
        for node in nodes:
            if isinstance(node, ast.Assign) and getattr(node.value, "value", None) == 0:
                named = {last_name(target) for target in node.targets} & asked
                if any("best" in words(each) for each in named):
                    yield node.lineno


@_fault(
    "each evaluation draws other validation pairs",
    "a random part is drawn whenever the data set is made, so best scores are compared across "
    "different sets",
)
def _random_validation(script: Script, _: Guards) -> Iterator[int]:
    for call in script.calls:
        if base_name(call) == "random" and last_name(call) in ("sample", "choice"):
            tests = [node.test for node in script.ancestors(call) if isinstance(node, ast.If)]
            texts = [script.source(test) for test in tests]
            if not any("train" in text and "not in" not in text for text in texts):
                yield call.lineno


@_fault("the threshold on test is 0.5", "a threshold found on the validation set is not used")
def _fixed_threshold(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:
        if isinstance(node, ast.keyword) and "threshold" in words(node.arg or ""):
            yield from _lines([node.value] if _is_half(node.value) else [])
        elif isinstance(node, ast.Assign) and _is_half(node.value):
            if any("threshold" in words(last_name(target)) for target in node.targets):
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(map(_is_half, node.comparators)):
            yield node.lineno


def _is_half(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0.5


@_fault('any label but "0" counts as a clone', "a damaged line becomes a positive")
def _any_label(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:  # `if label == "0": label = 0 else: label = 1`, or an expression
        if isinstance(node, ast.If) and len(node.body) == 1 == len(node.orelse):
            values = [getattr(part, "value", None) for part in (node.body[0], node.orelse[0])]
        elif isinstance(node, ast.IfExp):
            values = [node.body, node.orelse]
        else:
            continue
        test = node.test
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
        is_text = any(getattr(side, "value", None) in ("0", "1") for side in sides)
        written = {value.value for value in values if isinstance(value, ast.Constant)}
        if is_text and written == {0, 1}:
            yield node.lineno


@_fault(
    "pairs with an unknown id are dropped in silence",
    "a wrong data.jsonl shrinks the set, down to nothing",
)
def _dropped_ids(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Continue):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            if any(isinstance(p, ast.Compare) and isinstance(p.ops[0], ast.NotIn) for p in parts):
                yield node.lineno


@_fault(
    "nothing is saved with gradient accumulation",
    "the interval is a number of batches, the counter counts optimizer steps: with 4 micro-steps "
    "per update it is met after 4 epochs, and --do_test misses its file before",
)
def never_saved(script: Script, _: Guards | None = None) -> Iterator[int]:
    """Yield the lines of an interval in batches that is met by a counter of optimizer steps."""
    for function in _functions(script):
        nodes = list(ast.walk(function))
        taken = {
            last_name(target): node.lineno
            for node in nodes
            if isinstance(node, ast.Assign) and _counts_batches(node.value)
            for target in node.targets
        }
        blocks = set(_accumulation_tests(function))
        for node in nodes:
            interval = _modulo(node)
            if interval in taken and interval in _INTERVALS:
                grows = [
                    n
                    for n in nodes
                    if isinstance(n, ast.AugAssign) and last_name(n.target) == last_name(node.left)
                    if blocks & set(script.ancestors(n))
                ]
                yield from (taken[interval], node.lineno, *_lines(grows)) if grows else ()


def _counts_batches(node: ast.expr) -> bool:
    return any(last_name(call) == "len" for call in calls(node))


def _modulo(node: ast.AST) -> str:
    """The name behind the percent sign in `global_step % args.save_steps`."""
    is_modulo = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    return last_name(node.right) if is_modulo else ""


def _accumulation_tests(tree: ast.AST) -> Iterator[ast.If]:
    """`if (step + 1) % args.gradient_accumulation_steps == 0:`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            names = {word for each in ast.walk(node.test) for word in words(_modulo(each))}
            if names & {"accumulation", "accumulate", "accum"}:
                yield node


@_fault(
    "the learning rate's schedule counts batches",
    "with accumulation the warm-up is that much longer and the rate never falls to its end",
)
def _schedule_in_batches(script: Script, _: Guards) -> Iterator[int]:
    for function in _functions(script):
        steps = [c for c in calls(*_accumulation_tests(function)) if last_name(c) == "step"]
        if not any("scheduler" in words(base_name(call)) for call in steps):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _counts_batches(node.value):
                names = words(last_name(node.targets[0]))
                is_steps = names & {"steps", "total"} and names & {"warmup", "max", "total"}
                divided = {word for n in ast.walk(node.value) for word in words(last_name(n))}
                if is_steps and "accumulation" not in divided:
                    yield node.lineno


@_fault(
    "the last partial group of micro-steps makes no step", "its gradients leak into the next epoch"
)
def _last_group(script: Script, _: Guards) -> Iterator[int]:
    for node in _accumulation_tests(script.tree):
        if not any(isinstance(part, ast.BoolOp) for part in ast.walk(node.test)):
            yield node.lineno


@_fault(
    "gradients are clipped before they are complete",
    "with accumulation each partial sum is clipped, not the whole",
)
def _partial_clipping(script: Script, _: Guards) -> Iterator[int]:
    blocks = set(_accumulation_tests(script.tree))
    for call in script.calls:
        is_clipping = last_name(call) in ("clip_grad_norm_", "clip_grad_value_")
        if blocks and is_clipping and not blocks & set(script.ancestors(call)):
            yield call.lineno


@_fault("no set_epoch", "every epoch gives each process the same pairs in the same order")
def _no_set_epoch(script: Script, _: Guards) -> list[int]:
    is_set = any(last_name(call) == "set_epoch" for call in script.calls)
    return [] if is_set else _lines(_training_samplers(script))


@_fault("one dropout seed on all ranks", "the processes draw the same masks")
def _same_seed(script: Script, _: Guards) -> Iterator[int]:
    for call in script.calls if _samplers(script.tree) else ():
        named = {word for node in ast.walk(call) for word in words(last_name(node))}
        if last_name(call) in ("set_seed", "seed_everything") and "rank" not in named:
            yield call.lineno


@_fault("a stopped run does not resume", "the state is looked for and never written")
def _no_resume(script: Script, _: Guards) -> list[int]:
    saves = [call for call in script.calls if last_name(call) == "save"]
    saved = {word for call in saves for n in ast.walk(call) for word in words(last_name(n))}
    places = [n for n in script.nodes if getattr(n, "value", None) == "checkpoint-last"]
    return [] if "optimizer" in saved else _lines(places)


@_fault("save_total_limit does nothing", "the option is declared and never read")
def _ignored_limit(script: Script, _: Guards) -> Iterator[int]:
    is_read = any(getattr(node, "attr", "") == "save_total_limit" for node in script.nodes)
    for call in script.calls:
        texts = [getattr(each, "value", None) for each in call.args]
        if last_name(call) == "add_argument" and "--save_total_limit" in texts and not is_read:
            yield call.lineno


@_fault(
    "every process saves",
    "without a condition on the rank the processes write the same file at the same time",
)
def _free_saves(_: Script, guards: Guards) -> list[int]:
    return guards.free_saves


@_fault(
    "each node's rank 0 writes",
    "local_rank is 0 once per node, so on several nodes they overwrite each other's files",
)
def _first_of_each_node(_: Script, guards: Guards) -> list[int]:
    return [guard.line for guard in (*guards.opened, *guards.closed)]


@_fault(
    "rank 0 evaluates alone, through DistributedDataParallel",
    "a forward pass of the wrapper broadcasts the model's buffers, which the others do not join: "
    "the run can hang or abort; hand evaluate() the model inside (model.module)",
)
def _evaluates_alone(script: Script, guards: Guards) -> list[int]:
    opened = [*guards.opened, *guards.closed]
    inside = [guard.body for guard in opened if is_training(script.scope(guard.node))]
    return _lines(call for body in inside for call in calls(*body) if is_evaluation(call))


@_fault(
    "the other processes wait for rank 0",
    "an evaluation longer than the process group's time limit (10 minutes for NCCL, unless set) "
    "ends the run",
)
def _waits_for_rank_0(script: Script, guards: Guards) -> list[int]:
    starts = [call for call in script.calls if last_name(call) == "init_process_group"]
    usual = [call for call in starts if not any(k.arg == "timeout" for k in call.keywords)]
    alone = _evaluates_alone(script, guards)
    return [*_lines(usual), *alone] if usual and alone else []


@_fault(
    "gradients are not shared",
    "no DistributedDataParallel is seen: each process trains a model of its own, and without a "
    "DistributedSampler on all the data",
)
def _no_wrapper(script: Script, _: Guards) -> list[int]:
    wrappers = {"DistributedDataParallel", "DDP", "Trainer", "Accelerator", "prepare"}
    wrappers |= {"FullyShardedDataParallel", "FSDP", "fully_shard", "initialize"}  # DeepSpeed's
    has_one = any(last_name(call) in wrappers for call in script.calls)
    steps = [call for call in script.calls if last_name(call) == "backward"]
    return [] if has_one else _lines(_training_samplers(script) or steps)
