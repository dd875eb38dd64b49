"""What a preset may say: one frozen pydantic model per job, read by `config` from YAML.

Every field is a decision. What follows from decisions (accumulation, warm-up steps, paths) is
computed elsewhere and never typed here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**31 - 1  # what counters of other libraries hold
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Settings(BaseModel):
    """Fields that every job shares."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    model: str = Field(
        min_length=1,
        description="codegpt, graphcodebert, codebert, a hub id, a local folder, `smoke` or "
        "`smoke-graphcodebert`",
    )
    model_revision: str | None = Field(None, description="commit or tag of the weights on the hub")
    random_weights: bool = Field(False, description="take the architecture, not the weights")
    data: str = Field(min_length=1, description="`smoke`, a hub id or a local folder")
    data_revision: str | None = Field(None, description="commit or tag of the data on the hub")
    on_bad_rows: Literal["stop", "drop"] = Field(
        description="bad rows: stop with a report, or drop them and say so"
    )
    train_fraction: Fraction = Field(
        description="share of the training rows to use, drawn with `seed`"
    )
    max_train_samples: Positive | None = Field(None, description="upper limit on the training rows")

    seq_len: Annotated[int, Field(ge=8, le=131072)] = Field(
        description="tokens of code per function, special tokens included (also: code_length)"
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
    attention: Literal["auto", "sdpa", "eager"] = Field(
        description="eager: the published modules as they are; auto, sdpa: fused kernels"
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
        description="success criteria on the test split: metric name to lowest passing value",
    )


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

    @property
    def function_length(self) -> int:
        """Tokens of one function at most: code and data-flow nodes."""
        return self.seq_len + (self.data_flow_length or 0)


SETTINGS: dict[str, type[Settings]] = {"clones": ClonesSettings}
