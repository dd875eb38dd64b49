"""The models that a job knows by a short name; others are a hub id or a local folder."""

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

    def short_name(self, model: object) -> str | None:
        """Return the short name of a model: an alias, also for its hub id, or a model of ours.

        A local folder and a foreign id have none.

        >>> models = JobModels(aliases={"tiny": "a/b"}, embedded=("smoke",), families=("gpt2",))
        >>> models.short_name("A/B"), models.short_name("smoke"), models.short_name("./mine")
        ('tiny', 'smoke', None)
        """
        if model in self.names:
            return str(model)
        by_id = {hub_id.lower(): alias for alias, hub_id in self.aliases.items()}
        return by_id.get(model.lower()) if isinstance(model, str) else None


# Bundled samples that `data` may name.
SAMPLES = ("smoke",)
# Tokens that a model's positions can number. Source: n_positions of CodeGPT's config.json;
# max_position_embeddings of RoBERTa's, less the two that it never uses. Data-flow nodes all stand
# at position 0.
POSITIONS = {"codegpt": 1024, "graphcodebert": 512, "codebert": 512}
POSITIONS |= {"minilm": 512, "unixcoder": 1024, "modernbert": 8192}
# Models of `clones` that read plain text only: the mask of a GPT-2 has no room for a graph.
GPT2_MODELS = ("codegpt", "smoke")
# Models whose attention has a soft-cap, which sdpa would drop.
SOFT_CAPPED = ("gemma-2-2b", "gemma-2-2b-it", "smoke")
# How a fine-tuning makes a prompt of a row.
TEMPLATES = ("auto", "alpaca", "plain", "chat")
