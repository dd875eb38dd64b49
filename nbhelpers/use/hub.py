"""The hub: the user's token, and whether this machine may read a preset's model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.hub_errors import Asked, explain_refusal, is_unreachable, network_errors
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import detect_platform
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


# ------------------------------------------------------------------------------------------------
# The hub's token: from Colab's secrets, Kaggle's secrets or the environment, in this order.
#
# It is handed to whoever asks the hub, and never printed, logged or stored.


NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def find_token(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the token, or None where there is none.

    Raises:
        ConfigError: It holds characters that no token has.
    """
    environment = os.environ if environment is None else environment
    token = _platform_secret(detect_platform(environment))
    token = token or next((environment[name] for name in NAMES if environment.get(name)), "")
    token = token.strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            "The hub's token holds characters that no token has.", fix="paste it again as HF_TOKEN"
        )
    return token or None


def _platform_secret(platform: str) -> str | None:
    """Ask a platform's secrets; they fail in many ways (no access, no such name, no answer)."""
    try:
        if platform == "colab":
            from google.colab import userdata

            return userdata.get("HF_TOKEN")
        if platform == "kaggle":
            from kaggle_secrets import UserSecretsClient

            return UserSecretsClient().get_secret("HF_TOKEN")
    except Exception:  # the environment is asked next; without a token the hub's answer tells
        return None
    return None


# ------------------------------------------------------------------------------------------------
# Whether this machine may read a preset's model, asked before anything is downloaded.
#
# Gemma is gated: its weights are for accounts that accepted its terms. One request of a few bytes
# tells a missing token, a bad one, terms that were not accepted and a missing network apart.


REQUEST_TIMEOUT_S = 10.0
ASKED_FOR = "config.json"  # gated like the weights, and small


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Access:
    """That a model can be read, and why."""

    model: str
    why: str

    def __repr__(self) -> str:
        return f"{self.model}: {self.why}"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.model)}</b>: {escape(self.why)}</p>"


def check_access(preset: Preset) -> Access:
    """Return why the preset's model can be read, or stop with what is to be done.

    A token from Colab's or Kaggle's secrets is put into this process's environment, where the
    processes of a run find it; it is not shown and not stored.

    Args:
        preset: Of any job.

    Raises:
        ConfigError: A gated model without a token, with a bad one, or with terms that were not
            accepted; no such model; the hub cannot be reached and nothing is cached.
    """
    s = preset.settings
    if why := _needs_no_hub(preset.job, s):
        return Access(model=s.model, why=why)
    token = _token()
    try:
        _ask(s.model, s.model_revision, token)
    except network_errors() as error:
        if is_unreachable(error) and _is_cached(s.model, s.model_revision):
            return Access(model=s.model, why="the hub is out of reach; the local cache has it")
        asked = Asked("model", s.model, s.model_revision, bool(token))
        message, fix = explain_refusal(asked, error)
        raise ConfigError(message, fix=fix) from None  # its chain may quote request headers
    how = "with your token" if token else "without a token"
    return Access(model=s.model, why=f"the hub lets it be read {how}")


def _needs_no_hub(job: str, s: Settings) -> str:
    """Say why the hub is not asked; empty where it is."""
    known = JOBS[job].models
    if s.model in known.embedded:
        return "made on this machine, so it needs no token"
    if s.model in known.packaged:
        return "comes with a Python package, so it needs no token"
    if Path(s.model).expanduser().is_dir():
        return "a local folder, so it needs no token"
    if s.random_weights and s.model in known.aliases.values():
        return "random weights, so it needs no token"
    return ""


def _token() -> str | None:
    """The token, put where the processes of a run look for it; else that of a stored login."""
    from huggingface_hub import get_token

    if token := find_token():
        os.environ["HF_TOKEN"] = token
        return token
    return get_token()


def _ask(model: str, revision: str | None, token: str | None) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(model, ASKED_FOR, revision=revision)
    get_hf_file_metadata(url, token=token or False, timeout=REQUEST_TIMEOUT_S)


def _is_cached(model: str, revision: str | None) -> bool:
    """Whether weights lie in the hub's cache, not only what an earlier look left there."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, ASKED_FOR, revision=revision)
    if not isinstance(config, str):
        return False
    folder = Path(config).parent
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
