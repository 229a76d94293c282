"""A GEMM with warp roles on sm_90, in Gluon, over cuBLAS: one warp loads by TMA, the others multiply.

    python bench/roles.py --dtype bf16 fp8          some element types; default: all

C = A Bᵀ, A [m, k], B [n, k], bf16 or e4m3 with a scale for each row and column or, fp8_block, for each 1 x 128 of A and
128 x 128 of B. Times are of CUDA graphs of 20 calls over copies of B, library and variants in turns, medians in µs; a
cell is the variant's time over the library's.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from functools import partial

import torch
from arguments import need_gpu, new_parser
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import (
    FEW_REGISTERS,
    REGISTERS,
    Form,
    consumer_layout,
    factors_of,
    load_tile,
    new_order,
    new_ring,
    product,
    store_part,
)
from autotune.kernels.primitives.tiles import swizzle


@gluon.jit
def producer(a_desc, b_desc, ring, sizes, GROUP: gl.constexpr, FORM: gl.constexpr):
    M, N, K, tiles_m, tiles_n = sizes
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = swizzle(tile, tiles_m, tiles_n, GROUP)
        step = load_tile(a_desc, b_desc, ring, step, m * FORM.PARTS * FORM.ROWS, n * FORM.COLUMNS, 0, K, FORM)


@gluon.jit
def consumer(
    ring, order, out, sizes, WHICH: gl.constexpr, SCALES: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr
):
    c_desc, c_bufs, scale_a, scale_b = out
    M, N, K, tiles_m, tiles_n = sizes
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    steps = gl.cdiv(K, FORM.DEPTH)
    part: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    n = WHICH if FORM.TURNS == 2 else 0
    first = gl.program_id(0) + n * gl.num_programs(0)
    for tile in range(first, tiles_m * tiles_n, FORM.TURNS * gl.num_programs(0)):
        pm, pn = swizzle(tile, tiles_m, tiles_n, GROUP)
        row, column = (pm * FORM.PARTS + part) * FORM.ROWS, pn * FORM.COLUMNS
        rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
        factors = None
        if SCALES == 3:
            factors = factors_of(scale_a, row, M, scale_b, column, 0, K, layout, FORM)
        total = product(ring, order, n, n * steps, steps, factors, WHICH, layout, FORM)
        if SCALES == 2:
            total *= gl.load(scale_a + rows, mask=rows < M, other=0.0)[:, None]
            total *= gl.load(scale_b + columns, mask=columns < N, other=0.0)[None, :]
        store_part(total, c_desc, c_bufs.index(WHICH), row, column)
        n += FORM.TURNS
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def gemm(
    a_desc, b_desc, c_desc, scale_a, scale_b, M, N, K, PARTS: gl.constexpr, TURNS: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, BK: gl.constexpr, NB: gl.constexpr, GROUP: gl.constexpr, PROMOTE: gl.constexpr,
    SCALES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    FORM: gl.constexpr = known(Form, PARTS, TURNS, BM, BN, BK, NB, PROMOTE, True, 1)
    ring = new_ring(a_desc, b_desc, FORM)
    order = new_order(ring, FORM)
    c_bufs = gl.allocate_shared_memory(c_desc.dtype, [2, BM, c_desc.block_type.shape[1]], c_desc.layout)
    out = (c_desc, c_bufs, scale_a, scale_b)
    sizes = (M, N, K, gl.cdiv(M, BM * PARTS), gl.cdiv(N, BN))
    gl.warp_specialize(
        [
            (consumer, (ring, order, out, sizes, 0, SCALES, GROUP, FORM)),
            (consumer, (ring, order, out, sizes, 1, SCALES, GROUP, FORM)),
            (producer, (a_desc, b_desc, ring, sizes, GROUP, FORM)),
        ],
        [num_warps, 1],
        [REGISTERS, FEW_REGISTERS],
    )


@dataclass(frozen=True)
class Variant:
    """A tile of ``parts`` × ``rows`` rows, ``columns`` columns; ``turns`` 2: two consumers with tiles of their own."""

    name: str
    parts: int
    turns: int
    rows: int
    columns: int
    depth: int
    buffers: int
    group: int = 8
    promote: bool = False
    stored: int = 0
    """Columns of C that a consumer stores at a time; 0: all."""

    @property
    def options(self) -> dict[str, int]:
        return {
            "PARTS": self.parts, "TURNS": self.turns, "BM": self.rows, "BN": self.columns, "BK": self.depth,
            "NB": self.buffers, "GROUP": self.group, "PROMOTE": self.promote, "num_warps": 4, "maxnreg": 168,
        }  # fmt: skip

    def launch(self, a, b, c, scale_a, scale_b, sms: int = 132, run=None):
        (m, k), n = a.shape, b.shape[0]
        kind = gl.bfloat16 if a.dtype == torch.bfloat16 else gl.float8e4nv
        stored = self.stored or self.columns
        described = [
            TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
            for tensor, block, dtype in (
                (a, [self.rows, self.depth], kind),
                (b, [self.columns, self.depth], kind),
                (c, [self.rows, stored], gl.bfloat16),
            )
        ]
        tiles = -(-m // (self.parts * self.rows)) * -(-n // self.columns)
        run = run or gemm[(min(sms, tiles),)]
        scales = 0 if a.dtype == torch.bfloat16 else 2 if len(scale_b) == 1 else 3
        return run(*described, scale_a, scale_b, m, n, k, SCALES=scales, **self.options)


BF16 = [
    Variant("2×64 256 b3", 2, 1, 64, 256, 64, 3),
    Variant("2×64 256 b4 s128", 2, 1, 64, 256, 64, 4, stored=128),
    Variant("2×64 256 b4 g4", 2, 1, 64, 256, 64, 4, group=4, stored=128),
    Variant("2×64 256 b4 g16", 2, 1, 64, 256, 64, 4, group=16, stored=128),
    Variant("2×64 256 k32 b8", 2, 1, 64, 256, 32, 8, stored=128),
    Variant("2×128 128 b4", 2, 1, 128, 128, 64, 4, stored=64),
    Variant("2×64 128 b6", 2, 1, 64, 128, 64, 6),
    Variant("turns 128 128 b5", 1, 2, 128, 128, 64, 5),
    Variant("turns 128 128 b6", 1, 2, 128, 128, 64, 6, stored=64),
    Variant("turns 128 128 b6 g4", 1, 2, 128, 128, 64, 6, group=4, stored=64),
    Variant("turns 64 256 b4", 1, 2, 64, 256, 64, 4),
    Variant("turns 64 128 b8", 1, 2, 64, 128, 64, 8),
    Variant("2×128 128 b4 g4", 2, 1, 128, 128, 64, 4, group=4, stored=64),
]
PROMOTED = [
    Variant("2×64 128 b6", 2, 1, 64, 128, 128, 6, promote=True),
    Variant("2×64 128 b6 g16", 2, 1, 64, 128, 128, 6, group=16, promote=True),
    Variant("turns 64 128 b8", 1, 2, 64, 128, 128, 8, promote=True),
]
FAST = [
    Variant("2×64 256 b4", 2, 1, 64, 256, 128, 4, stored=128),
    Variant("2×128 128 b4", 2, 1, 128, 128, 128, 4, stored=64),
    Variant("2×64 128 b6", 2, 1, 64, 128, 128, 6),
    Variant("turns 128 128 b5", 1, 2, 128, 128, 128, 5),
    Variant("turns 128 128 b6", 1, 2, 128, 128, 128, 6, stored=64),
]
VARIANTS = {"bf16": BF16, "fp8": PROMOTED, "fp8_fast": FAST, "fp8_block": PROMOTED}
PRODUCTS = ((14336, 8192), (8192, 14336), (6144, 4096), (28672, 8192), (4096, 4096))
SHAPES = [(m, n, k) for m in (1024, 512, 2048, 4096, 256, 2046) for n, k in PRODUCTS]


def survey_one(dtype: str, variant: Variant) -> str:
    """In a worker of the tests, without a GPU: what the compiler says of the variant."""
    from autotune.kernels.launching.plan import compile_offline_for, registers_and_spills
    from autotune.machine import H100

    compile_offline_for(H100)
    element = torch.bfloat16 if dtype == "bf16" else torch.float8_e4m3fn
    a, b = (torch.empty(4096, 4096, dtype=element, device="meta") for _ in range(2))
    c = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    scale = torch.empty(32 if dtype == "fp8_block" else 1, 4096, device="meta")
    found = variant.launch(a, b, c, scale, scale, run=partial(gemm.warmup, grid=(1,)))
    registers, spills = registers_and_spills(found)
    return f"shared memory {found.metadata.shared}, registers {registers}, spills {spills}"


def operands(dtype: str, m: int, n: int, k: int, copies: int):
    """A, copies of B, C, and the scales of A and B, as ours and as the library take them."""
    a, *bs = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, *[n] * copies))
    if dtype != "bf16":
        a, bs = a.to(torch.float8_e4m3fn), [b.to(torch.float8_e4m3fn) for b in bs]
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shapes = ((m, 1), (1, n)) if dtype != "fp8_block" else ((m, k // 128), (-(-n // 128), k // 128))
    return a, bs, c, *(torch.rand(shape, device="cuda") + 0.5 for shape in shapes)


def library(dtype: str, a, b, c, scale_a, scale_b):
    if dtype == "bf16":
        return torch.mm(a, b.t(), out=c)
    if dtype == "fp8_block":
        scale_b = scale_b.t()
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=dtype == "fp8_fast")


def in_its_layout(dtype: str, a, scale_a, scale_b):
    """The library's A, of multiples of 4 rows, and scales by blocks: A's column by column, B's rows at multiples of 16
    bytes.
    """
    if dtype != "fp8_block":
        return a, scale_a, scale_b
    padded = torch.nn.functional.pad(scale_b, (0, -scale_b.shape[1] % 4))[:, : scale_b.shape[1]]
    rows = -len(a) % 4
    a = torch.cat([a.view(torch.uint8), a.view(torch.uint8)[:rows]]).view(a.dtype)
    return a, torch.cat([scale_a, scale_a[:rows]]).t().contiguous().t(), padded


def error_of(out, expected) -> float:
    return ((out.float() - expected.float()).norm() / expected.float().norm()).item()


def graph_of(call, bs) -> torch.cuda.CUDAGraph:
    """20 calls, over the copies of B in turn."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(bs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(20):
            call(bs[i % len(bs)])
    return graph


