"""Secrets: the hub's token and the keys of trackers, from Colab, Kaggle or the environment.

They are handed to whoever asks a service, and never printed, logged or stored.
"""

from __future__ import annotations

import netrc
import os
import threading
from urllib.parse import urlsplit

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import detect_platform, is_notebook

HF_TOKEN = "HF_TOKEN"
TRACKER_KEYS = {"wandb": "WANDB_API_KEY", "trackio": HF_TOKEN}  # by the setting `track`


def find_secret(name: str) -> str | None:
    """Return a secret by its name, or None where there is none.

    Asked in this order: Colab's secrets (in a notebook's main thread only: others get no answer),
    Kaggle's, the environment, and for `HF_TOKEN` the login that huggingface_hub stored, for
    `WANDB_API_KEY` that of `wandb login`.

    Raises:
        ConfigError: It holds characters that no key has.
    """
    secret = (_platform_secret(name) or os.environ.get(name) or "").strip()
    if not secret and name == HF_TOKEN:
        from huggingface_hub import get_token

        secret = get_token() or ""
    if not secret and name == TRACKER_KEYS["wandb"]:
        secret = _wandb_login()
    if not (secret.isascii() and secret.isprintable() and " " not in secret):
        text = f"The secret {name} holds characters that no token has."
        raise ConfigError(text, fix=f"paste it again as {name}")
    return secret or None


def share_secret(name: str) -> str | None:
    """Find a secret and put a platform's into the environment, where a run's processes look."""
    secret = find_secret(name)
    if secret and detect_platform() in ("colab", "kaggle"):
        os.environ[name] = secret
    return secret


def _wandb_login() -> str:
    """Return the key that `wandb login` left in the netrc file; empty where there is none."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        login = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return ""
    return (login[2] or "") if login else ""


def _platform_secret(name: str) -> str | None:
    """Ask a platform's secrets; they fail in many ways (no access, no such name, no answer)."""
    platform = detect_platform()
    try:
        is_main = threading.current_thread() is threading.main_thread()
        if platform == "colab" and is_main and is_notebook():
            from google.colab import userdata

            return userdata.get(name)
        if platform == "kaggle":
            from kaggle_secrets import UserSecretsClient

            return UserSecretsClient().get_secret(name)
    except Exception:  # the environment is asked next; without a token the hub's answer tells
        return None
    return None
