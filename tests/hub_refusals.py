"""Repositories to which the hub lets some and not others, and all that it refuses, with its words.

The same names are models and data sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.local_hub import LocalHub, Trouble


def serve_access(server: LocalHub, root: Path) -> None:
    """Serve one for everybody, one for who accepted its terms, one for nobody here, a bare one."""
    folder, bare = root / "served", root / "bare"
    folder.mkdir()
    bare.mkdir()
    (bare / "model.gguf").write_bytes(b"GGUF")
    (folder / "config.json").write_text("{}")
    (folder / "train.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    save_file({"x": np.zeros(1)}, folder / "model.safetensors")
    for kind in ("model", "dataset"):
        for name, closed in (("open", None), ("gated", False), ("closed", True)):
            options = {"is_gated": closed is not None, "card": {"refuses_token": closed}}
            server.add(f"own/{name}", folder, repo_type=kind, **options)
        server.add("own/bare", bare, repo_type=kind)


NO_TOKEN, BAD_TOKEN, GOOD_TOKEN = None, "hf_wrong", "hf_local_test"
BUSY = "answers HTTP 429, too many"
# Token, name, what goes wrong, what is said, and the fix.
REFUSALS = [
    (NO_TOKEN, "own/gated", None, "is gated, and no token is set", "own/gated, then set"),
    (NO_TOKEN, "own/missing", None, "does not exist, or it is private", "check owner/name"),
    (NO_TOKEN, "own/bare", None, "holds no config.json", "transformers can load"),
    (NO_TOKEN, "own/open", Trouble(status=403), "without a token (HTTP 403)", "set HF_TOKEN"),
    (NO_TOKEN, "own/open", Trouble(status=429), BUSY, "wait some minutes"),
    (NO_TOKEN, "own/open", Trouble(status=503), "answers HTTP 503", "try again later"),
    (NO_TOKEN, "own/open", Trouble(cut=True), "hub cannot be reached", "name a local"),
    (GOOD_TOKEN, "own/closed", None, "account may not read it yet", "its terms at https://"),
    (GOOD_TOKEN, "own/missing", None, "does not exist, or your token may", "owner/name"),
    (BAD_TOKEN, "own/gated", None, "refuses your token (HTTP 401)", "renew HF_TOKEN"),
    (BAD_TOKEN, "own/open", None, "refuses your token (HTTP 401)", "unset it"),
    ("hf_\u00e9", "own/open", None, "characters that no token has", "paste it again"),
]
