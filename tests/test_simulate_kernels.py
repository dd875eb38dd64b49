"""Promise: what kernels allocate unseen is told as an H200 measured it, and never guessed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from nbhelpers.simulate import kernels  # noqa: E402
from nbhelpers.simulate.cards import find_card  # noqa: E402
from nbhelpers.simulate.kernels_matmul import cublas_workspace_bytes  # noqa: E402

pytestmark = pytest.mark.slow  # torch loads its rules for shapes
aten = torch.ops.aten
BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64


def meta(*shape, dtype=F32, strides=None):
    """A tensor of a shape, without data; with `strides` it views a storage that is large enough."""
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def call(func, *args, gpu="h200", out=None, deterministic=False, **kwargs):
    """A call as the tracker hands it over."""
    result = func(*args, **kwargs) if out is None else out
    return kernels.Call(func, args, kwargs, result, find_card(gpu), deterministic)


def temporaries(made):
    """The blocks, in bytes, that live besides inputs and outputs when an operator needs most."""
    live, at_peak = [], []
    for size in itertools.chain(*kernels.events(made)):
        if size > 0:
            live.append(size)
        else:
            del live[len(live) - 1 - live[::-1].index(-size)]
        if sum(live) > sum(at_peak):
            at_peak = list(live)
    return at_peak


def heads(batch, count, length, size, dtype=BF16):
    """(batch, heads, length, size), laid out as a projection leaves it."""
    return meta(batch, length, count, size, dtype=dtype).transpose(1, 2)


# Operator, arguments, blocks of the peak: the allocator's own record on an H200, torch 2.11.
MEASURED = {
    "a bias gradient shares a column over blocks": (
        aten.sum.dim_IntList,
        (meta(4096, 768), [0], True),
        [25165824, 24],
    ),
    "a sum over a dimension in the middle needs no blocks": (
        aten.sum.dim_IntList,
        (meta(8, 12, 300, 300), [0], True),
        [],
    ),
    "a sum of truth values copies them as numbers": (
        aten.sum.dim_IntList,
        (meta(77, 3, dtype=torch.bool), [1]),
        [8 * 77 * 3],
    ),
    "a variance keeps 16 bytes a partial result": (
        aten.var.correction,
        (meta(3_000_000),),
        [5872, 4],
    ),
    "an argmax over rows": (aten.argmax.default, (meta(9000, 768), 0), [221773824, 24]),
    "a softmax gradient is multiplied first": (
        aten._softmax_backward_data.default,
        (meta(8, 12, 300, 300, dtype=BF16), meta(8, 12, 300, 300, dtype=BF16), -1, BF16),
        [17280000],
    ),
    "a softmax of a transposed score is copied": (
        aten._softmax.default,
        (meta(8, 12, 300, 300, strides=(1080000, 90000, 1, 300)), -1, False),
        [34560000],
    ),
    "a log softmax gradient takes nothing": (
        aten._log_softmax_backward_data.default,
        (meta(2048, 32000), meta(2048, 32000), -1, F32),
        [],
    ),
    "few embedded tokens are not sorted": (
        aten.embedding_dense_backward.default,
        (meta(3072, 768), meta(3072, dtype=I64), 30522, -1, False),
        [],
    ),
    "a layer norm of a transposed input copies it": (
        aten.native_layer_norm.default,
        (meta(8, 512, 768, strides=(393216, 1, 512)), [768], meta(768), meta(768), 1e-5),
        [12582912],
    ),
    "an operand without a line is copied for cuBLAS": (
        aten.mm.default,
        (meta(512, 768), meta(768, 1000, strides=(3000, 3))),
        [3072000],
    ),
    "a transposed operand is not": (
        aten.mm.default,
        (meta(512, 768), meta(1000, 768).t()),
        [],
    ),
    "a router's choice of experts takes nothing": (
        aten.topk.default,
        (meta(4096, 64), 6),
        [],
    ),
    "a sort of short rows numbers one row": (aten.sort.default, (meta(2000, 3000),), [24000]),
    "two rolled dimensions make one copy between": (
        aten.roll.default,
        (meta(8, 56, 56, 96), [3, 3], [1, 2]),
        [9633792],
    ),
    "gradient norms keep a number for every chunk": (
        aten._foreach_norm.Scalar,
        ([meta(3072, 768), meta(768)], 2.0),
        [4 * 36 * 2],
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_temporaries_are_those_that_an_h200_took(name):
    func, args, blocks = MEASURED[name]

    assert list(temporaries(call(func, *args))) == blocks


@pytest.mark.parametrize(
    ("count", "rows", "width", "dtype", "largest"),
    [
        (4096, 50265, 768, F32, 13839360),
        (8192, 256000, 256, BF16, 9227264),
        (16384, 1000, 512, F32, 5402624),
        (3073, 30522, 100, F32, 1352000),
        (6000, 2, 768, BF16, 115199),  # many tokens of few kinds are summed in place
    ],
)
def test_an_embedding_gradient_sorts_its_tokens_and_sums_in_parts(
    count, rows, width, dtype, largest
):
    made = call(
        aten.embedding_dense_backward.default,
        meta(count, width, dtype=dtype),
        meta(count, dtype=I64),
        rows,
        -1,
        False,
    )

    blocks = [*itertools.chain(*kernels.events(made))]

    assert max(blocks) == largest


def attention_call(func, query, key, *, gpu="h200", bias=None, deterministic=False):
    """A backward call of an attention kernel; only the tensors that rules read are there."""
    lead = (query, query, key, key)
    args = (*lead, query) if "efficient" not in str(func) else (*lead, bias, query)
    card = find_card(gpu)
    return kernels.Call(func, args, {}, (), card, deterministic)


def test_flash_attention_s_gradient_rounds_lengths_and_heads():
    query = heads(2, 16, 197, 72)
    made = attention_call(aten._scaled_dot_product_flash_attention_backward.default, query, query)

    assert list(temporaries(made)) == [32768, 3145728]


def test_flash_attention_expands_the_gradients_of_grouped_keys():
    func = aten._scaled_dot_product_flash_attention_backward.default
    made = attention_call(func, heads(4, 8, 512, 128), heads(4, 2, 512, 128))

    expanded = 4 * 8 * 512 * 128 * 2
    assert list(temporaries(made))[2:] == [expanded, expanded]


def test_flash_attention_copies_for_every_block_when_it_must_be_reproducible():
    func = aten._scaled_dot_product_flash_attention_backward.default
    query = heads(2, 8, 300, 64)

    once = temporaries(attention_call(func, query, query))
    again = temporaries(attention_call(func, query, query, deterministic=True))

    assert again[1] == 9 * once[1]  # 132 multiprocessors over 16 sequences of heads


def test_flash_attention_over_rows_end_to_end_leaves_room_behind_each_row():
    forward, backward = aten._flash_attention_forward, aten._flash_attention_backward
    x, ends = meta(1000, 12, 64, dtype=torch.bfloat16), meta(5, dtype=torch.int32)

    there = call(forward.default, x, x, x, ends, ends, 400, 400, 0.0, False, False, out=())
    back = call(backward.default, x, x, x, x, x, x, ends, ends, 400, 400, 0.0, False, out=())

    assert kernels.is_known(forward.default) and not temporaries(there)
    sums = 4 * 12 * (1000 + 4 * 128)
    assert list(temporaries(back)) == [sums, 64 * sums]


def test_short_long_attention_is_split_so_that_the_card_is_full():
    args = (heads(2, 4, 40, 192), heads(2, 4, 1000, 192), heads(2, 4, 1000, 192))
    func = aten._scaled_dot_product_flash_attention.default

    assert temporaries(call(func, *args, out=())) == [20480, 3932160]
    # a card with fewer multiprocessors splits into fewer parts
    assert sum(temporaries(call(func, *args, out=(), gpu="l4"))) < 20480 + 3932160


@pytest.mark.parametrize(
    ("shape", "dtype", "blocks"),
    [
        # the product of gradient and output is what a float backward needs most
        ((4, 12, 300, 64), F32, [57600, 3936000]),
        ((2, 8, 513, 80), F32, [32832, 5245440]),
    ],
)
def test_memory_efficient_attention_keeps_delta_and_sums_of_queries(shape, dtype, blocks):
    query = heads(*shape, dtype=dtype)
    func = aten._scaled_dot_product_efficient_attention_backward.default

    _, events = kernels.events(attention_call(func, query, query))

    product = 4 * query.numel()
    assert events[0] == product
    assert [size for size in events if size > 0][-1] == blocks[-1]
    assert blocks[0] in events


def test_cudnn_s_gradient_keeps_a_float_copy_of_the_query_and_a_number_a_row():
    query = heads(4, 12, 300, 64)
    made = attention_call(aten._scaled_dot_product_cudnn_attention_backward.default, query, query)

    assert temporaries(made) == [3744256]


def test_the_card_decides_how_a_reduction_is_split():
    args = (meta(4096, 768), [0], True)

    sizes = {
        gpu: sum(temporaries(call(aten.sum.dim_IntList, *args, gpu=gpu)))
        for gpu in ("t4", "a100-40gb", "h200", "rtx4090")
    }

    assert sizes["h200"] == 25165824 + 24
    assert sizes["t4"] < sizes["a100-40gb"] <= sizes["h200"]


def test_a_tensor_beyond_32_bits_is_reduced_in_halves():
    made = call(aten.sum.dim_IntList, meta(70000, 16384, dtype=BF16), [0])

    _, events = kernels.events(made)

    assert events[0] == 4 * 16384  # sums of half numbers cannot stand in a half result meanwhile
    assert len([size for size in events if size < 0]) == 2 * len(set(map(abs, events[1:])))


def test_a_mean_squared_error_holds_storage_of_full_size():
    made = call(aten.mse_loss.default, meta(2000, 768), meta(2000, 768))

    assert kernels.outputs(made) == [6144000]
    assert temporaries(made)[0] == 6144000


def test_many_short_rows_sum_a_norm_s_weight_gradient_in_parts():
    rows, width = 131072, 768
    state = meta(rows, 1)
    args = (meta(rows, width), meta(rows, width), [width], state, state, meta(width), meta(width))
    made = call(
        aten.native_layer_norm_backward.default, *args, [True, True, True], out=(None, None, None)
    )

    assert temporaries(made)[:2] == [4193280, 4193280]


def test_a_masked_index_first_finds_the_places():
    made = call(
        aten.index.Tensor,
        meta(5000, 256),
        [meta(5000, dtype=torch.bool)],
        out=meta(2472, 256),
    )

    assert 2472 * 8 in kernels.events(made)[0]


def test_a_convolution_fills_channels_up_and_says_that_it_estimates():
    image, weight = meta(4, 512, 2399, dtype=BF16), meta(512, 512, 3, dtype=BF16)
    made = call(aten.convolution.default, image, weight, None, [2], [0], [1], False, [0], 1)

    measured = 16310288
    assert sum(temporaries(made)) == pytest.approx(measured, rel=0.001)
    assert "cuDNN" in kernels.note(made.func)


def test_every_rule_names_where_it_was_read():
    assert all(rule.source for rule in kernels.RULES.values())
    assert len(kernels.RULES) > 150


@pytest.mark.parametrize(
    "func",
    [
        aten.add.Tensor,
        aten.gelu_backward.default,
        aten.view.default,
        aten.empty.memory_format,
        aten.native_dropout.default,
        aten._foreach_addcdiv_.ScalarList,
        aten._fused_adamw_.default,
        aten.copy_.default,
        aten.nll_loss_forward.default,
    ],
)
def test_plain_operators_are_known_and_take_nothing(func):
    assert kernels.is_known(func)
    assert temporaries(SimpleNamespace(func=func)) == [] or func in kernels.RULES


def test_an_operator_that_nobody_looked_at_is_not_known():
    assert not kernels.is_known(aten._cudnn_rnn.default)
    assert not kernels.is_known(aten.linalg_qr.default)

    with torch.library._scoped_library("somebody", "DEF") as library:
        library.define("kernel(Tensor x) -> Tensor")
        assert not kernels.is_known(torch.ops.somebody.kernel.default)


def test_cublas_keeps_a_workspace_that_depends_on_the_generation():
    assert cublas_workspace_bytes(find_card("h100")) == 32 * 2**20
    assert cublas_workspace_bytes(find_card("t4")) == 8519680
    assert cublas_workspace_bytes(find_card("rtx5090"), (2, 6)) == 8519680
