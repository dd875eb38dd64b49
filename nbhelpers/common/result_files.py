"""The files of a run folder as models: run.json, result.json, process.json, study.json and others.

The worker writes a result through the model that readers check it with, so that both hold the same.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from nbhelpers.common.json_models import (
    Interval,
    JsonFile,
    Lead,
    Number,
    Numbers,
    Part,
    Plain,
    Plains,
    Text,
    Whole,
)


def _as_list(value: Any) -> Any:
    """A list of texts; a single text is its only item."""
    return [value] if isinstance(value, str) else value


def _as_problems(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list)]
Count = Number | Numbers  # one count, or one of each file


class Generation(Part):
    """A line of generations.jsonl: a question with the model's answer, and how its program ended.

    Problems have no reference.
    """

    split: str
    prompt: str
    answer: str
    id: Plain = None
    reference: Text = None
    outcome: Text = None
    detail: Text = None
    stopped: bool | None = None
    new_tokens: Whole = None


class DetectorPrediction(Part):
    """A line of a detector's predictions.jsonl: the label of a program and its probability."""

    split: str
    p_ai: Annotated[float, Field(ge=0, le=1)]
    id: Plain = None
    label: Literal["human", "ai"] | None = None
    logit: Number = None


class Gpu(Part):
    """A GPU during a run: its name, mean utilisation in per cent and peak memory in bytes."""

    index: Plain = None
    name: Plain = None
    mean_utilisation_percent: Number = None
    peak_memory_used_bytes: Number = None


class Slice(Part):
    """Scores of the programs that share one value of one feature, such as a language."""

    by: Plain = None
    value: Plain = None
    n_human: Number = None
    n_ai: Number = None
    roc_auc: Number = None
    tpr: Number = None
    fpr: Number = None
    tpr_interval: Interval | None = None
    fpr_interval: Interval | None = None


class EditScores(Slice):
    """Scores of edited programs beside those of the same programs unedited."""

    skipped: Plain = None
    tpr_unedited: Number = None
    tpr_loss: Number = None
    fpr_unedited: Number = None
    tpr_loss_interval: Interval | None = None


class Edit(EditScores):
    """Scores under one edit, of the model and of each baseline."""

    floors: dict[str, EditScores] = {}


class FloorLead(Part):
    """The model minus a baseline: for clones f1 with its interval, for a detector by metric."""

    f1: Number = None
    interval: Interval | None = None
    roc_auc: Lead | None = None
    tpr: Lead | None = None
    tpr_at_fpr: Lead | None = None


class PointScores(Part):
    """Scores of pairs: of a part of a split, at another share of clones, or of a baseline."""

    n_pairs: Number = None
    prior: Number = None
    precision: Number = None
    recall: Number = None
    f1: Number = None
    roc_auc: Number = None
    intervals: dict[str, Interval | None] = {}


class FloorScores(PointScores):
    """The scores of a baseline; clones keep them flat, a detector under `metrics`."""

    metrics: Numbers = {}
    lead: FloorLead = FloorLead()
    skipped: Text = None
    note: Text = None


class Precision(Part):
    """Precision at one share of AI programs."""

    precision: Number = None
    precision_interval: Interval | None = None


class Resamples(Part):
    """Resamples that intervals come from; the areas of a long split have fewer."""

    all: Whole = None
    areas: Whole = None


class Split(Part):
    """Scores of one split; which of them there are depends on the job."""

    n_pairs: Number = None
    n_functions: Number = None
    n_samples: Number = None
    n_tasks: Number = None
    n_human: Number = None
    n_ai: Number = None
    prior: Number = None
    threshold: Number = None
    level: Number = None
    metrics: Numbers = {}
    outcomes: Numbers = {}
    syntax_errors: Numbers = {}
    signatures: Plains = {}
    decoding: Plains = {}
    tokenizer: Text = None
    resamples: Resamples = Resamples()
    orders: dict[str, Numbers] = {}
    intervals: dict[str, Interval | None] = {}
    at_prior: dict[str, PointScores] = {}
    strata: dict[str, PointScores] = {}
    floors: dict[str, FloorScores] = {}
    at_prevalence: dict[str, Precision] = {}
    reliability: list[Numbers] = []
    slices: list[Slice] = []
    worst: dict[str, Slice] = {}
    macro: dict[str, Numbers] = {}
    edits: dict[str, Edit] = {}


