"""What differs between the jobs, in one frozen object each.

A job of your own is a `JobSpec` in `JOBS`, a module in the worker with the five functions
`check`, `build_data`, `build_model`, `train` and `evaluate`, a module of its report, and presets
in a folder of `NBHELPERS_CONFIGS`. The environment variable `NBHELPERS_JOBS` names the module
(several with commas) that adds it, so that the worker's process knows it too.

What belongs to a higher layer, or is heavy, is named here as `module:name` and imported when
used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError
from nbhelpers.metrics.registry import CLONES_SCORES, DETECTOR_SCORES, FINETUNE_SCORES, Scores
from nbhelpers.presets.catalog import SAMPLES, JobModels
from nbhelpers.presets.rules import CLONES_RULES, DETECTOR_RULES, FINETUNE_RULES, Rule

if TYPE_CHECKING:
    from nbhelpers.presets.schema import Settings


JOBS_VARIABLE = "NBHELPERS_JOBS"
ENCODER, ADAPTER = "encoder", "adapter"  # formulas of memory and time that exist


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFacts:
    """What is known of a job's work and time before anything of it was measured.

    `data_s`: seconds to read and tokenise `data_examples`, and `examples_repeat` whether more
    examples are made of the same texts. `train_examples`: all training examples of public data.
    `example_tokens`: useful tokens of an example by its longest text, as points of a broken line.
    `sample_tokens`: those of the bundled sample. `useful_share` of the computed tokens is useful.
    `evaluate_s`: a low, an expected and a high value for `data_examples`; `floors_s`: of cheap
    scorers, where they are timed apart. `valid_share` and
    `scored_share` of the training examples are scored at each validation and at the end, at most
    `most_valid` and `most_scored`.
    """

    data_s: float
    data_examples: int
    sample_tokens: float
    train_examples: Mapping[str, int] = field(default_factory=dict)
    example_tokens: tuple[tuple[int, float], ...] = ()
    examples_repeat: bool = False
    useful_share: float = 1.0
    evaluate_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    floors_s: tuple[float, float, float] | None = None
    valid_share: float = 1.0
    most_valid: float = float("inf")
    scored_share: float = 1.0
    most_scored: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job: its settings, models, scores and modules, and what is known of its cost.

    Attributes:
        name: As in `configs/<name>/`, run ids and the commands of the shell.
        settings_class: Of its settings, as `module:Class`.
        models: Known by a short name.
        scores: Its metrics, from `metrics.registry`.
        unit: What a batch counts, in the plural.
        worker: Module with the five functions of the job.
        report: Module with `summary` and `blocks`, functions of a run's facts; see
            `reports.blocks`.
        libraries: Those whose code decides the memory of a step.
        score_libraries: Those that only scores depend on.
        notebook: That trains the job; empty: none.
        parameters: Settings that have a parameter of their own in the notebook.
        has_adapters: What is trained is an adapter on a base model, and a study varies it.
        formulas: Of memory and time that hold for its models: ENCODER, ADAPTER, or none.
        simulation: What simulates its training step, as `module:function`; empty: nothing does.
        early: What begins, in a process of its own, that part of `build_data` which needs no
            library, as `module:function` of the settings: a worker calls it before it loads
            the libraries, and `build_data` is given what it returned.
        memory_neutral: Settings that change no tensor.
        memory_facts: Rewrites what decides the memory, where a setting counts only roughly:
            takes the values by setting, the settings and the batch plan, and returns the values.
        rules: Contradictions between settings that are each valid, beside those of every job.
        data_may_be_file: Its data may be one file, not only a folder or a hub id.
        further_data: Settings that name data, beside `data`.
        task_units: What a progress counter counts, by the first word of its name.
        pretraining: Steps and rows of the embedded model's pre-training, in words.
        time: What is known of its time; None: nothing.
        quick: A small experiment for a first result: upper limits of settings, and the share of
            the preset's `train_fraction`.
    """

    name: str
    settings_class: str
    models: JobModels
    scores: Scores
    unit: str
    worker: str
    report: str
    libraries: tuple[str, ...] = ("torch",)
    score_libraries: tuple[str, ...] = ()
    notebook: str = ""
    parameters: tuple[str, ...] = ("model", "data", "epochs", "seed")
    has_adapters: bool = False
    formulas: str = ""
    simulation: str = ""
    early: str = ""
    memory_neutral: frozenset[str] = frozenset()
    memory_facts: Callable[[dict[str, Any], Any, Any], dict[str, Any]] | None = None
    rules: tuple[Rule, ...] = ()
    data_may_be_file: bool = False
    further_data: tuple[str, ...] = ()
    task_units: Mapping[str, str] = field(default_factory=dict)
    pretraining: tuple[str, str] = ("steps", "")
    time: TimeFacts | None = None
    quick: Mapping[str, float] = field(default_factory=dict)

    @property
    def settings(self) -> type[Settings]:
        """The class of its settings."""
        return resolve(self.settings_class)


