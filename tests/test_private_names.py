"""Private functions of libraries that training and scoring call: of the form that is called.

What the simulation replaces inside PyTorch is guarded by its own tests, which compare bytes.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version

import pytest
import torch

# Distribution, module, name inside it, and the parameters that are passed, in order.
NAMES = [
    ("torch", "torch.cuda.memory", "_record_memory_history", "enabled context stacks max_entries"),
    ("torch", "torch.cuda.memory", "_dump_snapshot", "filename"),
    ("torch", "torch._dynamo", "maybe_mark_dynamic", "t index"),
    ("torch", "torch.utils._python_dispatch", "TorchDispatchMode.__torch_dispatch__", "func types"),
    ("torch", "torch.utils._pytree", "tree_leaves", "tree"),
    ("torch", "torch.utils._pytree", "tree_map_only", "func tree"),
    ("sacrebleu", "sacrebleu.metrics.base", "Metric._extract_corpus_statistics", "hypotheses"),
]


@pytest.mark.parametrize(("distribution", "module", "name", "parameters"), NAMES)
def test_a_private_function_takes_what_is_passed(
    distribution: str, module: str, name: str, parameters: str
) -> None:
    where = f"{module}.{name} of {distribution} {version(distribution)}"
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
        assert found is not None, f"{where} is gone"
    taken = inspect.signature(found).parameters
    is_open = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    missing = [p for p in parameters.split() if p not in taken]
    assert is_open or not missing, f"{where} no longer takes {missing}: {list(taken)}"


def test_private_operators_and_attributes_are_there() -> None:
    release = f"torch {torch.__version__}"
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments[:10]]
    expected = (
        "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"
    )
    assert " ".join(names) == expected, f"{release}: {schema}"
    assert hasattr(torch, "_foreach_copy_"), release
    import torch._dynamo.utils as dynamo

    assert hasattr(dynamo, "counters"), release
    assert hasattr(torch._dynamo.config, "recompile_limit"), release
    from accelerate import Accelerator

    assert Accelerator(cpu=True)._models == [], f"accelerate {version('accelerate')}"
