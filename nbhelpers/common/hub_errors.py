"""What a refusal of the hub means and what to do: no token, a bad one, terms, offline, no room.

One place for data sets and models, so that both sides tell the same cases apart. No message here
contains a token.
"""

from __future__ import annotations

from typing import NamedTuple

PAGE = "https://huggingface.co/"
SET_TOKEN = "set HF_TOKEN (on Colab: Secrets) to a token that may read it"


class Refusal(NamedTuple):
    """What is so, and what to do."""

    message: str
    fix: str


class Asked(NamedTuple):
    """What was asked of the hub; `kind` is "model" or "data set", `file` one that it must have."""

    kind: str
    repo_id: str
    revision: str | None
    has_token: bool
    file: str = ""

    @property
    def name(self) -> str:
        """The repository in words."""
        return f"The hub's {self.kind} {self.repo_id}"

    @property
    def page(self) -> str:
        """The address where its terms are accepted."""
        return f"{PAGE}{'datasets/' if self.kind == 'data set' else ''}{self.repo_id}"

    @property
    def local(self) -> str:
        """The advice to do without the hub."""
        return f"name a local {'file or folder' if self.kind == 'data set' else 'folder'} instead"


def explain_refusal(asked: Asked, error: Exception) -> Refusal:
    """Turn what the hub's client raised into one message that says what to do."""
    from huggingface_hub import constants, errors

    name = asked.name
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what a download met before it looked into the cache
    is_offline = isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    if is_offline or isinstance(error, errors.OfflineModeIsEnabled):
        return Refusal(
            f"{name} is not in the local cache, and offline mode is on (HF_HUB_OFFLINE).",
            f"unset HF_HUB_OFFLINE, or {asked.local}",
        )
    if isinstance(error, errors.GatedRepoError):
        return _gated(asked, status_of(error))
    if isinstance(error, errors.RevisionNotFoundError):
        return Refusal(
            f"{name} has no revision {asked.revision!r}.", "give a branch, tag or commit it has."
        )
    # A hub answers 401 to whoever has no token and asks for what is private or not there.
    is_hidden = status_of(error) == 401 and not asked.has_token
    if is_hidden or isinstance(error, errors.RepositoryNotFoundError):
        if asked.has_token:
            return Refusal(
                f"{name} does not exist, or your token may not see it.", "check owner/name."
            )
        return Refusal(
            f"{name} does not exist, or it is private and no token is set.",
            f"check owner/name (a local folder: ./folder); if it is private, {SET_TOKEN}.",
        )
    return _explain_answer(asked, error)


def _gated(asked: Asked, status: int | None) -> Refusal:
    """Tell a missing, an unknown and a refused token apart.

    A hub answers 401 to a token that it does not know, and 403 to an account without access.
    """
    terms = f"accept its terms at {asked.page}"
    if not asked.has_token:
        return Refusal(
            f"{asked.name} is gated, and no token is set.", f"{terms}, then {SET_TOKEN}."
        )
    if status == 401:
        return _bad_token(asked, status)
    return Refusal(
        f"{asked.name} is gated, and your token's account may not read it yet.",
        f"{terms}. A fine-grained token must also allow reading public gated repositories.",
    )


def _bad_token(asked: Asked, status: int) -> Refusal:
    return Refusal(
        f"{asked.name} cannot be read: the hub refuses your token (HTTP {status}).",
        f"renew HF_TOKEN, or unset it if the {asked.kind} is public.",
    )


def _explain_answer(asked: Asked, error: Exception) -> Refusal:
    from huggingface_hub import errors

    name, status = asked.name, status_of(error)
    if status == 403 and not asked.has_token:
        return Refusal(f"{name} cannot be read without a token (HTTP 403).", f"{SET_TOKEN}.")
    if status in (401, 403):
        return _bad_token(asked, status)
    if asked.file and isinstance(error, errors.EntryNotFoundError):
        return Refusal(f"{name} holds no {asked.file}.", "name one that transformers can load.")
    if status == 429:
        return Refusal(
            f"{name} cannot be read now: the hub answers HTTP 429, too many requests.",
            "wait some minutes and run again; with a token (HF_TOKEN) the limit is higher.",
        )
    if is_of_the_disk(error):
        return Refusal(
            f"{name} cannot be stored in the hub's cache: {getattr(error, 'strerror', error)}.",
            "free some space, or point HF_HOME to a folder that can be written.",
        )
    if isinstance(error, errors.HFValidationError):
        return Refusal(f"{name} has no valid name.", "write owner/name.")
    if status is not None:
        return Refusal(f"{name} cannot be read: the hub answers HTTP {status}.", "try again later.")
    return Refusal(
        f"{name} is not in the local cache, and the hub cannot be reached "
        f"({type(error).__name__}).",
        f"check the network, or {asked.local}",
    )


def is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer: no network, offline mode, or trouble of its own."""
    status = status_of(error)
    if isinstance(error, ValueError) or is_of_the_disk(error):
        return False
    return status is None or status == 429 or status >= 500


def is_of_the_disk(error: Exception) -> bool:
    """Whether the system refused to store a file: no space, no permission."""
    is_system = isinstance(error, OSError) and not isinstance(error, ConnectionError)
    return is_system and status_of(error) is None and bool(error.errno)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the answer that an error came from, or None."""
    return getattr(getattr(error, "response", None), "status_code", None)


def network_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's client raises where it got no file.

    The base of its HTTP errors belongs to the HTTP client in use (httpx or a successor).
    """
    from huggingface_hub import errors

    return (OSError, ValueError, errors.HfHubHTTPError.__mro__[1])


def explain_push(error: Exception) -> Refusal:
    """Say why a folder could not be uploaded, and what to do."""
    from huggingface_hub import errors

    status = status_of(error)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Refusal("offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE")
    if isinstance(error, errors.HFValidationError):
        return Refusal("the hub takes no such name", "write OWNER/NAME")
    if status in (401, 403):
        return Refusal(
            f"the hub refuses the token (HTTP {status})",
            "use a token that may write to this owner's repositories",
        )
    if status is not None:
        return Refusal(f"the hub answers HTTP {status}", "check owner/name, or try again later")
    return Refusal(f"the hub cannot be reached ({type(error).__name__})", "check the network")
