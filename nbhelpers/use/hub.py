"""Whether this machine may read a preset's model, asked before anything is downloaded.

Gemma is gated: its weights are for accounts that accepted its terms. One request of a few bytes
tells a missing token, a bad one, terms that were not accepted and a missing network apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.hub_errors import (
    Asked,
    explain_refusal,
    is_unreachable,
    network_errors,
    status_of,
)
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.secrets import HF_TOKEN, share_secret
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.packages import packaged_folder
from nbhelpers.use.weight_files import require_model

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


REQUEST_TIMEOUT_S = 10.0
BUSY, LONGEST_WAIT_S = (429, 503), 3.0
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
            accepted; no such model; the hub cannot be reached and nothing is cached; weights that
            are here already are damaged; the package that holds them is not installed.
    """
    s = preset.settings
    if why := _needs_no_hub(preset.job, s):
        return Access(model=s.model, why=why)
    token = share_secret(HF_TOKEN)
    why = f"the hub lets it be read {'with your' if token else 'without a'} token"
    folder = cached_model(s.model, s.model_revision)
    try:
        _ask(s.model, s.model_revision, token)
    except network_errors() as error:
        if folder is None or not is_unreachable(error):
            asked = Asked("model", s.model, s.model_revision, bool(token), ASKED_FOR)
            message, fix = explain_refusal(asked, error)
            raise ConfigError(message, fix=fix) from None  # its chain may quote request headers
        why = "the hub is out of reach; the local cache has it"
    if folder is not None:
        require_model(s.model, folder)
    return Access(model=s.model, why=why)


def _needs_no_hub(job: str, s: Settings) -> str:
    """Say why the hub is not asked; empty where it is."""
    known = JOBS[job].models
    if s.model in known.embedded:
        return "made on this machine, so it needs no token"
    if s.model in known.packaged:
        packaged_folder(s.model)
        return "comes with a Python package, so it needs no token"
    if (folder := Path(s.model).expanduser()).is_dir():
        if not s.random_weights:
            require_model(s.model, folder)
        return "a local folder, so it needs no token"
    if s.random_weights and s.model in known.aliases.values():
        return "random weights, so it needs no token"
    return ""


def _ask(model: str, revision: str | None, token: str | None) -> None:
    """Ask for a small file; a busy hub is asked once more, when it says or soon."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(model, ASKED_FOR, revision=revision)
    options = {"token": token or False, "timeout": REQUEST_TIMEOUT_S}
    try:
        get_hf_file_metadata(url, **options)
    except network_errors() as error:
        if status_of(error) not in BUSY:
            raise
        after = str(error.response.headers.get("Retry-After") or "")
        time.sleep(min(float(after) if after.isdigit() else LONGEST_WAIT_S, LONGEST_WAIT_S))
        get_hf_file_metadata(url, **options)


def cached_model(model: str, revision: str | None) -> Path | None:
    """The folder of the hub's cache with a model's weights; a look leaves only small files."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, ASKED_FOR, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    return folder if has_weights else None