def resolve(place: str) -> Any:
    """Return what `module:name` names, or the module where no name is given."""
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def _finetune_memory(facts: dict[str, Any], s: Any, plan: Any) -> dict[str, Any]:
    """Settings of a fine-tuning whose exact value does not matter."""
    # Rows of a scored batch: a limit that leaves a whole batch does not matter.
    for limit, batch in (
        ("valid_samples", "per_device_eval_batch_size"),
        ("eval_samples", "generation_batch_size"),
    ):
        if getattr(s, limit) >= getattr(s, batch):
            facts[limit] = "enough"
    facts["lora_target_modules"] = sorted(set(s.lora_target_modules))
    facts["lora_dropout"] = s.lora_dropout > 0
    facts["loss"] = "chunked" if s.loss == "auto" else s.loss
    if s.evaluate != "all":
        del facts["tasks"]
    if s.method == "base":
        for name in ("lora_r", "lora_dropout", "lora_target_modules"):
            del facts[name]
    return facts


def _detector_memory(facts: dict[str, Any], s: Any, plan: Any) -> dict[str, Any]:
    """The contrastive loss keeps the vectors of the whole global batch."""
    facts["contrastive_weight"] = s.contrastive_weight > 0
    facts["freeze_epochs"] = (s.freeze_epochs > 0, s.freeze_epochs >= s.epochs)
    facts["global_batch_size"] = plan.global_batch_size
    return facts


# Sources of the time facts: docs/LOG.md. 15 s for BigCloneBench's 9,134 functions, 125 s for 47,523
# programs, audit and edits included; an instruction row is made into tokens in well under a
# millisecond. Scoring took 2 s and floors 15 for the clones (intervals 1 more); 70 to 130 s for the
# detector's scores, edit suite and floors, of 47,523 programs, and as its `floors_s` about 80 s of
# n-grams without each of four sources in turn (20,000 programs at most). Useful tokens over
# examples are those of the runs with 400 and 1,024 tokens on BigCloneBench (a pair), and 512 on
# Rosetta Code;
# shorter and longer texts are guesses from these. Train examples: CodeXGLUE's train.txt (901,028
# pairs); the page of H-AIRosettaMP (121,247 rows), of which four fifths are drawn for training
# where nothing else is asked for; the instructions' only split, and its tokens under Gemma's
# tokenizer; the bundled samples, counted. Useful share of clones with packed blocks: .83 to .85,
# attention alone being padded.
CLONES = JobSpec(
    name="clones",
    settings_class="nbhelpers.presets.schema:ClonesSettings",
    models=JobModels(
        aliases={
            "codegpt": "microsoft/CodeGPT-small-java-adaptedGPT2",
            "graphcodebert": "microsoft/graphcodebert-base",
            "codebert": "microsoft/codebert-base",
        },
        embedded=("smoke", "smoke-graphcodebert"),
        families=("gpt2", "roberta"),
    ),
    scores=CLONES_SCORES,
    unit="pairs",
    worker="nbhelpers.jobs.clones",
    report="nbhelpers.reports.clones",
    libraries=("torch", "transformers", "accelerate"),
    notebook="notebooks/03_find_clones.ipynb",
    parameters=(
        *("model", "data", "seq_len", "data_flow_length", "epochs"),
        *("per_device_train_batch_size", "num_gpus", "train_fraction", "seed"),
    ),
    formulas=ENCODER,
    simulation="nbhelpers.jobs.simulated.jobs:simulate_clones",
    memory_neutral=frozenset(
        ("priors", "floors", "grammar_compat", "compile_layers", "pair_order")
    ),
    rules=CLONES_RULES,
    task_units={"tokenise": "functions", "evaluate": "functions of the pairs"},
    pretraining=("language-model steps", "its train functions"),
    time=TimeFacts(
        data_s=15.0,
        data_examples=90_102,
        examples_repeat=True,  # a part of the functions stand in every tenth of the pairs
        train_examples={
            "semeru/Code-Code-CloneDetection-BigCloneBench": 901_028,
            "smoke": 3_800,
        },
        example_tokens=(
            *((0, 0.0), (128, 230.0), (256, 370.0), (400, 430.0), (1024, 538.0)),
            (4096, 600.0),
        ),
        sample_tokens=198,
        useful_share=0.84,
        evaluate_s=(4.0, 8.0, 20.0),
        floors_s=(8.0, 15.0, 30.0),
        most_valid=500,
        most_scored=1_000,
    ),
    quick={"train_fraction": 0.05},
)

