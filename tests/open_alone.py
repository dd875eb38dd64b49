"""Open exported folders as others do, where nbhelpers cannot be imported: JOBS.json OUT.npz.

A job is {"name", "folder", "how", "inputs"} and more by `how`: trust, plain (AutoModel), encoder,
peft or sentences. What it gives is an array, or the error as a text.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np


class Blocked(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "nbhelpers":
            raise ImportError("nbhelpers is not here")


def opened(job: dict[str, Any]) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModel, AutoModelForCausalLM

    folder, inputs = job["folder"], {n: torch.tensor(x) for n, x in job["inputs"].items()}
    with torch.inference_mode():
        if job["how"] == "peft":
            base = AutoModelForCausalLM.from_pretrained(job["base"], attn_implementation="eager")
            return PeftModel.from_pretrained(base, folder).eval()(**inputs).logits
        if job["how"] == "sentences":
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
            return torch.tensor(model.encode(job["codes"], batch_size=4))
        model = AutoModel.from_pretrained(folder, trust_remote_code=job["how"] == "trust").eval()
        outputs = model(**inputs)
        if job["how"] == "encoder":
            return outputs.last_hidden_state * inputs["attention_mask"][..., None]
        return torch.cat([x.flatten() for x in outputs.to_tuple()])


def main(jobs: str, out: str) -> None:
    sys.meta_path.insert(0, Blocked())
    results = {}
    for job in json.loads(Path(jobs).read_text(encoding="utf-8")):
        try:
            results[job["name"]] = opened(job).numpy()
        except (ValueError, OSError, KeyError) as error:
            results[job["name"]] = np.array(f"{type(error).__name__}: {error}")
    assert not any(name.startswith("nbhelpers.") for name in sys.modules)
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
