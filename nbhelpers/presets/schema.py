"""What a preset may say: one frozen pydantic model per job, read by `loading` from YAML.

Every field is a decision. What follows from decisions (accumulation, warm-up steps, paths) is
computed elsewhere and never typed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**31 - 1  # what counters of other libraries hold
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Fraction = Annotated[float, Field(gt=0, le=1)]
OWN_ENGINE = "nbhelpers"  # what trains adapters where nothing else is asked for
# Of a field that came after runs were made: at its default it is what those runs did.
CAME_LATER: dict[str, Any] = {"came_later": True}


class Settings(BaseModel):
    """Fields that every job shares."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    model: str = Field(
        min_length=1,
        description="a short name (`presets/jobs.py` lists each job's), a hub id or a local folder",
    )
    model_revision: str | None = Field(None, description="commit or tag of the weights on the hub")
    random_weights: bool = Field(False, description="take the architecture, not the weights")
    data: str = Field(
        min_length=1,
        description="`smoke`, a hub id (owner/name:configuration:split), a folder, file or archive",
    )
    data_revision: str | None = Field(None, description="commit or tag of the data on the hub")
    on_bad_rows: Literal["stop", "drop"] = Field(
        description="bad rows: stop with a report, or drop them and say so"
    )
    train_fraction: Fraction = Field(
        description="share of the training rows to use, drawn with `seed`"
    )
    max_train_samples: Positive | None = Field(None, description="upper limit on the training rows")

    seq_len: Annotated[int, Field(ge=8, le=131072)] = Field(
        description="tokens per example (a function, or prompt with answer), special tokens "
        "included (also: code_length)"
    )
    padding: Literal["dynamic", "fixed"] = Field(
        description="pad to the longest of a bucket, or always to seq_len"
    )
    epochs: Annotated[int, Field(ge=1, le=1000)]
    global_batch_size: Positive = Field(
        description="examples per optimizer step, over all GPUs and accumulation"
    )
    per_device_train_batch_size: Positive = Field(
        description="examples of one micro-step on one GPU"
    )
    allow_uneven_split: bool = Field(
        description="split a global batch unevenly over GPUs (the mean stays exact)"
    )
    num_gpus: Positive | Literal["auto"] = Field(
        description="training processes; auto: every visible GPU"
    )
    per_device_eval_batch_size: Positive

    learning_rate: Annotated[float, Field(gt=0, le=1)]
    lr_schedule: Literal["linear", "cosine", "constant"]
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="share of the optimizer steps"
    )
    weight_decay: Annotated[float, Field(ge=0)]
    adam_epsilon: Annotated[float, Field(gt=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="None: what the model's own configuration says"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)]
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        description="auto: bf16 from capability 8.0, fp16 from 7.0, else fp32"
    )
    attention: Literal["auto", "sdpa", "eager", "flex"] = Field(
        description="eager: the published modules as they are; sdpa: fused kernels; flex: a "
        "compiled kernel that keeps Gemma-2's soft-cap; auto: by model and GPU"
    )
    gradient_checkpointing: bool

    logging_steps: Positive
    eval_steps: Positive | None = Field(
        None, description="optimizer steps between evaluations; None: once per epoch"
    )
    save_steps: Positive | None = Field(
        None, description="optimizer steps between checkpoints; None: by minutes only"
    )
    save_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="minutes between checkpoints"
    )
    save_total_limit: Positive = Field(description="checkpoints kept; the best is kept too")
    max_skipped_steps: Positive = Field(
        description="fp16: steps skipped in a row before the run stops"
    )
    track: Literal["none", "tensorboard", "wandb", "trackio"]
    bootstrap_samples: Annotated[int, Field(ge=100, le=100000)]
    targets: dict[str, float] = Field(
        default_factory=dict,
        description="success criteria on the test split: metric name to lowest passing value (of "
        "an error rate, a time or memory: the highest)",
    )

    @property
    def has_own_loop(self) -> bool:
        """Whether the loop of this package trains, and not TRL's trainer."""
        return getattr(self, "engine", OWN_ENGINE) == OWN_ENGINE


