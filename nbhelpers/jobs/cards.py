"""README.md of an exported folder: what the run recorded, and what it did not.

The words stand in `cards/*.md.jinja`, one template for each kind of folder. Every figure comes from
`result.json` or from the export's own measurement. What is missing there is said to be missing, and
no path of this machine is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData

from nbhelpers.common import formatting
from nbhelpers.data.templates import AS_WRITTEN, render_question
from nbhelpers.jobs.public import hub_name, public_name, without_paths
from nbhelpers.metrics.registry import DETECTOR_SCORES
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.jobs import DETECTOR, FINETUNE
from nbhelpers.presets.packages import WEIGHTS_OF
from nbhelpers.use.clones import NO_EVIDENCE as CLONES_NO_EVIDENCE
from nbhelpers.use.facts import NO_EVIDENCE, SCORES
from nbhelpers.use.trained import Trained

CARD = "README.md"
EXAMPLE = "use_detector.py"  # the program beside a graph
HERE = "path/to/this/folder"
QUESTION = "Write a function that reverses a list."
_VERSIONS = ("python", "nbhelpers", "torch", "transformers", "tokenizers", "peft", "trl")
_VERSIONS += ("accelerate", "bitsandbytes", "cuda", "scikit-learn", "onnx", "onnxruntime")
# Terms of a base model: the hub's licence tag, and where they stand.
BASE_LICENCES = {
    "google/gemma-2-2b": ("gemma", "Gemma Terms of Use, https://ai.google.dev/gemma/terms"),
    "google/gemma-2-2b-it": ("gemma", "Gemma Terms of Use, https://ai.google.dev/gemma/terms"),
    "smollm2": ("apache-2.0", "Apache-2.0, as its package states"),
}
TESTS = {
    "test": "Held-out instructions of the training data",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "sample": "Problems of the bundled sample",
}
TEST_DATA = {"humaneval": "openai/openai_humaneval", "mbpp": "google-research-datasets/mbpp"}
BASELINES = {
    "length": "length alone",
    "layout": "layout features",
    "tfidf": "character n-grams",
    "raw_encoder": "the encoder before training",
}
EDITS = {
    "reformat": "reformatted",
    "strip_comments": "comments removed",
    "rename": "local names changed",
    "rename_reformat": "names changed and reformatted",
}
SPLITS = {
    "test": "Test split",
    "held_out": "Left out of training",
    "valid": "Validation split (the threshold was chosen on it)",
}
DETECTOR_TAGS = ("code", "ai-code-detection", "code-similarity", "sentence-transformers")
CLONE_SCORES = {"precision": "precision", "recall": "recall", "f1": "F1"}
CLONE_SCORES |= {"roc_auc": "ROC-AUC", "pr_auc": "average precision"}
PAIR_SCORES = {"roc_auc": "ROC-AUC", "average_precision": "average precision"}
PAIR_SCORES |= {"accuracy": "accuracy", "f1": "F1"}


def adapter_card(
    trained: Trained,
    result: Mapping[str, Any],
    *,
    repo_id: str | None = None,
    merge: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of an adapter, or of a merged model.

    Args:
        result: What `result.json` holds; empty for an adapter that no run of ours made, or for a
            run without a result.
        repo_id: Where it will lie on the hub.
        merge: Figures of a merged model; None for an adapter.
    """
    settings, template = trained.settings, trained.template
    is_chat = template in ("chat", "auto")
    is_bare = is_chat or template == AS_WRITTEN
    scores = result.get("scores") or {}
    return _rendered(
        "adapter.md.jinja",
        front_matter=_adapter_metadata(trained, result, is_merged=merge is not None),
        settings=settings,
        result=result,
        merge=merge,
        run=result.get("run_id") or (trained.run.name if trained.run else None),
        base=public_name(settings.model),
        base_id=hub_name(settings.model),
        base_source=_base_source(settings.model, result),
        base_package=WEIGHTS_OF.get(settings.model),
        is_embedded=settings.model in FINETUNE.models.embedded,
        is_sample="smoke" in (settings.data, settings.model),
        licence=_licence(settings.model),
        template=template,
        is_chat=is_chat,
        template_text="" if is_bare else render_question("{instruction}", "", template),
        question=QUESTION,
        prompt=QUESTION if is_bare else render_question(QUESTION, "", template),
        place=repo_id or HERE,
        tests=TESTS,
        not_evaluated=[
            title for name, title in TESTS.items() if name != "sample" and not scores.get(name)
        ],
        score_rows=_generation_rows,
        gpus=_gpus(result),
    )