class Line(Part):
    """One line of a memory prediction."""

    name: Text = None
    size_bytes: Number = None
    note: Text = None


class Budget(Part):
    """The memory of one process as predicted before the run, in bytes."""

    lines: list[Line] = []
    total_bytes: Number = None
    capacity_bytes: Number = None
    reserved_bytes: Number = None
    source: Text = None
    phases: list[Line] = []
    held: list[Line] = []


class PredictedPhase(Part):
    """The predicted seconds of one phase of a run."""

    low_s: Number = None
    expected_s: Number = None
    high_s: Number = None


class PredictedTime(PredictedPhase):
    """The time of a run as predicted before it, in seconds."""

    basis: Text = None
    phases: list[PredictedPhase] = []
    notes: list[str] = []
    max_s: Number = None
    price_per_hour: Number = None
    tokens_per_s: Number = None
    mfu: Number = None


class Plan(Part):
    """How the global batch is split over processes and micro-steps."""

    world_size: Whole = None
    num_nodes: Whole = None
    per_device_train_batch_size: Whole = None
    gradient_accumulation_steps: Whole = None
    use_gpu: bool | None = None


class Error(Part):
    """A prediction beside its measurement in bytes, and its error in per cent."""

    predicted_bytes: Number = None
    measured_bytes: Number = None
    error_percent: Number = None


class PhaseMemory(Error):
    """The peak of one phase of a training step."""

    phase: Text = None


class RankMemory(Part):
    """What one rank measured, in bytes."""

    peak_allocated_bytes: Number = None
    peak_reserved_bytes: Number = None
    rss_bytes: Number = None


class Alive(Part):
    """Tensors alive at the peak that were made at one place of the code."""

    made_at: Text = None
    size_bytes: Number = None
    count: Number = None
    total_bytes: Number = None


class Snapshot(Error):
    """What was alive at the peak."""

    file: Text = None
    alive: list[Alive] = []


class Memory(Error):
    """Predicted and measured memory of a run."""

    what: Text = None
    device: Text = None
    source: Text = None
    basis: Text = None
    per_rank: list[RankMemory] = []
    phases: list[PhaseMemory] = []
    predicted_lines: list[Line] = []
    reserved: Numbers = {}
    left_over: Numbers = {}
    snapshot: Snapshot = Snapshot()


class Step(Part):
    """A step or an evaluation on the way: its losses, speed and scores."""

    step: Number = None
    loss: Number = None
    learning_rate: Number = None
    classification_loss: Number = None
    contrastive_loss: Number = None
    useful_tokens_per_s: Number = None
    memory_bytes: Number = None
    split: Text = None
    scores: Numbers = {}
    f1: Number = None
    roc_auc: Number = None
    tpr: Number = None
    fpr: Number = None
    mrr: Number = None


class Training(Part):
    """How far training went, and what the loss did."""

    optimizer_steps: Number = None
    total_steps: Number = None
    epochs: Number = None
    examples: Number = None
    skipped_steps: Number = None
    first_loss: Number = None
    last_loss: Number = None
    best_step: Number = None
    resumed_from: Plain = None
    history: list[Step] = []
    evals: list[Step] = []


class Settings(Part):
    """The settings of a run as the preset resolved them; those that readers ask for."""

    model: Text = None
    data: Text = None
    method: Text = None
    lora_r: Whole = None
    evaluate: Text = None
    seq_len: Whole = None
    global_batch_size: Whole = None
    max_new_tokens: Whole = None
    hold_out: Plain = None
    score: Plain = None
    class_weights: Plain = None
    on_failed_audit: Plain = None
    pretrain_steps: Whole = None
    seed: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    bootstrap_samples: Annotated[int | None, Field(ge=100)] = None
    tasks: list[str] = []
    targets: Numbers = {}


