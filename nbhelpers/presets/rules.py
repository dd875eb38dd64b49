"""Contradictions between settings that are each valid, as tables of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from nbhelpers.common.suggest import did_you_mean
from nbhelpers.presets.catalog import GPT2_MODELS, POSITIONS, SOFT_CAPPED, TEMPLATES

ALL_LINEAR = "all-linear"
HOLD_OUT_FIELDS = ("source", "generator", "language")
Fault = tuple[str, str, str]  # setting, what is wrong, what to type instead


class Rule(NamedTuple):
    """A contradiction of a setting with others.

    `is_broken` takes the settings, with `short_model` beside them, and returns what is wrong about
    them, or a false value. In the text and the fix `{0}` is that, and names in braces are settings.
    """

    setting: str
    is_broken: Callable[[Any], Any]
    text: str
    fix: str


class UnreadableError(Exception):
    """A rule asks for a setting that could not be read: it does not apply."""


class _Readable(dict[str, Any]):
    """The settings that could be read, as attributes and items."""

    def __missing__(self, name: str) -> Any:
        raise UnreadableError(name)

    def __getattr__(self, name: str) -> Any:
        return self[name]


def broken_rules(
    job: Any, values: Mapping[str, Any], *, without: Collection[str] = ()
) -> Iterator[Fault]:
    """Yield what contradicts itself in the settings of a job; what can be judged is.

    Args:
        job: Its `JobSpec`.
        values: Settings by name; those that are left out have their default.
        without: Names of settings that could not be read.
    """
    fields = job.settings.model_fields.items()
    known = {n: f.get_default(call_default_factory=True) for n, f in fields if not f.is_required()}
    known |= values
    settings = _Readable({name: known[name] for name in known if name not in without})
    if "model" in settings:
        settings["short_model"] = job.models.short_name(settings["model"])
        settings["is_embedded"] = settings["model"] in job.models.embedded
    for rule in (*OF_EVERY_JOB, *job.rules):
        try:
            if what := rule.is_broken(settings):
                yield rule.setting, *(text.format(what, **settings) for text in rule[2:])
        except UnreadableError:
            continue
    targets = settings.get("targets") or {}  # numbers of a result: `f1`, or dotted as `mean.f1`
    for name in targets if isinstance(targets, dict) else ():
        if not job.scores.may_exist(str(name)):
            text = f"targets names an unknown score `{name}`"
            yield "targets", text, did_you_mean(name, job.scores.short_names())


def _twice(entries: list[Any]) -> str:
    return ", ".join(sorted({str(entry) for entry in entries if entries.count(entry) > 1}))


OF_EVERY_JOB = (
    Rule(
        "per_device_train_batch_size",
        lambda s: s.per_device_train_batch_size > s.global_batch_size,
        "per_device_train_batch_size={per_device_train_batch_size} is larger than "
        "global_batch_size={global_batch_size}",
        "set per_device_train_batch_size to {global_batch_size} or less",
    ),
    Rule(
        "save_minutes",
        lambda s: s.save_minutes is None and s.save_steps is None,
        "save_minutes and save_steps are both empty: a killed run would lose everything",
        "set save_minutes, for example 10.0",
    ),
)
SMOKE_PRETRAINING = Rule(
    "pretrain_steps",
    lambda s: s.pretrain_steps and not s.is_embedded,
    "pretrain_steps={pretrain_steps} is for the smoke models only",
    "set pretrain_steps to 0",
)
ENCODER_RULES = (
    Rule(
        "seq_len",
        lambda s: s.seq_len > POSITIONS.get(s.short_model, s.seq_len) and POSITIONS[s.short_model],
        "seq_len={seq_len} is more than the {0} positions of {model}",
        "set seq_len to {0} or less",
    ),
    Rule(
        "attention",
        lambda s: s.attention == "flex",
        "attention=flex is for fine-tuning",
        "write auto or sdpa",
    ),
)
CLONES_RULES = (
    SMOKE_PRETRAINING,
    *ENCODER_RULES,
    Rule(
        "data_flow_length",
        lambda s: (
            s.data_flow_length is not None
            and s.short_model in GPT2_MODELS
            and ("smoke-graphcodebert" if s.short_model == "smoke" else "graphcodebert")
        ),
        "data_flow_length={data_flow_length}: the model {short_model} is a GPT-2, which reads "
        "plain text only",
        "leave data_flow_length out, or set model to {0}",
    ),
)
DETECTOR_RULES = (
    Rule(
        "pretrain_steps",
        lambda s: s.pretrain_steps and not s.is_embedded and not s.random_weights,
        "pretrain_steps={pretrain_steps} would throw away the weights of {model}",
        "set it to 0, or random_weights to true",
    ),
    *ENCODER_RULES,
    Rule(
        "hold_out",
        lambda s: s.hold_out is not None and not _names_a_value(s.hold_out) and s.hold_out[:60],
        "hold_out={0!r} does not name what is kept out",
        "write source=NAME, generator=NAME or language=NAME",
    ),
    Rule(
        "hold_out",
        lambda s: s.objective == "similar" and (s.hold_out or "").startswith("generator"),
        "hold_out=generator… is about who wrote the code, and objective=similar is not",
        "hold out a source or a language",
    ),
    *(
        Rule(
            name,
            lambda s, name=name: _twice(s[name]),
            name + " names one thing twice",
            "keep one of each",
        )
        for name in ("augment", "languages", "prevalences")
    ),
    Rule(
        "augment_share",
        lambda s: s.augment == [] and s.augment_share,
        "augment_share={0} with no edit in augment changes nothing",
        "set augment_share to 0.0, or name edits in augment",
    ),
    Rule(
        "languages",
        lambda s: next((name for name in s.languages if name != name.lower()), ""),
        "languages holds {0!r:.40}",
        "write names in lower case",
    ),
    Rule(
        "contrastive_weight",
        lambda s: s.objective == "both" and s.contrastive_weight == 0,
        "objective=both with contrastive_weight=0 trains no similarity",
        "set a weight, such as 0.5, or objective to detect",
    ),
    Rule(
        "members_per_task",
        lambda s: s.members_per_task > s.global_batch_size,
        "members_per_task={members_per_task} is more than global_batch_size={global_batch_size}",
        "set members_per_task to {global_batch_size} or less",
    ),
    Rule(
        "test_share",
        lambda s: s.valid_share + s.test_share >= 0.8 and s.valid_share + s.test_share,
        "valid_share and test_share take {0:.0%} of the rows",
        "leave at least a fifth for training",
    ),
)
OURS = {"attention": "flex", "loss": "chunked", "compile_layers": "on"}
FINETUNE_RULES = (
    SMOKE_PRETRAINING,
    Rule(
        "engine",
        lambda s: s.engine == "trl" and next((f"{n}={v}" for n, v in OURS.items() if s[n] == v), 0),
        "engine=trl has no {0}",
        "leave {0} out, or set engine=nbhelpers",
    ),
    Rule(
        "attention",
        lambda s: s.attention == "sdpa" and s.short_model in SOFT_CAPPED,
        "attention=sdpa drops the soft-cap of {short_model}'s attention: another model",
        "write auto, eager or flex",
    ),
    Rule(
        "padding",
        lambda s: s.packing and s.padding == "fixed",
        "packing=true leaves nothing to pad, and padding is fixed",
        "write padding: dynamic, or packing: false",
    ),
    Rule(
        "allow_uneven_split",
        lambda s: s.allow_uneven_split,
        "an uneven split is not made in a fine-tuning",
        "leave allow_uneven_split at false",
    ),
    Rule(
        "template",
        lambda s: s.template not in TEMPLATES and ", ".join(TEMPLATES),
        "there is no template `{template}`",
        "choose one of: {0}",
    ),
    Rule(
        "lora_target_modules",
        lambda s: ALL_LINEAR in s.lora_target_modules and len(s.lora_target_modules) > 1,
        f"lora_target_modules names {ALL_LINEAR} beside others",
        f"keep {ALL_LINEAR} alone, or name the layers",
    ),
    Rule(
        "lora_target_modules",
        lambda s: {"embed_tokens", "lm_head"} & set(s.lora_target_modules),
        "an adapter on the embedding or the head changes 256,000 words at once",
        "leave out embed_tokens and lm_head",
    ),
    Rule(
        "lora_target_modules",
        lambda s: _twice(s.lora_target_modules),
        "lora_target_modules names {0} twice",
        "keep one of each",
    ),
    Rule(
        "lora_target_modules",
        lambda s: next((repr(n)[:60] for n in s.lora_target_modules if not _is_layer(n)), None),
        "lora_target_modules holds {0}, which is no layer's name",
        "write the last part of a name, such as q_proj; patterns are not read",
    ),
)


def _names_a_value(condition: str) -> bool:
    name, _, value = condition.partition("=")
    return name.strip() in HOLD_OUT_FIELDS and bool(value.strip())


def _is_layer(name: str) -> bool:
    return name == ALL_LINEAR or name.isidentifier()
