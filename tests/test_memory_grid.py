"""Promise: the memory grid is large, its configurations train, and its tables do not flatter.

What a GPU would be asked to run is run here with few small layers, until every family and every
choice has been run once; what needs a GPU's own kernel is left out.
"""

from __future__ import annotations

import math

import pytest

from benchmarks import memory_cases
from benchmarks.memory_compare import confusion, joined
from benchmarks.memory_grid import borders, verdict_under
from benchmarks.memory_trace import differences, peak
from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, TIGHT

pytestmark = pytest.mark.slow
GIB = 2**30
# These only choose a GPU's kernels, or are cut for a CPU.
_ALIKE = ("name", "without", "only", "attention", "sizes", "liger")


def _one_for_each_choice() -> list[str]:
    chosen, seen = [], set()
    for name in memory_cases.ALL:
        case = memory_cases.find_case(name, tiny=True)
        case["adapter"] = sorted(case["adapter"] or ())  # the kinds of option, not their values
        choices = {f"{key}={case[key]}" for key in case if key not in _ALIKE}
        if memory_cases.runs_on_cpu(case) and choices - seen:
            chosen.append(name)
            seen |= choices
    return chosen


@pytest.mark.parametrize("name", _one_for_each_choice())
def test_a_tiny_version_of_each_configuration_trains(name: str) -> None:
    import torch

    from benchmarks.memory_cases_steps import make

    case = memory_cases.find_case(name, tiny=True)
    if case["family"] == "gemma2" and case["attention"] == "sdpa":
        case["attention"] = "eager"  # some versions refuse SDPA for it, and the CPU has no choice
    build, step = make(case, "cpu")
    built = build()
    before = [p.detach().clone() for p in built[0].parameters() if p.requires_grad]
    loss = step(*built)
    after = [p for p in built[0].parameters() if p.requires_grad]
    assert math.isfinite(float(loss))
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_the_grid_has_more_than_seventy_configurations_and_each_differs() -> None:
    cases = [memory_cases.find_case(name) for name in memory_cases.ALL]
    assert len(cases) >= 70
    assert len({str(case | {"name": ""}) for case in cases}) == len(cases)


def test_a_name_changes_whole_numbers_and_sets_the_allocator() -> None:
    case = memory_cases.find_case("codebert-fp32-7x133:batch=9,length=200@14.3+expandable")
    assert (case["batch"], case["length"]) == (9, 200)
    assert memory_cases.cap_of(case["name"]) == 14.3
    assert memory_cases.without_cap("a:batch=9@14.3") == "a:batch=9"
    assert memory_cases.without_cap("a@22+expandable") == "a+expandable"
    with pytest.raises(KeyError, match="colour"):
        memory_cases.find_case("codebert-fp32-7x133:colour=9")


@pytest.mark.parametrize(
    ("allocated", "reserved", "verdict"), [(9, 9, FITS), (9, 9.5, TIGHT), (11, 11, DOES_NOT_FIT)]
)
def test_verdicts_under_a_cap_follow_the_rule(
    allocated: float, reserved: float, verdict: str
) -> None:
    sizes = (int(allocated * GIB), int(reserved * GIB))
    assert verdict_under("codebert-fp32-7x133", *sizes, 10.0) == verdict


def test_runs_under_a_cap_are_chosen_on_both_sides_of_it() -> None:
    rows = [
        {"name": f"codebert-fp32-7x133:batch={n}", "opaque": []}
        | {"allocated_bytes": n * GIB, "reserved_bytes": n * GIB}
        for n in (5, 12, 13, 15, 21, 24)
    ]
    chosen = [name for name in borders(rows, 2) if name.endswith("@14.3")]
    assert [name.partition("=")[2] for name in chosen] == ["13@14.3", "15@14.3"]


def test_a_wrong_verdict_is_named() -> None:
    name = "codebert-fp32-7x133"
    row = {"name": name, "allocated_bytes": 9 * GIB, "reserved_bytes": 10 * GIB}
    failed = {f"{name}@14.3": {"ok": False, "error": "OutOfMemory"}}
    assert f"{name}@14.3: fits, and it ran out of memory" in confusion([row], failed)
    ran = {f"{name}@14.3": {"ok": True}}
    assert "No verdict was wrong." in confusion([row], ran)


def test_errors_have_the_sign_of_the_prediction() -> None:
    row = {"name": "a", "allocated_bytes": 90, "reserved_bytes": 110, "seconds": 1.0}
    seen = {"ok": True, "allocated_bytes": 100, "reserved_bytes": 100}
    seen |= {"steps": [{"phases": {"forward": 100}}]}
    (line,) = joined([row], {"a": seen})
    assert (line["allocated_bytes_error"], line["reserved_bytes_error"]) == (-10.0, 10.0)


def test_traces_show_what_only_one_side_allocates() -> None:
    predicted = [["a", 4, 0, "mm"], ["a", 8, 1, "add"], ["f", 4, 0]]
    assert peak({"events": predicted})[0] == 12
    found = differences([(4, "mm"), (8, "add")], [(4, ""), (16, ""), (8, "")])
    assert found == [(1, "measured", 16, "before add")]