class DataFlow(Part):
    """The data flow that a model of clones reads beside the tokens."""

    data_flow_length: Number = None
    mean_nodes: Number = None
    functions_without_nodes: Number = None
    grammar_compat: Plain = None


class ModelFacts(Part):
    """The model of a run."""

    name: Text = None
    revision: Plain = None
    architecture: Plain = None
    tokenizer: Plain = None
    attention: Plain = None
    parameters: Number = None
    random_weights: Plain = None
    compiled: Plain = None
    cuda_graphs: Plain = None
    quantised: Plain = None
    loss: Plain = None
    data_flow: DataFlow = DataFlow()
    parity: dict[str, Any] = {}


class Lengths(Part):
    """A histogram of lengths in tokens."""

    edges: list[Number] = []
    counts: list[Number] = []
    seq_len: Number = None
    cut_share: Number = None


class SplitData(Part):
    """How much data a split has."""

    pairs: Number = None
    clones: Number = None
    functions: Number = None
    samples: Number = None
    tokens: Number = None
    supervised_tokens: Number = None
    cut: Number = None
    dropped: Number = None
    rows: Number = None
    human: Number = None
    ai: Number = None
    unlabelled: Number = None
    tasks: Number = None
    languages: dict[str, Numbers] = {}
    sources: dict[str, Numbers] = {}
    generators: dict[str, Numbers] = {}


class Duplicates(Part):
    """Rows that repeat others: counts by kind, and of a fine-tuning by split and kind."""

    train_rows_like: dict[str, Numbers] = {}
    train_rows_like_any: Number = None
    within_train: Numbers = {}
    removed: Number = None
    threshold: Number = None
    same_code: Number = None
    near_code: Number = None
    both_classes: Number = None


class Problems(Part):
    """What the checks of the data found; older runs have it as one text."""

    text: Text = None
    left_out: Text = None
    counts: Numbers = {}
    rows_read: Count = None
    rows_dropped: Count = None
    rows_without: Numbers = {}
    duplicates: Duplicates = Duplicates()
    facts: dict[str, Any] = {}
    examples: list[Plain] = []
    notes: list[Plain] = []


class Data(Part):
    """The data of a run."""

    source: Plain = None
    revision: Plain = None
    licence: Plain = None
    fingerprint: Plain = None
    template: Plain = None
    note: Plain = None
    canonical: Plain = None
    splits: dict[str, SplitData] = {}
    problems: Annotated[Problems, BeforeValidator(_as_problems)] = Problems()
    overlap: dict[str, Numbers] = {}
    lengths: Lengths = Lengths()
    n_functions: Number = None
    truncated: Number = None
    example: list[Annotated[tuple[str, bool], Field(strict=False)]] = []


class Adapter(Part):
    """What a fine-tuning trained of how much."""

    name: Text = None
    method: Text = None
    r: Number = None
    alpha: Number = None
    trainable_parameters: Number = None
    total_parameters: Number = None
    target_modules: Names = []


class Threshold(Part):
    """The threshold of a clone detection, and what it was chosen on."""

    value: Number = None
    chosen_on: Text = None


class OperatingPoint(Part):
    """The threshold of a detector and its promise; `abstain` holds the edges of the band."""

    threshold: Number = None
    threshold_logit: Number = None
    temperature: Number = None
    target_fpr: Number = None
    n_humans: Number = None
    promised_fpr: Number = None
    valid_fpr: Number = None
    target_miss_rate: Number = None
    valid_fpr_interval: Interval | None = None
    abstain: Interval | None = None
    chosen_on: Text = None
    warnings: list[str] = []


class UsedScore(Part):
    """The score that a detector is used by: its name, why that one, and the members' weights."""

    uses: Text = None
    reason: Text = None
    weights: Numbers = {}


