"""An operator takes its collectives and GEMMs from the graph, and leaves those that only look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # its operators
import torch.nn.functional as F
from test_patterns import graph_of

from autotune.compiled.gates import gate_behind
from autotune.compiled.graphs import ATEN, NoMatch
from autotune.compiled.patterns import Candidate, candidates
from autotune.compiled.rewriting import check_form

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn
ROWS, K, N = 8, 16, 32
C10D = torch.ops._c10d_functional


def gather(x: Tensor) -> Tensor:
    return C10D.wait_tensor(C10D.all_gather_into_tensor(x, 2, "all"))  # type: ignore[no-any-return]


def gather_second(x: Tensor) -> Tensor:
    return torch.cat(gather(x).chunk(2), 1)


def scatter(x: Tensor) -> Tensor:
    return C10D.wait_tensor(C10D.reduce_scatter_tensor(x, "sum", 2, "all"))  # type: ignore[no-any-return]


def scatter_second(x: Tensor) -> Tensor:
    return scatter(torch.cat(x.chunk(2, 1)))


def reduce(x: Tensor, how: str = "sum") -> Tensor:
    return C10D.wait_tensor(C10D.all_reduce(x, how, "all"))  # type: ignore[no-any-return]


def ways(function: Callable[..., Any], *arguments: Tensor, decomposed: bool = False) -> list[Any]:
    """The ways to replace the one collective."""
    ((_, found),) = candidates(graph_of(function, *arguments, decomposed=decomposed))
    return found


def reason(function: Callable[..., Any], *arguments: Tensor, decomposed: bool = False) -> str:
    """Why there is no way that the operator takes as it is."""
    (found,) = ways(function, *arguments, decomposed=decomposed)
    if isinstance(found, str):
        return found
    with pytest.raises(NoMatch) as error:
        check_form(found[0])
    return str(error.value)


def ones(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.ones(shape) for shape in shapes]


def normed(total: Tensor, weight: Tensor) -> Tensor:
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


X, B, R, W = ones((ROWS, K), (K, N), (ROWS, N), (N,))


def test_a_residual_is_added_to_a_sum_and_by_itself_alone() -> None:
    assert [each[0].added is not None for each in ways(lambda x, b, r: reduce(x @ b) + r, X, B, R)] == [False, True]
    for function in (
        lambda x, b, r: reduce(x @ b, "avg") + r,  # the operator would divide it, too
        lambda x, b, r: torch.add(reduce(x @ b), r, alpha=2),
    ):
        ((found,),) = ways(function, X, B, R)
        assert found.added is None and "residual" not in found.operands


def test_a_norm_is_that_of_a_sum_and_its_residual() -> None:
    last = ways(lambda x, b, r, w: normed(reduce(x @ b) + r, w), X, B, R, W)[-1]
    assert last[0].workload == "all_reduce_norm"
    for function in (
        lambda x, b, r, w: normed(reduce(x @ b, "avg") + r, w),
        lambda x, b, r, w: normed(torch.add(reduce(x @ b), r, alpha=2), w),
    ):
        assert all(each[0].norm is None for each in ways(function, X, B, R, W))


LEFT: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "adds its own bias": (lambda x, b, c: reduce(torch.addmm(c / 2, x, b), "avg"), [X, B, W]),
    "not a bias": (lambda x, b, c: torch.addmm(c, gather(x), b), ones((ROWS, K), (K, N), (2 * ROWS, N))),
    "factors": (lambda x, b, c: torch.addmm(c, gather(x), b, beta=2), [X, B, W]),
    "is split": (lambda x, b: torch.cat(gather(x).chunk(2)[::-1], 1) @ b, ones((ROWS, K // 2), (K, N))),
    "B, not its A": (lambda x: (y := gather(x)) @ y, ones((ROWS, 2 * ROWS))),
    "not concatenated": (lambda x, b: scatter(torch.cat((x @ b).chunk(2), 1)), [X, B]),
    "strides": (lambda x, b: reduce(x.t() @ b), ones((K, ROWS), (K, N))),
}


@pytest.mark.parametrize("told", LEFT)
def test_what_an_operator_does_not_compute_is_left(told: str) -> None:
    function, arguments = LEFT[told]
    assert told in reason(function, *arguments)


def test_a_weight_that_is_computed_behind_the_total_is_said() -> None:
    def late(x: Tensor, b: Tensor, r: Tensor, w: Tensor) -> Tensor:
        total = reduce(x @ b) + r
        return normed(total, w + 1)

    def early(x: Tensor, b: Tensor, r: Tensor, w: Tensor) -> Tensor:
        weight = w + 1
        return normed(reduce(x @ b) + r, weight)

    check_form(ways(early, X, B, R, W)[-1][0])
    with pytest.raises(NoMatch, match="behind the total"):
        check_form(ways(late, X, B, R, W)[-1][0])


def test_rows_in_another_order_take_nothing_beside_them() -> None:
    """Of several sequences the operator's rows are in the ranks' order; what else it takes or gives back is not."""
    x, w = ones((2, ROWS, K), (N, K))
    plain, added = ways(lambda x, w, r: scatter_second(F.linear(x, w)) + r, x, w, torch.ones(2, ROWS // 2, N))
    given_back = ways(lambda x, w: (F.linear(y := gather_second(x), w), y * 2), x, w)[-1]
    (scaled,) = ways(
        lambda a, b, s, t: scatter_second(torch._scaled_mm(a, b.t(), s, t, out_dtype=torch.bfloat16).view(2, ROWS, N)),
        torch.ones(2 * ROWS, K).to(FP8), w.to(FP8), *ones((2 * ROWS, 1), (1, N)),
    )  # fmt: skip
    assert isinstance(plain[0], Candidate)
    for found in (added, given_back, scaled):
        with pytest.raises(NoMatch, match="another order"):
            check_form(found[0])


def scaled(a: Tensor, w: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype, fast: bool = False) -> Tensor:
    return torch.ops.aten._scaled_mm(a, w.t(), s, t, None, None, dtype, fast)  # type: ignore[no-any-return]


A8, W8 = torch.ones(ROWS, K).to(FP8), torch.ones(N, K).to(FP8)
ONE = torch.ones(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("fast", [False, True])
def test_a_gemm_of_fp8_keeps_its_type_and_its_way_to_add_up(dtype: torch.dtype, fast: bool) -> None:
    ((found,),) = ways(lambda a, w, s, t: reduce(scaled(a, w, s, t, dtype, fast=fast)), A8, W8, ONE, ONE)
    wanted = {torch.float32: "fp32", torch.float16: "fp16"}[dtype]
    assert found.options == {"out_dtype": wanted, "fast_accum": fast}


def test_of_a_gemm_of_fp8_what_operators_lack_is_said() -> None:
    def by_result(a: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return reduce(torch.ops.aten._scaled_mm(a, w.t(), s, t, None, t, torch.bfloat16))

    assert "scale" in reason(by_result, A8, W8, ONE, ONE)
    assert "float8" in reason(lambda a, w, s, t: reduce(scaled(a, w, s, t, FP8)), A8, W8, ONE, ONE)
    deep = [torch.ones(rows, 256).to(FP8) for rows in (ROWS, N)]
    of_a, of_b = torch.ones(1, 2), torch.ones(N, 2).t()  # 128 x 128 of A, 1 x 128 of B
    assert "by blocks" in reason(lambda a, w, s, t: reduce(scaled(a, w, s, t, torch.bfloat16)), *deep, of_a, of_b)

    def elsewhere(a: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
        others = C10D.wait_tensor(C10D.all_gather_into_tensor(s, 2, "others"))
        return scaled(gather(a), w, others, t, torch.bfloat16)

    graph = graph_of(elsewhere, A8, W8, *ones((ROWS, 1), (1, N)), decomposed=False)
    (found,) = [options for _, options in candidates(graph)]
    assert isinstance(found[0], str)
    used = ways(
        lambda a, w, s, t: (scaled(y := gather(a), w, s, t, torch.bfloat16), y.view(torch.uint8) + 1),
        A8, W8, ONE, ONE,
    )  # fmt: skip
    assert all(isinstance(each, str) for each in used), "no operator gives back a gathered A of fp8"


def test_the_scale_of_a_ranks_only_row_is_not_taken_for_all_rows() -> None:
    """Of one block in K and one in N, the scales of one row are one number, as those of a whole matrix are."""

    def quantised(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        scale = (y := gather(x)).abs().amax(-1, keepdim=True) / 448
        return scaled((y / scale).to(FP8), w, scale, t, torch.bfloat16)

    assert "only row" in reason(quantised, torch.ones(1, 128), torch.ones(128, 128).to(FP8), torch.ones(1, 1))


def test_a_wide_gate_that_is_also_used_before_its_cast_is_none() -> None:
    def wide(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = (x @ w.t()).chunk(2, -1)
        return (product := F.silu(gate.float()) * up.float()).to(x.dtype), product

    graph = graph_of(wide, *(each.bfloat16() for each in ones((4, K), (N, K))), decomposed=False)
    (product,) = (node for node in graph.nodes if node.target is ATEN.mm.default)
    with pytest.raises(NoMatch):
        gate_behind(product)