def measure(dtype: str, variants: list[Variant], shape: tuple[int, int, int], rounds: int = 5) -> None:
    m, n, k = shape
    copies = max(2, min(8, -(-128 * 2**20 // (n * k))))
    a, bs, c, sa, sb = operands(dtype, m, n, k, copies)
    its_a, its_sa, its_sb = in_its_layout(dtype, a, sa, sb)
    expected = library(dtype, its_a, bs[0], torch.empty_like(c), its_sa, its_sb)[:m].clone()
    graphs, errors = {}, {}
    calls = {"library": partial(library, dtype)} | {v.name: v.launch for v in variants}
    for name, call in calls.items():
        try:
            c.fill_(float("nan"))
            given = (its_a, its_sa, its_sb) if name == "library" else (a, sa, sb)
            out = call(given[0], bs[0], c, *given[1:])
            errors[name] = error_of(out[:m] if name == "library" else c, expected)
            if not errors[name] < 0.01:
                raise ValueError(f"wrong at {shape}: {errors[name]:.1e}")
            graphs[name] = graph_of(lambda b, call=call, given=given: call(given[0], b, c, *given[1:]), bs)
        except Exception as error:  # noqa: BLE001  the others go on
            print(f"  {name}: {type(error).__name__} {str(error)[:200]}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds + 1):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number:
                times[name].append(begin.elapsed_time(end) / 20 * 1e3)
    medians = {name: statistics.median(each) for name, each in times.items()}
    lib = medians.pop("library")
    best = min(medians, key=lambda name: medians[name])
    cells = " ".join(f"{medians[v.name] / lib:5.3f}" if v.name in medians else "    -" for v in variants)
    print(f"{m:5} {n:6} {k:6} {lib:8.1f} {2 * m * n * k / lib / 1e6:5.0f} {cells}  {medians[best] / lib:.3f} {best}; "
          f"worst error {max(errors.values()):.1e}", flush=True)  # fmt: skip


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--dtype", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    given = parser.parse_args()
    need_gpu(parser)
    for dtype in given.dtype:
        print(dtype, *(f"column {place}: {each.name}" for place, each in enumerate(VARIANTS[dtype], 1)), sep="\n")
    for shape, dtype in itertools.product(SHAPES, given.dtype):
        print(f"{dtype:9}", end="")
        measure(dtype, VARIANTS[dtype], shape)


if __name__ == "__main__":
    main()