def detector_card(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card of a detector.

    Args:
        result: What `public.public_result` tells; empty for a run without a result.
        facts: `detector` (what detector.json holds), `settings` (of the run), `point` and
            `calibration`, `agreement` and `programs` (what the export measured), `name`,
            `repo_id`, `parameters`, `onnx`, `versions`.
    """
    settings = result.get("settings") or facts.get("settings") or {}
    model, data = result.get("model") or {}, result.get("data") or {}
    test = (result.get("scores") or {}).get("test") or {}
    is_embedded = settings.get("model") in DETECTOR.models.embedded
    return _rendered(
        "detector.md.jinja",
        front_matter=_model_metadata(
            result,
            settings,
            facts["name"],
            result.get("scores") or {},
            DETECTOR_SCORES.card(),
            DETECTOR_TAGS,
        ),
        result=result,
        facts=facts,
        encoder=model.get("name") or public_name(settings.get("model")),
        is_sample=settings.get("data") in SAMPLES,
        began_random=True if is_embedded else model.get("random_weights"),
        pretraining=", ".join(f"{k} {v}" for k, v in (model.get("pretrain") or {}).items()),
        no_overlap=not any(_leaves(data.get("overlap"))),
        splits=SPLITS,
        metrics=DETECTOR_SCORES.card(),
        edits=EDITS,
        baselines=_scored,
        score_rows=_detection_rows,
        differences=_differences,
        pair_rows=_pair_rows,
        not_beaten=list(_not_beaten(test)),
        score_words=SCORES.get((result.get("score") or {}).get("uses")),
        worst_edit=_worst_edit(test),
        notice=NO_EVIDENCE,
        example=EXAMPLE,
    )


def clones_card(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card of a clone model.

    Args:
        result: What `public.public_result` tells; empty for a run without a result.
        facts: What clones.json holds, and `name`, `repo_id`, `parameters`, `agreement`, `programs`,
            `forms`, `left_out`, `versions`.
    """
    settings = result.get("settings") or {}
    test = (result.get("scores") or {}).get("test") or {}
    given = {name: test.get("orders", {}).get("given", {}).get(name) for name in CLONE_SCORES}
    return _rendered(
        "clones.md.jinja",
        front_matter=_model_metadata(
            result, settings, facts["name"], {"test": {"metrics": given}}, CLONE_SCORES
        ),
        result=result,
        facts=facts,
        encoder=(result.get("model") or {}).get("name") or public_name(settings.get("model")),
        is_sample=settings.get("data") in SAMPLES,
        score_rows=_clone_rows,
        notice=CLONES_NO_EVIDENCE,
    )


# ------------------------------------------------------------------------------------------------
# Front matter: what the hub reads; only keys whose value is known.


def _adapter_metadata(trained: Trained, result: Mapping[str, Any], *, is_merged: bool) -> str:
    settings = trained.settings
    base, data = hub_name(settings.model), hub_name(settings.data) if trained.run else None
    scores = {
        (TEST_DATA.get(split, data or public_name(settings.data)), TESTS[split], split): values.get(
            "metrics"
        )
        or {}
        for split, values in (result.get("scores") or {}).items()
        if split in TESTS and values
    }
    return _front_matter(
        library_name="transformers" if is_merged else "peft",
        base_model=base,
        base_model_relation=("finetune" if is_merged else "adapter") if base else None,
        license=BASE_LICENCES.get(settings.model, (None,))[0],
        datasets=[data] if data else None,
        pipeline_tag="text-generation",
        tags=["code", "lora", *(["qlora"] if settings.method == "qlora" else [])],
        model_name=result.get("run_id") or trained.name,
        eval_results=_eval_results("text-generation", scores, {}),
    )


def _model_metadata(
    result: Mapping[str, Any],
    settings: Mapping[str, Any],
    name: str,
    splits: Mapping[str, Any],
    titles: Mapping[str, str],
    tags: Sequence[str] = ("code", "clone-detection"),
) -> str:
    """Front matter of a whole model: of a detector or a clone model."""
    data = hub_name(settings.get("data"))
    is_pretrained = (result.get("model") or {}).get("random_weights") is False
    base = hub_name(settings.get("model")) if is_pretrained else None
    scores = {
        (data or public_name(settings.get("data")), SPLITS[split], split): values["metrics"] or {}
        for split, values in splits.items()
        if split in ("test", "held_out") and values and "metrics" in values
    }
    return _front_matter(
        library_name="nbhelpers",
        base_model=base,
        base_model_relation="finetune" if base else None,
        datasets=[data] if data else None,
        pipeline_tag="text-classification",
        tags=list(tags),
        model_name=name,
        eval_results=_eval_results("text-classification", scores, titles),
    )


def _eval_results(
    task: str, scores: Mapping[tuple[str, str, str], Mapping[str, Any]], titles: Mapping[str, str]
) -> list[EvalResult]:
    """Return the hub's `model-index` entries of scores by (data set, its title, split)."""
    return [
        EvalResult(
            task_type=task,
            dataset_type=data,
            dataset_name=title,
            dataset_split=split,
            metric_type=metric,
            metric_name=titles.get(metric, metric),
            metric_value=value,
        )
        for (data, title, split), metrics in scores.items()
        for metric, value in metrics.items()
        if value is not None and (metric in titles or not titles)
    ]


def _front_matter(**fields: Any) -> str:
    known = {name: value for name, value in fields.items() if value}
    if "eval_results" not in known:
        known.pop("model_name", None)
    return f"---\n{ModelCardData(**known).to_yaml()}\n---"


# ------------------------------------------------------------------------------------------------
# Rendering: numbers and texts as a card writes them.


def _rendered(name: str, /, **facts: Any) -> str:
    text = _environment().get_template(name).render(here=HERE, versions=_versions, **facts)
    return without_paths(re.sub(r"\n{3,}", "\n\n", text.strip())) + "\n"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "cards"),
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = (_cell, _code, _difference, _duration, _edges, _figure, _line, _number, _percent, _size)
    environment.filters |= {write.__name__[1:]: write for write in known}
    environment.filters |= {"repr": repr, "public": public_name}
    environment.filters["baseline"] = lambda name: BASELINES.get(name, name)
    environment.filters["prefixed"] = lambda text, prefix: f"{prefix}{text}"
    return environment


