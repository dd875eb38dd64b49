"""Promise: a model comes from the hub whole, whatever happens on the way, or the run says why not.

The hub is a server on this machine; what asks it are the real clients, `from_pretrained` included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from nbhelpers import load_preset
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.causal import load_base
from nbhelpers.jobs.models.encoders import build_clone_model, build_tokenizer
from nbhelpers.jobs.models.weights import find_weights, read_state_dict
from tests.hub_models import write_gemma, write_gpt2, write_roberta
from tests.local_hub import LocalHub, Trouble

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """An empty hub that this process uses, without waiting between its tries."""
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with LocalHub() as server:
        server.use_here(monkeypatch, tmp_path / "hub")
        yield server


def load_causal(name: str) -> tuple[torch.nn.Module, str]:
    settings = load_preset("finetune", "t4", overrides={"model": name}).settings
    base = load_base(settings, precision="fp32", device="cpu", quantised=False)
    return base.model, find_weights(name, None, with_weights=False).revision


def load_encoder(name: str) -> tuple[torch.nn.Module, str]:
    changes = {"model": name, "seq_len": 32, "pretrain_steps": 0}
    settings = load_preset("clones", "smoke", overrides=changes).settings
    found = build_tokenizer(settings, [])
    return build_clone_model(settings, found).encoder, found.weights.revision


@pytest.mark.parametrize(
    ("write", "load"),
    [(write_gemma, load_causal), (write_roberta, load_encoder), (write_gpt2, load_encoder)],
)
def test_a_model_of_the_hub_has_its_weights_and_its_revision(
    write: Callable[[Path], Path],
    load: Callable[[str], tuple[torch.nn.Module, str]],
    hub: LocalHub,
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "model")
    repo = hub.add("own/model", folder, repo_type="model")
    (file,) = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    saved = {k.removeprefix("transformer."): v for k, v in read_state_dict(file).items()}
    model, revision = load("own/model")
    loaded = model.state_dict()
    common = saved.keys() & loaded.keys()
    assert len(common) >= len(saved) - 1 and revision == repo.commit  # an encoder has no head
    assert all(torch.equal(loaded[name], saved[name]) for name in common)


@pytest.mark.parametrize(
    ("trouble", "message", "fix"),
    [
        (Trouble(path=WEIGHTS, method="GET", status=429, times=2), "", ""),
        (Trouble(path=WEIGHTS, method="GET", cut=True, times=3), "", ""),
        (Trouble(path=WEIGHTS, method="GET", cut=True), "hub cannot be reached", "the network"),
        (Trouble(path=WEIGHTS, method="GET", status=503), "answers HTTP 503", "try again later"),
        (Trouble(path=WEIGHTS, method="GET", corrupt=True), "cut short or damaged", "delete /"),
    ],
)
def test_a_download_is_whole_after_trouble_or_says_what_to_do_about_it(
    trouble: Trouble, message: str, fix: str, hub: LocalHub, tmp_path: Path
) -> None:
    hub.add("own/model", write_roberta(tmp_path / "model"), repo_type="model")
    hub.troubles = [trouble]
    if message:
        with pytest.raises(ConfigError, match=message) as caught:
            find_weights("own/model", None)
        assert fix in caught.value.fix and "own/model" in caught.value.message
        if trouble.corrupt:  # as the fix says
            Path(caught.value.fix.removeprefix("delete ").partition(":")[0]).unlink()
        hub.troubles = []
    folder = find_weights("own/model", None).folder
    assert (folder / WEIGHTS).read_bytes() == (tmp_path / "model" / WEIGHTS).read_bytes()