class Sources(Part):
    """Scores of each source with the members fitted without it, and each one's mean ROC-AUC."""

    retrained: Plain = None
    mean: Numbers = {}
    left_out: dict[str, Split] = {}


class RetrievalFloor(Part):
    """A baseline of retrieval."""

    mrr: Number = None
    map_at_r: Number = None
    mrr_interval: Interval | None = None
    map_at_r_interval: Interval | None = None
    lead: Lead | None = None
    skipped: Text = None


class Retrieval(Part):
    """How well programs of the same task are found."""

    split: Plain = None
    query: Plain = None
    pool: Plain = None
    n_queries: Number = None
    pool_size: Number = None
    mrr: Number = None
    map_at_r: Number = None
    mrr_interval: Interval | None = None
    map_at_r_interval: Interval | None = None
    floors: dict[str, RetrievalFloor] = {}


class PairFloor(Part):
    """A baseline of telling pairs of the same task from others."""

    roc_auc: Number = None
    average_precision: Number = None
    threshold: Number = None
    accuracy: Number = None
    f1: Number = None
    roc_auc_interval: Interval | None = None
    lead: Lead | dict[str, Lead | None] | None = None
    skipped: Text = None


class PairScores(Part):
    """How well pairs of the same task are told from others."""

    n_pairs: Number = None
    n_positive: Number = None
    roc_auc: Number = None
    average_precision: Number = None
    threshold: Number = None
    accuracy: Number = None
    f1: Number = None
    roc_auc_interval: Interval | None = None
    floors: dict[str, PairFloor] = {}


class Similarity(Part):
    """The similarity space of a detector."""

    dimensions: Number = None
    retrieval: list[Retrieval] = []
    pairs: PairScores = PairScores()
    headline: Numbers = {}


class Feature(Part):
    """How well one feature alone tells the classes apart."""

    feature: Plain = None
    raw: Number = None
    canonical: Number = None
    higher_in: Plain = None


class AuditFacts(Part):
    """Figures of the audit."""

    features: list[Feature] = []


class Audit(Part):
    """What the audit of a detector's data found."""

    facts: AuditFacts = AuditFacts()
    verdict: Text = None
    reasons: list[str] = []
    warnings: list[str] = []


class Compile(Part):
    """Whether the model was compiled, and what came of it."""

    is_on: Plain = None
    recompiles: Number = None
    self_test: Plains = {}


class Sandbox(Part):
    """How generated programs were kept apart from the machine."""

    held: list[str] = []
    passed: list[str] = []
    warning: Text = None
    refusal: Text = None  # why no program was run


class Result(JsonFile):
    """`result.json`: what a finished run measured. `floors` are the baselines of a split."""

    FIX: ClassVar[str] = (
        "delete this file and launch the same configuration again (the run continues from its "
        "last checkpoint), or copy the folder again"
    )

    run_id: Text = None
    job: Text = None
    mode: Text = None
    preset: Plain = None
    settings: Settings = Settings()
    seed: Plain = None
    precision: Plain = None
    checkpoint: Plain = None
    command: Text = None
    git_commit: Text = None
    finished_at: Number = None
    versions: Plains = {}
    plan: Plan = Plan()
    budget: Budget = Budget()
    memory: Memory = Memory()
    timing: Numbers = {}
    throughput: Numbers = {}
    training: Training = Training()
    gpu: list[Gpu] = []
    energy: Numbers = {}
    warnings: list[str] = []
    data: Data = Data()
    model: ModelFacts = ModelFacts()
    adapter: Adapter = Adapter()
    threshold: Threshold = Threshold()
    sandbox: Sandbox = Sandbox()
    score: UsedScore = UsedScore()
    sources: Sources = Sources()
    scores: dict[str, Split] = {}
    operating_point: OperatingPoint = OperatingPoint()
    audit: Audit = Audit()
    similarity: Similarity = Similarity()
    phases: Numbers = {}
    inference: Numbers = {}
    compile: Compile = Compile()