def _is_known(value: Any) -> bool:
    return value is not None and not isinstance(value, jinja2.Undefined)


def _are_known(numbers: Any) -> bool:
    """Whether all edges of an interval, or parts of a difference, are known."""
    return _is_known(numbers) and bool(numbers) and None not in numbers


def _cell(value: Any) -> str:
    """Write a value of a table; one that is missing is said to be not recorded."""
    if not _is_known(value) or value == "":
        return "not recorded"
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _line(text: Any) -> str:
    """Write a text as one line that breaks no table, list or code span."""
    return _cell(text).replace("`", "'").rstrip(".")


def _code(text: Any) -> str:
    """Write a text as one line inside a code span, where nothing else is special."""
    return " ".join(str(text).split()).replace("`", "'")


def _number(value: Any) -> str:
    if not _is_known(value):
        return "not recorded"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _figure(value: Any, edges: Any = None) -> str:
    text = f"{value:.3f}" if _is_known(value) else "not computed"
    return f"{text} [{edges[0]:.3f}, {edges[1]:.3f}]" if _are_known(edges) else text


def _percent(value: Any, edges: Any = None) -> str:
    text = formatting.share(value) if _is_known(value) else "not computed"
    return f"{text} [{100 * edges[0]:.1f}, {100 * edges[1]:.1f}]" if _are_known(edges) else text


def _difference(parts: Any) -> str:
    if not _are_known(parts):
        return "not computed"
    return f"{parts[0]:+.3f} [{parts[1]:+.3f}, {parts[2]:+.3f}]"


def _edges(edges: Any, between: str) -> str | None:
    return f"{edges[0]:.3f}{between}{edges[1]:.3f}" if _are_known(edges) else None


def _duration(seconds: Any) -> str | None:
    return formatting.duration(seconds) if _is_known(seconds) else None


def _size(size_bytes: Any) -> str | None:
    return formatting.size(size_bytes, least_gib=0.0) if _is_known(size_bytes) else None


# ------------------------------------------------------------------------------------------------
# Facts that a template takes ready-made.