FINETUNE = JobSpec(
    name="finetune",
    settings_class="nbhelpers.presets.schema:FinetuneSettings",
    models=JobModels(
        aliases={"gemma-2-2b": "google/gemma-2-2b", "gemma-2-2b-it": "google/gemma-2-2b-it"},
        embedded=("smoke",),
        packaged=("smollm2",),
        families=("gemma2", "llama"),
    ),
    scores=FINETUNE_SCORES,
    unit="samples",
    worker="nbhelpers.jobs.finetune",
    report="nbhelpers.reports.finetune",
    libraries=("torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes"),
    score_libraries=("sacrebleu",),
    notebook="notebooks/01_finetune_gemma.ipynb",
    parameters=("model", "data", "seq_len", "epochs", "max_train_samples", "evaluate", "seed"),
    has_adapters=True,
    formulas=ADAPTER,
    simulation="nbhelpers.jobs.simulated.finetune:simulate_finetune",
    memory_neutral=frozenset(
        (
            *("lora_alpha", "warmup_steps", "template", "remove_duplicates", "split_seed"),
            *("mbpp_data", "max_task_problems", "run_generated_code", "supervise"),
        )
    ),
    memory_facts=_finetune_memory,
    rules=FINETUNE_RULES,
    data_may_be_file=True,
    task_units={"tokenise": "samples", "generate": "answers", "evaluate": "functions"},
    pretraining=("language-model steps", "the sample"),
    time=TimeFacts(
        data_s=10.0,
        data_examples=18_312,
        train_examples={"iamtarun/python_code_instructions_18k_alpaca": 18_612, "smoke": 1_200},
        example_tokens=((0, 0.0), (210, 210.0)),
        sample_tokens=60,
    ),
    quick={"max_train_samples": 400, "epochs": 1, "eval_samples": 20, "valid_samples": 40},
)

DETECTOR = JobSpec(
    name="detector",
    settings_class="nbhelpers.presets.schema:DetectorSettings",
    models=JobModels(
        aliases={
            "codebert": "microsoft/codebert-base",
            "graphcodebert": "microsoft/graphcodebert-base",
            "unixcoder": "microsoft/unixcoder-base",
            "codet5": "Salesforce/codet5-base",
            "modernbert": "answerdotai/ModernBERT-base",
        },
        embedded=("smoke",),
        packaged=("minilm",),
        families=("roberta", "bert", "t5", "modernbert"),
    ),
    scores=DETECTOR_SCORES,
    unit="programs",
    worker="nbhelpers.jobs.detector",
    report="nbhelpers.reports.detector",
    libraries=("torch", "transformers", "accelerate"),
    notebook="notebooks/02_detect_ai_code.ipynb",
    parameters=(
        *("model", "data", "objective", "hold_out", "unseen_humans", "on_failed_audit"),
        *("epochs", "train_fraction", "seed"),
    ),
    formulas=ENCODER,
    simulation="nbhelpers.jobs.simulated.jobs:simulate_detector",
    early="nbhelpers.data.detection_early:begin_reading",
    memory_neutral=frozenset(
        (
            *("canonical", "languages", "split", "split_seed", "valid_share", "test_share"),
            *("hold_out", "unseen_humans", "on_failed_audit", "temperature"),
            *("class_weights", "encoder_learning_rate", "augment", "augment_share", "target_fpr"),
            *("target_miss_rate", "prevalences", "floors", "edit_suite", "score"),
            "evaluate_sources",
        )
    ),
    memory_facts=_detector_memory,
    rules=DETECTOR_RULES,
    data_may_be_file=True,
    further_data=("unseen_humans", "retrieval_data"),
    task_units=dict.fromkeys(
        ("tokenise", "evaluate", "score", "embed", "edit", "augment", "audit", "read", "retrieve"),
        "programs",
    )
    | {"leave": "sources"},
    pretraining=("masked-language-model steps", ""),
    time=TimeFacts(
        data_s=40.0,
        data_examples=38_018,
        train_examples={"isThisYouLLM/H-AIRosettaMP": 96_998, "smoke": 624},
        example_tokens=((0, 0.0), (128, 115.0), (256, 180.0), (512, 239.0), (2048, 300.0)),
        sample_tokens=100,
        evaluate_s=(8.0, 12.0, 40.0),
        floors_s=(0.0, 25.0, 90.0),  # begun beside the training
        valid_share=0.125,
        scored_share=0.25,
    ),
    quick={"train_fraction": 0.1, "epochs": 3},
)

JOBS: dict[str, JobSpec] = {spec.name: spec for spec in (CLONES, FINETUNE, DETECTOR)}


def spec_of(settings: Settings) -> JobSpec:
    """Return the job whose settings these are."""
    return next(spec for spec in JOBS.values() if spec.settings is type(settings))


def bundled() -> set[str]:
    """Return the names of the package's own samples and models: no folders, whatever lies around.

    >>> sorted(bundled())
    ['minilm', 'smoke', 'smoke-graphcodebert', 'smollm2']
    """
    models = (spec.models for spec in JOBS.values())
    return {*SAMPLES, *(name for known in models for name in (*known.embedded, *known.packaged))}


for _name in filter(None, os.environ.get(JOBS_VARIABLE, "").split(",")):
    try:
        importlib.import_module(_name)
    except Exception as error:
        raise ConfigError(
            f"{JOBS_VARIABLE} names {_name!r}, which cannot be imported "
            f"({type(error).__name__}: {error}).",
            fix="name a module on Python's path that adds its JobSpec to JOBS, or unset it",
        ) from error