class SavedPreset(Part):
    """The preset of a run as `Preset.to_dict` wrote it."""

    job: Text = None
    name: Text = None
    about: Text = None
    settings: dict[str, Any] = {}
    base: dict[str, Any] = {}
    provenance: dict[str, str] = {}
    why: dict[str, str] = {}
    notes: list[str] = []
    gpu: Text = None
    num_target_gpus: Whole = None
    per_device_limit: Whole = None


class Machine(Part):
    """The machine of a run as `Hardware.to_dict` wrote it."""

    gpus: list[Part] = []
    driver_version: Text = None
    cpu_count: Number = None


class Record(JsonFile):
    """`run.json`: what was asked, resolved, before the run."""

    FIX: ClassVar[str] = (
        "nb.launch(..., fresh=True), in a shell train --fresh: the folder is set aside and the run "
        "starts anew"
    )

    run_id: Text = None
    job: Text = None
    mode: Text = None
    command: Text = None
    created_at: Text = None
    git_commit: Text = None
    checkpoint: Text = None
    preset: SavedPreset = SavedPreset()
    plan: Plan = Plan()
    budget: Budget = Budget()
    hardware: Machine = Machine()
    time: PredictedTime = PredictedTime()
    versions: Plains = {}


class Process(JsonFile):
    """`process.json`: who supervises the latest launch, and where its files begin, in bytes."""

    FIX: ClassVar[str] = "delete this file, unless the run works just now"

    launch_id: Text = None
    pid: Whole = None
    guard_pid: Whole = None
    offsets: dict[str, Whole] = {}


class CheckpointIndex(JsonFile):
    """`checkpoints/index.json`: the folders of the best and the last checkpoint."""

    best: Text = None
    last: Text = None


class StudyFile(JsonFile):
    """`study.json`: the plan of a study, and how each of its runs stands."""

    FIX: ClassVar[str] = "plan the study again: finished runs are used as they are"

    study: dict[str, Any]  # as `Study.to_dict` wrote it, which reads it too
    created_at: Number = None
    updated_at: Number = None
    runs: dict[str, dict[str, Any]] = {}


class ExportFile(JsonFile):
    """`nbhelpers.json`: what an exported or merged folder tells about itself."""

    kind: Text = None
    name: Text = None
    run_id: Text = None
    template: Text = None
    settings: dict[str, Any] = {}
    asked: dict[str, str] = {}
    merge: dict[str, Any] = {}
    files: list[str] | Numbers = []
    card_sha256: Text = None


class DetectorFile(JsonFile):
    """`detector.json` beside the weights of a detector: what scoring needs to know."""

    FIX: ClassVar[str] = (
        "copy the whole folder again, name another checkpoint, or use the version of nbhelpers "
        "that wrote it"
    )

    format: Literal[1]
    objective: Literal["both", "detect", "similar"]
    canonical: str
    seq_len: Annotated[int, Field(gt=2)]
    pooling: Literal["mean", "first", "mean_max"]
    projection_size: Annotated[int, Field(gt=0)]
    similarity_pooling: str = "same"
    run_id: Text = None
    operating_point: OperatingPoint = OperatingPoint()
    calibration: dict[str, Any] = {}


class ClonesFile(JsonFile):
    """`clones.json` beside the weights of an exported clone model: what asking it needs to know."""

    FIX: ClassVar[str] = DetectorFile.FIX

    format: Literal[1]
    seq_len: Annotated[int, Field(gt=2)]
    data_flow_length: Whole = None
    grammar_compat: str = "maintained"
    run_id: Text = None


class AdapterConfig(JsonFile):
    """`adapter_config.json` of PEFT, as far as loading reads it."""

    peft_type: Text = None
    base_model_name_or_path: Text = None
    revision: Text = None
    r: Whole = None
    lora_alpha: Number = None
    lora_dropout: Number = None
    target_modules: Names = []
