"""Why a script is not patched: what would lose or scramble a result, and what is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbhelpers.legacy.flow import WRAPPERS, Event, Flow, sampled
from nbhelpers.legacy.ranks import (
    FIRST,
    VARIABLE,
    Option,
    RankNames,
    assignments,
    rank_option,
)
from nbhelpers.legacy.source import (
    LOGGING,
    Script,
    base_name,
    is_evaluation,
    is_save,
    last_name,
    words,
)

# Names that people import from transformers 4 and older, and that 5 no longer has.
GONE = re.compile(
    "AdamW|AutoModelWithLMHead|MODEL_WITH_LM_HEAD_MAPPING|ALL_PRETRAINED_CONFIG_ARCHIVE_MAP|"
    "InputExample|LineByLineTextDataset|SquadExample|cached_path|load_tf_weights_in_bert|"
    "glue_(compute_metrics|convert_examples_to_features|output_modes|processors)|"
    "squad_convert_examples_to_features|top_k_top_p_filtering|xnli_processors"
)
_LIBRARIES = {
    "Trainer": "transformers' Trainer",
    "Seq2SeqTrainer": "transformers' Trainer",
    "TrainingArguments": "transformers' TrainingArguments",
    "Seq2SeqTrainingArguments": "transformers' TrainingArguments",
    "Accelerator": "accelerate's Accelerator",
}
_STARTERS = {"horovod": "Horovod", "deepspeed": "DeepSpeed", "pytorch_lightning": "Lightning"}
_FROM_LAUNCHER = re.compile("environ|getenv|get_world_size|get_rank")
_ALONE = ": each process would train alone on its share, and the last one's file would stay"
_NO_SPLIT = {"device", "set_device", "manual_seed", "manual_seed_all", "seed", "set_seed", "join"}


def gone_imports(script: Script) -> list[str]:
    """Return what keeps a script from starting under transformers 5, with the line to change."""
    found: list[tuple[str, int]] = []
    for node in script.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers"):
            is_tried = any(isinstance(each, ast.Try) for each in script.ancestors(node))
            found += [(each.name, each.lineno) for each in node.names if not is_tried]
        elif isinstance(node, ast.Attribute) and last_name(node.value) == "transformers":
            found.append((node.attr, node.lineno))
    cures = {"AdamW": "take it out of that line, and add: from torch.optim import AdamW"}
    usual = "install the transformers that the script was written for"
    return [
        f"line {line}: transformers 5 has no {name}, so the script cannot start with it; "
        + cures.get(name, usual)
        for name, line in dict(found).items()
        if GONE.fullmatch(name)
    ]


def serves_itself(script: Script) -> str:
    """Return why a script without the option needs no repair; empty where it may need one."""
    called = {last_name(call): call.lineno for call in script.calls}
    named = {last_name(node) for node in script.nodes if isinstance(node, ast.Name | ast.Attribute)}
    if not WRAPPERS & {*called} and "init_process_group" not in called:
        for name, title in _LIBRARIES.items():
            if name in called or (name in named and "HfArgumentParser" in called):
                line = called.get(name, called.get("HfArgumentParser", 0))
                return f"line {line}: {title} reads {VARIABLE} itself, so nothing is to be repaired"
    reads = [n.lineno for n in script.nodes if isinstance(n, ast.Constant) and n.value == VARIABLE]
    if reads and rank_option(script) is None and not _own_start(script):
        return f"line {reads[0]}: {VARIABLE} is read, and there is no option to fill with it"
    return ""


def reasons_of(flow: Flow, option: Option | None) -> list[str]:
    """Return every reason against a script, the deciding first; empty for a recognised one."""
    if starter := _own_start(flow.script):
        return [starter]
    if option is None:
        return [_no_option(flow)]
    script = flow.script
    first = [
        *flow.reasons,
        *_splits(flow),
        *_apex(script),
        *_start_of_group(script, flow.judge.names),
    ]
    missing = [(0, text) for text in _missing(flow, option)]
    lines: dict[str, set[int]] = {}
    for line, text in (*sorted(first), *missing, *sorted([*_of_events(flow), *_lost(flow)])):
        lines.setdefault(text, set()).update({line} - {0} if f"line {line}" not in text else ())
    return [
        f"{text} (line {', '.join(map(str, sorted(where)))})" if where else text
        for text, where in lines.items()
    ]


def _own_start(script: Script) -> str:
    """Why no launcher can start a script: it starts its own processes, or another library does."""
    called = {last_name(call) for call in script.calls}
    for call in script.calls:
        is_spawn = last_name(call) in ("spawn", "start_processes")
        is_spawn = is_spawn and base_name(call) in ("mp", "multiprocessing", "xmp", "")
        if is_spawn or (last_name(call) == "Process" and "init_process_group" in called):
            return (
                f"it starts its own processes (line {call.lineno}: {script.source(call.func)}), "
                "each with the rank as an argument: start it with python, not accelerate launch"
            )
    for node in script.tree.body:
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if title := _STARTERS.get(module.split(".")[0], ""):
                return (
                    f"it is written for {title} (line {node.lineno}), which numbers its processes"
                )
    return ""


def _no_option(flow: Flow) -> str:
    """Why a script without the option cannot be given the rank."""
    script = flow.script
    for node in script.nodes:
        if isinstance(node, ast.Attribute | ast.Name) and flow.judge.names.matches(node):
            asked = script.source(node)
            return f"line {node.lineno} asks {asked}, and no option of this file fills it"
    wraps = [call.lineno for call in script.calls if last_name(call) == "DataParallel"]
    uses = f", DataParallel in line {wraps[0]}" if wraps else ""
    alone = ": the processes that a launcher starts would each train alone, on all the data"
    called = {last_name(call) for call in script.calls}
    is_alone = "backward" in called and not called & {"init_process_group", *WRAPPERS}
    return f"it has no option --local_rank{uses}{alone * is_alone}"


def _splits(flow: Flow) -> Iterator[tuple[int, str]]:
    """Where the rank is computed with: a share of the data, or of the results, per process."""
    script, names = flow.script, flow.judge.names
    for node in script.nodes:
        is_autograd = getattr(script.scope(node), "name", "") in ("forward", "backward")
        if not names.matches(node) or isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        parent = script.parents[node]
        is_product = isinstance(parent, ast.BinOp) and isinstance(
            parent.op, ast.Mult | ast.FloorDiv
        )
        is_slice = isinstance(parent, ast.Slice)
        is_turn = isinstance(parent, ast.Compare) and any(
            isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod)
            for side in (parent.left, *parent.comparators)
        )
        is_item = isinstance(parent, ast.Subscript) and parent.slice is node
        around = [each for each in script.ancestors(node) if isinstance(each, ast.Call)]
        is_other = any(last_name(call) in _NO_SPLIT | LOGGING for call in around)
        named = {w for n in ast.walk(script.statement(node)) for w in words(last_name(n))}
        is_other |= bool(named & {"device", "devices", "gpu", "gpus", "seed", "port"})
        if (is_product or is_slice or is_turn or is_item) and not (is_other or is_autograd):
            text = "the data is split by rank inside the script"
            yield node.lineno, text  # type: ignore[attr-defined]


def _apex(script: Script) -> Iterator[tuple[int, str]]:
    for node in script.nodes:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if any(module.startswith("apex.parallel") for module in modules):
            text = "its distributed branch needs NVIDIA's apex, which pip does not install"
            yield node.lineno, text  # type: ignore[attr-defined]


def _start_of_group(script: Script, names: RankNames) -> Iterator[tuple[int, str]]:
    """A process group that does not start from what a launcher sets."""
    values = [(last_name(target), script.source(value)) for _, target, value in assignments(script)]
    for call in (each for each in script.calls if last_name(each) == "init_process_group"):
        for each in call.keywords:
            source = script.source(each.value)
            texts = [source, *(text for name, text in values if name == last_name(each.value))]
            is_known = any(_FROM_LAUNCHER.search(text) for text in texts)
            is_known |= each.arg == "rank" and names.occurs(each.value)
            if each.arg in ("rank", "world_size") and not is_known:
                text = f"the process group takes its {each.arg} from {source}, which nothing passes"
                yield call.lineno, text
            if each.arg == "init_method" and not any("env://" in text for text in texts):
                yield call.lineno, f"the processes meet at an address of the script's own, {source}"


def _of_events(flow: Flow) -> Iterator[tuple[int, str]]:
    """What ranks 0 and 1 would do differently, or each for itself, behind the repair."""
    unread = [event.line for event in flow.of("unread")]
    lonely = {
        "backward": "not every process trains",
        "wrapper": "not every process wraps its model",
        "forward": "rank 0 passes through DistributedDataParallel alone, by {name}()",
        "foreign": "rank 0 evaluates alone, through DistributedDataParallel, by {name}(), which is "
        "not in this file",
    }
    for event in flow.events:
        who, name, is_each = event.state.launched, event.name, event.state.is_all
        is_saving = is_save(event.node)
        if len(who) == 2 and not is_each and event.kind not in ("unread", "folder"):
            lines = f" of line {min(unread)}" if unread else ""
            text = f"a condition{lines} that the ranks may find different decides {name}()"
            yield event.line, text
        elif who and not is_each and event.kind in lonely and not is_saving:
            yield event.line, lonely[event.kind].format(name=name)
        elif is_each and event.kind == "foreign" and is_evaluation(event.node):
            yield event.line, f"every process evaluates by {name}(), which is not in this file"
        elif is_each and event.kind == "write":
            yield event.line, "no condition keeps every process from writing the same file"
        elif event.kind == "sampler" and who:
            yield from _sampler(flow, event)


def _sampler(flow: Flow, event: Event) -> Iterator[tuple[int, str]]:
    purpose, line = sampled(event, flow.script), event.line
    if purpose == "train" and event.state.is_all:
        return
    if event.state.launched == {FIRST}:
        yield line, "rank 0 evaluates alone, and its sampler gives it a share of the data"
    elif purpose == "train":
        yield line, "not every process samples the training data"
    elif purpose == "eval":
        yield line, "each process evaluates a share of its own"
    else:
        yield line, "the names do not tell whether the training data are sampled by rank, or others"


def _lost(flow: Flow) -> Iterator[tuple[int, str]]:
    """Evaluations and saves that only a single process reaches."""
    reached: dict[ast.expr, set[int]] = {}
    for event in (*flow.of("evaluation"), *flow.of("write")):
        reached.setdefault(event.node, set()).update(event.state.launched)
    for node, who in reached.items():
        tests = [n for n in flow.script.ancestors(node) if isinstance(n, ast.If | ast.IfExp)]
        has_other = any(flow.judge.asks(n.test) and n.orelse for n in tests)
        if not who and not has_other:
            yield (
                node.lineno,
                f"only a single process reaches {last_name(node)}() in line {node.lineno}",
            )


def _missing(flow: Flow, option: Option) -> Iterator[str]:
    """The parts of a recognised script that are not there, or not seen to run on every process."""
    script, line = flow.script, option.call.lineno
    named = {last_name(call) for call in script.calls}
    named |= {each.name for each in script.nodes if isinstance(each, ast.alias) and each.asname}
    reads = [n for n in script.nodes if isinstance(n, ast.Attribute | ast.Subscript | ast.Call)]
    if not any(flow.judge.names.matches(node) for node in reads):
        yield f"the option of line {line} is never read"
    if any(k.arg == "required" and script.source(k.value) == "True" for k in option.call.keywords):
        yield f"the option of line {line} is required, and accelerate passes none"
    parts = {
        "DistributedDataParallel": flow.of("wrapper"),
        "init_process_group": (e for e in flow.of("collective") if "init" in e.name),
        "DistributedSampler": (e for e in flow.of("sampler") if sampled(e, script) != "eval"),
        "backward": flow.of("backward"),
    }
    wrapped = [event for event in flow.of("forward") if event.state.is_all]
    if any(event.state.is_all for event in flow.of("backward")) and not wrapped:
        yield "no pass of the training is seen to go through DistributedDataParallel"
    for name, events in parts.items():
        is_wrapper = name == "DistributedDataParallel"
        if not named & (WRAPPERS if is_wrapper else {name}):
            yield f"this file calls no {name}" + _ALONE * (
                "DistributedSampler" in named and is_wrapper
            )
        elif not any(event.state.is_all for event in events) and not flow.reasons:
            yield f"{name}() is not seen to run on every process, for the training"