def telling(kind: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that tell one run from another: run ids and kept budgets go by them.

    A field that came later counts only where it is not at its default, so earlier runs keep theirs.

    Args:
        kind: The job's class of settings.
        values: Settings by name.
    """
    fields = kind.model_fields
    later = {n: f.default for n, f in fields.items() if f.json_schema_extra == CAME_LATER}
    return {n: v for n, v in values.items() if n not in later or v != later[n]}


class ClonesSettings(Settings):
    """Clone detection on function pairs (BigCloneBench)."""

    priors: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        description="named shares of clones at which precision and F1 are reported too"
    )
    max_eval_pairs: Positive | None = Field(
        None,
        description="validation pairs used during training, one fixed draw; None: all",
    )
    pretrain_steps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="smoke models only: language-model steps on the sample, cached"
    )
    floors: bool = Field(description="also score always-yes, identifier overlap and TF-IDF")
    data_flow_length: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None,
        description="data-flow nodes per function, beside seq_len; 0: code split at syntax leaves, "
        "no nodes; None: plain text, not parsed",
    )
    grammar_compat: Literal["maintained", "checkpoint"] = Field(
        "maintained",
        description="data flow: the grammar's leaves as they are, or string literals as one token",
    )
    compile_layers: Literal["auto", "on", "off"] = Field(
        "auto",
        json_schema_extra=CAME_LATER,
        description="torch.compile the encoder's blocks, and attention with data flow in one "
        "kernel; auto: on a GPU when the run is long enough",
    )
    pair_order: Literal["random", "shared"] = Field(
        "random",
        json_schema_extra=CAME_LATER,
        description="of the training pairs; shared: those of an update have functions in common, "
        "each of which is encoded once, and each epoch has every pair once",
    )

    rows_per_example: ClassVar[int] = 2  # a pair's functions

    @property
    def function_length(self) -> int:
        """Tokens of one function at most: code and data-flow nodes."""
        return self.seq_len + (self.data_flow_length or 0)


class FinetuneSettings(Settings):
    """Adapters (LoRA, QLoRA) on a causal language model, for Python code instructions."""

    engine: Literal["nbhelpers", "trl"] = Field(
        OWN_ENGINE,
        json_schema_extra=CAME_LATER,
        description="what trains: the loop of this package (Gemma 2, Llama), or TRL's SFTTrainer "
        "(every causal family of transformers)",
    )
    supervise: Literal["last", "all"] = Field(
        "last",
        json_schema_extra=CAME_LATER,
        description="which answers of a conversation are learned; all: each is an example of its "
        "own, under the turns before it",
    )
    method: Literal["base", "lora", "qlora"] = Field(
        description="base: no training, the model is evaluated as it is; qlora: LoRA on a base in "
        "4 bits (NF4, double quantisation)"
    )
    lora_r: Annotated[int, Field(ge=1, le=1024)] = Field(description="rank of the adapters")
    lora_alpha: Annotated[float, Field(gt=0)] | None = Field(
        None, description="scale of the adapters, alpha / r; None: 2 r"
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="share of an adapter's inputs that are dropped in training"
    )
    lora_target_modules: Annotated[list[str], Field(min_length=1)] = Field(
        description="names of the linear layers that get an adapter; [all-linear]: all but the head"
    )
    packing: bool = Field(
        description="lay the samples of a micro-step end to end without padding; the attention "
        "keeps them apart, and the samples per update stay the same"
    )
    loss: Literal["auto", "chunked", "plain"] = Field(
        description="chunked: supervised tokens only, some at a time, so that the logits over the "
        "whole vocabulary never exist at once; plain: the library's own; auto: chunked"
    )
    compile_layers: Literal["auto", "on", "off"] = Field(
        description="torch.compile each block once; auto: where the GPU and the attention gain"
    )
    cuda_graphs: bool = Field(
        True,
        json_schema_extra=CAME_LATER,
        description="replay micro-steps with compiled blocks as CUDA graphs: short samples do not "
        "wait for the CPU's launches (on GPUs, bf16 or fp32, without checkpointing)",
    )
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        None, description="optimizer steps; None: by warmup_ratio"
    )
    template: str = Field(
        min_length=1, description="how a row becomes a prompt: alpaca, plain, chat, or auto"
    )
    remove_duplicates: bool = Field(
        description="drop train rows that equal or nearly equal an evaluation row"
    )
    split_seed: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="of the rows held out where the data has one split; `seed` leaves them alone"
    )
    valid_samples: Positive = Field(description="rows held out for the loss during training")
    eval_samples: Positive = Field(description="held-out rows whose answers are generated")
    evaluate: Literal["none", "text", "all"] = Field(
        description="text: generate and compare with the references; all: also run generated "
        "programs on test problems (pass@1)"
    )
    tasks: list[Literal["humaneval", "mbpp", "sample"]] = Field(
        description="test problems whose solutions are generated and run; sample: the bundled ones"
    )
    mbpp_data: str = Field(min_length=1, description="MBPP: a hub id or a local file")
    max_task_problems: Positive | None = Field(
        None, description="upper limit on the problems of each task; None: all"
    )
    run_generated_code: Literal["in_container", "anywhere", "never"] = Field(
        description="where generated programs may be run, always in a sandbox of their own"
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=32768)] = Field(
        description="tokens of an answer at most"
    )
    generation_batch_size: Positive = Field(description="answers generated at once")
    pretrain_steps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="smoke model only: language-model steps on plain code of the sample, cached"
    )

    @property
    def alpha(self) -> float:
        """The scale of the adapters: `lora_alpha`, or twice the rank."""
        return self.lora_alpha if self.lora_alpha is not None else 2.0 * self.lora_r

    @property
    def adapter(self) -> str:
        """The short name of what is trained: `base`, `r16` or `qlora-r16`."""
        names = {"base": "base", "lora": f"r{self.lora_r}", "qlora": f"qlora-r{self.lora_r}"}
        return names[self.method]


class DetectorSettings(Settings):
    """Detection of AI-written code, and similarity of programs, with one encoder and two heads."""

    objective: Literal["both", "detect", "similar"] = Field(
        description="what is learnt: who wrote the code, which programs solve the same task, or "
        "both; `similar` needs no labels"
    )
    canonical: Literal["raw", "text", "flat"] = Field(
        description="form that both classes are brought to: raw, as it is; text: line ends, tabs, "
        "blanks at ends and blank lines alike everywhere; flat: any white space is one blank"
    )
    languages: list[str] = Field(description="keep the rows in these languages; []: all")
    split: Literal["auto", "given", "task"] = Field(
        description="given: the splits of the data; task: drawn by task and author; auto: given "
        "where the data has them"
    )
    split_seed: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="of the splits drawn by task; `seed` leaves them alone"
    )
    valid_share: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="share of the rows for validation, where the splits are drawn"
    )
    test_share: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="share of the rows for test, where the splits are drawn"
    )
    hold_out: str | None = Field(
        None,
        description="kept out of training and tested apart: source=NAME, generator=NAME or "
        "language=NAME",
    )
    unseen_humans: str | None = Field(
        None,
        description="human code of other people (file, folder or hub id): the false-positive rate "
        "of the frozen threshold on it",
    )
    on_failed_audit: Literal["stop", "go_on"] = Field(
        description="what to do when the audit says that the data cannot train a detector"
    )

    pooling: Literal["mean", "first", "mean_max"] = Field(
        description="what stands for a program: the mean of its token states, the first, or mean "
        "and maximum side by side"
    )
    similarity_pooling: Literal["rarity", "same"] = Field(
        description="what stands for it in the similarity space: a mean in which a token weighs by "
        "its rarity in the train programs, or the same as above"
    )
    contrastive_weight: Annotated[float, Field(ge=0, le=100)] = Field(
        description="weight of the contrastive loss beside the cross-entropy"
    )
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(
        description="of the contrastive loss: cosines are divided by it"
    )
    members_per_task: Annotated[int, Field(ge=2, le=64)] = Field(
        description="programs of one task that are drawn together, so that each has a positive"
    )
    projection_size: Annotated[int, Field(ge=8, le=4096)] = Field(
        description="dimensions of the similarity space"
    )
    class_weights: Literal["none", "balanced"] = Field(
        description="balanced: both classes weigh alike in the cross-entropy"
    )
    freeze_epochs: Annotated[int, Field(ge=0, le=1000)] = Field(
        description="first epochs in which the encoder stays as it is and the heads alone learn"
    )
    encoder_learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        description="peak rate of the encoder; `learning_rate` is that of the heads"
    )
    augment: list[Literal["rename", "reformat", "strip_comments"]] = Field(
        description="edits that are applied to train rows of both classes, drawn anew each epoch"
    )
    augment_share: Annotated[float, Field(ge=0, le=1)] = Field(
        description="share of the train rows that are read in an edited form in each epoch"
    )
    compile_layers: Literal["auto", "on", "off"] = Field(
        description="compile the encoder's blocks after the unfreeze: RoBERTa's as Triton kernels "
        "where the GPU has bf16, else by torch; auto: on a GPU when the run is long enough"
    )
    pretrain_steps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0,
        description="random weights only: masked-language-model steps on the train code first, "
        "cached",
    )

    target_fpr: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="false-positive rate that the threshold promises on validation humans"
    )
    target_miss_rate: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="share of the AI rows that may score below the band of abstention"
    )
    prevalences: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        description="shares of AI code at which precision is reported"
    )
    score: Literal["auto", "stack", "encoder", "tfidf", "masked_tfidf"] = Field(
        "auto",
        description="what is used to detect: the encoder, character n-grams (tfidf), those of "
        "masked letters, or a fixed sum of the three (stack); auto: the stack, unless "
        "evaluate_sources=full measured that one alone does better on sources left out",
        json_schema_extra=CAME_LATER,
    )
    evaluate_sources: Literal["auto", "off", "full"] = Field(
        "auto",
        description="score each source of the data as one that training has not seen: auto fits "
        "the n-grams without it, full also trains an encoder without it, off leaves it out",
        json_schema_extra=CAME_LATER,
    )
    floors: bool = Field(description="also score length, layout features and character n-grams")
    edit_suite: bool = Field(
        description="also score the test rows reformatted, without comments and renamed"
    )
    retrieval_data: str | None = Field(
        None,
        description="further programs with tasks for the test of similarity (file, folder, hub id)",
    )
    max_retrieval_pool: Positive | None = Field(
        None, description="upper limit on the programs of a retrieval pool, one fixed draw"
    )

    rows_per_example: ClassVar[int] = 1
    data_flow_length: ClassVar[None] = None  # programs are read as plain text

    @property
    def function_length(self) -> int:
        """Tokens of one program at most."""
        return self.seq_len
