"""A detector as one ONNX graph, encoder and heads, and what that graph says of programs.

The graph takes `input_ids` and `attention_mask`, (batch, length) int64 with both sizes open, and
gives `logit` (batch,) and `vector` (batch, dimensions) in fp32.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from nbhelpers.common.files import write_json
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import DetectorFile, Result
from nbhelpers.errors import ConfigError, JobFailed
from nbhelpers.jobs.agreement import Scores, batches_of
from nbhelpers.jobs.cards import EXAMPLE
from nbhelpers.jobs.models.encoding import pooled
from nbhelpers.jobs.onnx_use import OnnxDetector
from nbhelpers.jobs.open_forms import CANONICAL, alone
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.facts import NO_EVIDENCE
from nbhelpers.use.trained import FACTS_FILE

if TYPE_CHECKING:
    from nbhelpers.jobs.load import LoadedDetector
    from nbhelpers.jobs.models.detector import DetectorModel

GRAPH = "model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUTS = ("input_ids", "attention_mask")
LARGEST_FILE = 1_800_000_000  # bytes; one file of protobuf holds less than 2 GiB


def require_onnx() -> None:
    """Stop where a package for ONNX is not installed.

    Raises:
        ConfigError: Names what is missing and how to get it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        text = f"The export to ONNX needs {', '.join(missing)}, not installed here."
        raise ConfigError(text, fix=f"pip install {' '.join(NEEDED)}")


class Graph(nn.Module):
    """The detector as a function of padded tensors: what becomes the graph."""

    def __init__(self, model: DetectorModel) -> None:
        super().__init__()
        self.model = model

    @property
    def outputs(self) -> list[str]:
        """Names of what it returns: a model for similarity alone has no logit."""
        return ["vector"] if self.model.classifier is None else ["logit", "vector"]

    def _pooled(self, states: Tensor, ids: Tensor, mask: Tensor, how: str | Tensor) -> Tensor:
        if isinstance(how, str) and how == "token":
            return states[:, 0]
        weights = mask.to(states.dtype)
        return pooled(states, weights if isinstance(how, str) else weights * how[ids], how)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return (batch,) logits, where there is a classifier, and (batch, dimensions) vectors.

        Args:
            input_ids: (batch, length) int64, padded on the right.
            attention_mask: (batch, length) int64, 1 for tokens and 0 for padding.
        """
        outputs = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask)
        states = outputs.last_hidden_state  # (batch, length, hidden)
        parts = [
            self._pooled(states, input_ids, attention_mask, how) for how in self.model.poolings
        ]
        pooled_states = self.model.scaled(torch.cat(parts, dim=1))
        logit, vector = self.model.logits(pooled_states), self.model.project(pooled_states)
        return (vector,) if logit is None else (logit, vector)


def write_graph(loaded: LoadedDetector, folder: Path) -> list[str]:
    """Write `model.onnx` into a folder; return the names of its files.

    Attention is written out (`eager`): every version of the exporter knows its parts.

    Raises:
        JobFailed: The exporter fails; its first lines are told.
    """
    graph = Graph(loaded.model).eval()
    loaded.model.encoder.set_attn_implementation("eager")
    ids = torch.full((2, 9), int(loaded.tokenizer.pad_token_id or 0), dtype=torch.int64)
    ids[0, :], ids[1, :6] = 3, 3
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    size = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
    names = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    try:
        with _quiet(), torch.inference_mode(False), torch.no_grad():
            torch.onnx.export(
                graph,
                (ids, mask),
                str(folder / GRAPH),
                input_names=list(INPUTS),
                output_names=graph.outputs,
                dynamic_shapes=dict.fromkeys(INPUTS, names),
                dynamo=True,
                external_data=size > LARGEST_FILE,
            )
    except Exception as error:  # the exporter raises what its parts raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise JobFailed(
            f"The ONNX exporter of torch {torch.__version__} failed: {lines[0][:300]}",
            fix="export without --onnx, or with another version of torch",
            details="\n".join(lines[1:6]),
        ) from error
    return sorted(path.name for path in folder.glob(f"{GRAPH}*"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter prints and warns about out of the talk; its errors still come."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def write_example(loaded: LoadedDetector, folder: Path) -> None:
    """Write the program that uses the graph, and tell `detector.json` which ids stand at the ends.

    All files are modules of this package, cut loose from it.
    """
    from nbhelpers.data import canonical
    from nbhelpers.jobs import onnx_use
    from nbhelpers.metrics import stack

    used = Path(onnx_use.__file__).read_text(encoding="utf-8")
    for pair in _OF_PROGRAM:
        used = _replaced(used, pair)
    (folder / EXAMPLE).write_text(used, encoding="utf-8")
    text = Path(canonical.__file__).read_text(encoding="utf-8")
    (folder / CANONICAL).write_text(alone(text), encoding="utf-8")
    (folder / "stack.py").write_text(Path(stack.__file__).read_text("utf-8"), encoding="utf-8")
    table = loaded.table([""])
    ends = {"first": table.bos_id, "last": table.eos_id, "pad": table.pad_id}
    result = Result.read(folder / RESULT_NAME)
    note = (result.data.note if result else None) or ""
    facts = read_raw(DetectorFile, folder / FACTS_FILE)
    facts |= {"tokens": ends, "notice": NO_EVIDENCE, "data_note": note}
    write_json(folder / FACTS_FILE, facts)


_OF_PROGRAM = (
    ("from nbhelpers.data.canonical import", "from canonical import"),
    ("from nbhelpers.metrics.stack import", "from stack import"),
)


def _replaced(text: str, pair: tuple[str, str]) -> str:
    assert text.count(pair[0]) == 1, pair[0]
    return text.replace(*pair)


def graph_scores(folder: Path, codes: Sequence[str]) -> Iterator[tuple[list[int], Scores]]:
    """Score programs as the exported program does, in batches of many shapes.

    Yields:
        The rows of each batch, and their logits (NaN without a classifier) and vectors.
    """
    shipped = OnnxDetector(folder)
    rows = [shipped.ids(code) for code in codes]
    for group, width in batches_of([len(row) for row in rows], shipped.facts["seq_len"]):
        outputs = shipped.run([rows[row] for row in group], width)
        logit = outputs.get("logit", np.full(len(group), np.nan))
        yield group, (logit, outputs["vector"])