def _base_source(model: str, result: Mapping[str, Any]) -> str:
    if hub_name(model):
        return f"`{model}` on the hub"
    if model in FINETUNE.models.embedded:
        return f"`{model}`, built and pre-trained for seconds by nbhelpers"
    if package := WEIGHTS_OF.get(model):
        version = str((result.get("versions") or {}).get(package) or "not known")
        known = "" if version.startswith("not ") else f", version {version}"
        return f"`{model}`, from the Python package `{package}`{known}"
    return f"a local folder named {Path(model).name}, whose origin is not recorded"


def _licence(model: str) -> str:
    if model in FINETUNE.models.embedded:
        return "made by nbhelpers from its bundled sample"
    return BASE_LICENCES.get(model, ("", "not known here; see where it comes from"))[1]


def _gpus(result: Mapping[str, Any]) -> str | None:
    names = [gpu["name"] for gpu in result.get("gpu") or [] if gpu.get("name")]
    is_cpu = (result.get("memory") or {}).get("device") == "cpu"
    return ", ".join(names) or ("none, a CPU" if is_cpu else None)


def _versions(record: Mapping[str, Any]) -> str:
    """Return the versions of the packages that a card names, "" where none is known."""
    versions = {name: str(version) for name, version in (record.get("versions") or {}).items()}
    return ", ".join(
        f"{name} {_line(versions[name])}"
        for name in _VERSIONS
        if name in versions and not versions[name].startswith(("not ", "none"))
    )


def _generation_rows(split: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield metric, value and interval."""
    for name, value in (split.get("metrics") or {}).items():
        edges = (split.get("intervals") or {}).get(name)
        interval = f"{edges[0]:.4g} to {edges[1]:.4g}" if _are_known(edges) else "not computed"
        yield [name, "not computed" if value is None else f"{value:.4g}", interval]


def _scored(baselines: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the baselines that were scored."""
    return {
        name: scores
        for name, scores in (baselines or {}).items()
        if scores and "skipped" not in scores
    }


def _detection_rows(split: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the title of each metric, the model's score and those of its baselines."""
    sides = [split, *_scored(split.get("floors")).values()]
    for name, title in DETECTOR_SCORES.card().items():
        scores = [
            ((side.get("metrics") or {}).get(name), (side.get("intervals") or {}).get(name))
            for side in sides
        ]
        if any(value is not None for value, _ in scores):
            yield [title, *(_figure(*score) for score in scores)]


def _differences(baselines: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each baseline and metric the difference, and who is ahead by more than chance."""
    titles = DETECTOR_SCORES.card()
    for name, baseline in baselines.items():
        for metric, parts in (baseline.get("lead") or {}).items():
            if metric in DETECTOR_SCORES.differences() and _are_known(parts):
                _, low, high = parts
                verdict = "ahead" if low > 0 else "behind" if high < 0 else "no clear difference"
                title = titles.get(metric, metric)
                yield BASELINES.get(name, name), title, _difference(parts), verdict


def _clone_rows(split: Mapping[str, Any]) -> Iterator[list[str]]:
    orders, intervals = split.get("orders") or {}, split.get("intervals") or {}
    for name, title in CLONE_SCORES.items():
        given = _figure((orders.get("given") or {}).get(name), intervals.get(name))
        yield [title, given, _figure((orders.get("mean") or {}).get(name))]


def _pair_rows(pairs: Mapping[str, Any]) -> Iterator[list[str]]:
    baselines = _scored(pairs.get("floors")).values()
    for name, title in PAIR_SCORES.items():
        own = _figure(pairs.get(name), pairs.get(f"{name}_interval"))
        yield [title, own, *(_figure(baseline.get(name)) for baseline in baselines)]


def _not_beaten(test: Mapping[str, Any]) -> Iterator[str]:
    """Yield the baselines that the model does not beat by more than the interval."""
    for name, baseline in (test.get("floors") or {}).items():
        differences = (baseline or {}).get("lead") or {}
        difference = differences.get("tpr_at_fpr") or differences.get("tpr")
        if _are_known(difference) and difference[1] <= 0:
            yield name


def _worst_edit(test: Mapping[str, Any]) -> str | None:
    """Return the edit that costs the most AI code found; None where none costs any."""
    losses = {
        name: (edit or {}).get("tpr_loss") for name, edit in (test.get("edits") or {}).items()
    }
    known = {name: loss for name, loss in losses.items() if loss is not None and loss > 0}
    return max(known, key=known.__getitem__, default=None)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping | list):
        children: Iterable[Any] = data.values() if isinstance(data, Mapping) else data
        for child in children:
            yield from _leaves(child)
    else:
        yield data
