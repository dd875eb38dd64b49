"""The models that each job knows by a short name; others are a hub id or a local folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModels:
    """Models of one job.

    `aliases`: short name to hub id; `embedded`: built and pre-trained here, on the bundled sample;
    `packaged`: the weights come from a Python package; `families`: `model_type` in config.json that
    the job can train.
    """

    aliases: dict[str, str]
    embedded: tuple[str, ...]
    packaged: tuple[str, ...] = ()
    families: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All short names."""
        return (*self.aliases, *self.embedded, *self.packaged)


MODELS = {
    "clones": JobModels(
        aliases={
            "codegpt": "microsoft/CodeGPT-small-java-adaptedGPT2",
            "graphcodebert": "microsoft/graphcodebert-base",
            "codebert": "microsoft/codebert-base",
        },
        embedded=("smoke", "smoke-graphcodebert"),
        families=("gpt2", "roberta"),
    ),
    "finetune": JobModels(
        aliases={"gemma-2-2b": "google/gemma-2-2b", "gemma-2-2b-it": "google/gemma-2-2b-it"},
        embedded=("smoke",),
        packaged=("smollm2",),
        families=("gemma2", "llama"),
    ),
    "detector": JobModels(
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
}
# Bundled samples that `data` may name.
SAMPLES = ("smoke",)


def short_name(model: object, job: str = "clones") -> str | None:
    """Return the short name of a model: an alias, also for its hub id, or a model of `smoke`.

    A local folder and a foreign id have none.

    >>> short_name("microsoft/graphcodebert-base"), short_name("smoke"), short_name("./mine")
    ('graphcodebert', 'smoke', None)
    >>> short_name("google/gemma-2-2b", "finetune")
    'gemma-2-2b'
    """
    known = MODELS[job]
    if model in known.names:
        return str(model)
    by_id = {hub_id.lower(): alias for alias, hub_id in known.aliases.items()}
    return by_id.get(model.lower()) if isinstance(model, str) else None
