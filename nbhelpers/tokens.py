"""The hub's token: from Colab's secrets, Kaggle's secrets or the environment, in this order.

It is handed to whoever asks the hub, and never printed, logged or stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from nbhelpers.errors import ConfigError
from nbhelpers.machine import detect_platform

NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def find_token(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the token, or None where there is none.

    Raises:
        ConfigError: It holds characters that no token has.
    """
    environment = os.environ if environment is None else environment
    secrets = {"colab": _colab, "kaggle": _kaggle}.get(detect_platform(environment), _nothing)
    found = _asked(secrets) or next((environment[n] for n in NAMES if environment.get(n)), None)
    token = (found or "").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            "The hub's token holds characters that no token has.", fix="paste it again as HF_TOKEN"
        )
    return token or None


def _asked(source: Callable[[], str | None]) -> str | None:
    """Ask a platform's secrets; they fail in many ways (no access, no such name, no answer)."""
    try:
        return source()
    except Exception:  # the environment is asked next; without a token the hub's answer tells
        return None


def _colab() -> str | None:
    from google.colab import userdata

    return userdata.get("HF_TOKEN")


def _kaggle() -> str | None:
    from kaggle_secrets import UserSecretsClient

    return UserSecretsClient().get_secret("HF_TOKEN")


def _nothing() -> str | None:
    return None
