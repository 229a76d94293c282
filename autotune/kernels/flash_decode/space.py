"""The joint space of flash decode, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

import itertools

from autotune.config import Config, in_turns
from autotune.dtypes import WGMMA_ROWS, multiplies
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.launching.mode import peer_atomics
from autotune.kernels.untuned import soonest_protocols
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.sizes import round_up
from autotune.task import Task

SEVERAL_KERNELS = ("bsp", "iris_all_gather", "fine_grained_wait")
"""Modes whose calls are several launches, always."""
OWN_EXCHANGE = ("iris_all_gather", "fine_grained_wait", "fused")
"""Modes whose exchange is ours."""
OVERLAPPING = ("fine_grained_wait", "fused")
"""Modes whose combination waits block by block."""

MOST_WAVES = 8
"""Programs of the attention for each compute unit: their shares are equal, so that more only cost."""

SPECIALIZED: dict[str, str | int] = {
    "block_n": 64,
    "num_warps": 8,
    "num_stages": 2,
    "reducer": "kernel",
    "table_reads": "in_step",
}
"""Values that go with ``loads=specialized``: two steps and 64 queries fill the shared memory."""

REGISTER_ELEMENTS = 32
"""fp32 elements of a tile, or LL words of 64 bits, that a thread may hold while it merges."""


def _heads_in_group(s: Task[FlashDecode], heads_per_program: int) -> bool:
    return heads_per_program <= round_up(s.problem.group)


def _tile_in_transfer(s: Task[FlashDecode], combine_heads: int, transfer_heads: int) -> bool:
    return combine_heads <= transfer_heads


def _transfer_in_program(s: Task[FlashDecode], transfer_heads: int, heads_per_program: int) -> bool:
    return transfer_heads <= heads_per_program


def _have_one_owner(problem: FlashDecode, heads: int) -> bool:
    """True if no rank's share of the heads begins within a block of ``heads`` heads of a group."""
    shares = range(0, problem.q_heads, problem.owned_heads or problem.q_heads)
    return all(first % problem.group % heads == 0 for first in shares)


def _transfer_has_one_owner(s: Task[FlashDecode], transfer_heads: int) -> bool:
    return _have_one_owner(s.problem, transfer_heads)


def _tile_has_one_owner(s: Task[FlashDecode], combine_heads: int) -> bool:
    return _have_one_owner(s.problem, combine_heads)


def _owners_keep(s: Task[FlashDecode], exchange: str) -> bool:
    return exchange != "two_shot" or not s.problem.owned_heads


def _tile_in_program(s: Task[FlashDecode], combine_heads: int, heads_per_program: int) -> bool:
    return combine_heads <= heads_per_program


def _merging_threads(s: Task[FlashDecode], num_warps: int) -> int:
    # Kernels that only reduce or combine have four warps.
    return int(s.machine.warp_size) * min(4, num_warps)


def _merge_fits(s: Task[FlashDecode], combine_heads: int, num_warps: int) -> bool:
    return combine_heads * int(s.problem.head_dim) <= REGISTER_ELEMENTS * _merging_threads(s, num_warps)


def _polled_words(s: Task[FlashDecode], combine_heads: int) -> int:
    return round_up(s.problem.world_size) * combine_heads * int(s.problem.head_dim)


def _words_fit(s: Task[FlashDecode], protocol: str, wire: str, combine_heads: int, num_warps: int) -> bool:
    words = _polled_words(s, combine_heads) // (2 if wire == "rounded" else 1)  # rounded ones are polled in pairs
    return protocol == "signal" or words <= REGISTER_ELEMENTS * _merging_threads(s, num_warps)


def _words_for_threads(s: Task[FlashDecode], protocol: str, combine_heads: int, num_warps: int) -> bool:
    # Kernels that only reduce or combine have four warps, the attending one may have more.
    return protocol == "signal" or _polled_words(s, combine_heads) >= int(s.machine.warp_size) * max(4, num_warps)


def _ll_hold_fp32(s: Task[FlashDecode], protocol: str, wire: str) -> bool:
    return protocol != "ll" or wire == "fp32"


def _words_go_once(s: Task[FlashDecode], protocol: str, exchange: str) -> bool:
    return protocol == "signal" or exchange == "one_shot"


def _words_arrive(s: Task[FlashDecode], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _programs_have_steps(s: Task[FlashDecode], programs_per_head: int, block_n: int) -> bool:
    return (programs_per_head - 1) * block_n < s.problem.batch * s.problem.kv_len


def _no_longer_than_sequence(s: Task[FlashDecode], block_n: int) -> bool:
    return block_n <= max(16, round_up(s.problem.kv_len))


def _head_by_head(s: Task[FlashDecode], reducer: str, program_order: str, combine_site: str) -> bool:
    return reducer != "last" or program_order == "tokens" or combine_site == "next_launch"


def _one_sequence_after_another(s: Task[FlashDecode], reducer: str) -> bool:
    return reducer != "last" or not s.problem.invariant


def _few_waves(s: Task[FlashDecode], programs_per_head: int, heads_per_program: int) -> bool:
    programs = _head_blocks(s.problem, heads_per_program) * programs_per_head
    return programs_per_head == 1 or programs <= MOST_WAVES * s.machine.compute_units


def _fits_shared_memory(s: Task[FlashDecode], block_n: int, num_stages: int, heads_per_program: int) -> bool:
    # A step is computed from its buffer while the others are being filled: one buffer less than stages; but one more
    # where 64 rows make asynchronous products of it, which read it while the next copies begin, and on gfx950, whose
    # loads go straight to the LDS.
    heads = max(16, heads_per_program)
    step = block_n * s.problem.token_elements
    query = heads * (s.problem.key_dim + block_n)
    buffers = num_stages if heads >= 64 or s.machine.arch == "gfx950" else max(1, num_stages - 1)
    # A cache of fp8 is multiplied in the queries' type: one step more, converted.
    size, cached = int(s.problem.element_size), int(s.problem.cache_element_size)
    taken = buffers * step * cached + query * size + (step * size if cached < size else 0)
    if s.problem.rope and num_stages == 1 and heads < 64:
        # A latent's values stay in their buffer, so the sum changes its layout beside them.
        width, queries = s.problem.head_dim, heads * s.problem.key_dim * size
        taken = max(taken, block_n * width * size + heads * width * 4 + queries)
    return bool(taken <= s.machine.shared_memory)


def _cache_multiplied(s: Task[FlashDecode], mode: str) -> bool:
    return multiplies(s.machine.kind, s.machine.arch, s.problem.cache_dtype)


def _fits_registers(s: Task[FlashDecode], heads_per_program: int, block_n: int, num_warps: int) -> bool:
    return max(16, heads_per_program) * max(int(s.problem.head_dim), block_n) <= 128 * 32 * num_warps


def _loads_fit_registers(s: Task[FlashDecode], block_n: int, num_warps: int) -> bool:
    # On AMD a step's keys and values are held in registers on the way to the LDS.
    threads = int(s.machine.warp_size) * num_warps
    tiles = 1 if s.problem.rope else 2
    return s.machine.kind != "hip" or tiles * block_n * int(s.problem.head_dim) <= 2 * REGISTER_ELEMENTS * threads


def _feeds_every_warp(s: Task[FlashDecode], block_n: int, num_warps: int, heads_per_program: int) -> bool:
    # Asynchronous products, of 64 rows, have these shared out over four warps.
    beside = 4 if heads_per_program >= 64 and s.machine.kind == "cuda" else 1
    return block_n * beside >= 8 * num_warps


def _loads_a_latent(s: Task[FlashDecode], loads: str) -> bool:
    p = s.problem
    latent = (p.head_dim, p.rope) == (512, 64) and p.cache_element_size == 2 and not p.soft_cap
    return loads == "pipelined" or (latent and s.machine.arch == "sm_90" and not p.invariant)


def _fills_shared_memory(s: Task[FlashDecode], loads: str, heads_per_program: int, **step: str | int) -> bool:
    heads = min(WGMMA_ROWS, round_up(s.problem.group))
    return loads == "pipelined" or (step == SPECIALIZED and heads_per_program == heads)


def _peers_exist(s: Task[FlashDecode], exchange: str) -> bool:
    return exchange != "two_shot" or s.problem.world_size > 1


def _graphs_exist(s: Task[FlashDecode], launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


SPACE = Space(
    choices("mode", "bsp", "iris_all_gather", "fine_grained_wait", "fused", help="communication strategy",
            say={"bsp": "the library's kernels one after the other (BSP)",
                 "iris_all_gather": "our all-gather between two kernels",
                 "fine_grained_wait": "one kernel waits for each part of the other",
                 "fused": "fused: one kernel attends, sends and combines"}),
    choices("launch", "eager", "graph", modes=SEVERAL_KERNELS, help="one by one, or as a CUDA graph",
            say={"eager": "launched one by one", "graph": "launched as a CUDA graph"}),
    numbers("block_n", 16, 32, 64, 128, 256, help="KV tokens of one step", say="{block_n} KV tokens per step"),
    numbers("programs_per_head", 1, 2, 3, 4, 5, 6, 8, 11, 12, 16, 19, 22, 25, 32, 33, 38, 44, 50, 64, 66, 76, 88,
            101, 128, 132, 152, 202, 264, 304, 528, 608,
            help="programs that share the batch's KV tokens equally, for each block of query heads of a KV head",
            say="{programs_per_head:program} per block of heads"),
    numbers("heads_per_program", 1, 2, 4, 8, 16, 32, 64, help="query heads of one KV head that a program takes",
            say="{heads_per_program:query head} per program"),
    numbers("num_warps", 2, 4, 8, help="warps of an attending program", say="{num_warps:warp}"),
    numbers("num_stages", 1, 2, 3, 4, 5, help="depth of the software pipeline", say="{num_stages:pipeline stage}"),
    choices("loads", "pipelined", "specialized", help="a step's loads: ahead, or by warps of their own",
            say={"pipelined": "", "specialized": "loads by warps of their own"}),
    choices("table_reads", "in_step", "ahead", help="prefetch the block table one step ahead",
            say={"in_step": "", "ahead": "block table read one step ahead"}),
    choices("program_order", "heads", "tokens", help="which dimension varies fastest across program ids",
            say="{program_order} vary fastest"),
    choices("reducer", "last", "trailing", "kernel",
            help="who reduces the parts of a sequence: the last of its programs, extra ones, or a second kernel",
            say={"last": "a sequence's last program reduces", "trailing": "trailing programs reduce",
                 "kernel": "a kernel of its own reduces"}),
    numbers("transfer_heads", 1, 2, 4, 8, 16, modes=OWN_EXCHANGE,
            help="transfer granularity: heads that one signal covers", say="{transfer_heads:head} per signal"),
    numbers("combine_heads", 1, 2, 4, 8, 16, help="heads per tile of the reduction and the combination",
            say="{combine_heads:head} combined at once"),
    choices("wire", "fp32", "rounded", help="partial results are sent in fp32, or rounded to the problem's type",
            say={"fp32": "partial results in fp32", "rounded": "partial results rounded"}),
    choices("exchange", "one_shot", "two_shot", modes=OVERLAPPING,
            help="every rank combines all heads, or each rank a share, whose output it then sends to all",
            say={"one_shot": "one-shot exchange", "two_shot": "two-shot exchange"}),
    choices("combine_site", "same_launch", "next_launch", modes=("fused",),
            help="place of the combination: after the push in its launch, or in the next launch",
            say={"same_launch": "", "next_launch": "combined in the next launch"}),
    choices("protocol", "signal", "ll", "sentinel", modes=("fused",),
            help="data, then a signal; or in one trip: LL, words of data and flag; sentinel, words of data alone",
            say={"signal": "data, then a signal", "ll": "LL words of data and flag",
                 "sentinel": "sentinel words: data alone"}),
    constraints=(
        Constraint("element type", ("mode",), _cache_multiplied,
                   "not an fp8 of this machine: sm_89 and later and gfx950 have fp8 and fp8_e5m2, gfx942 has fp8_fnuz"),
        Constraint("heads of a group", ("heads_per_program",), _heads_in_group,
                   "a program's query heads share one KV head; rounding to a power of two may exceed the group"),
        Constraint("tile within the transfer", ("combine_heads", "transfer_heads"), _tile_in_transfer,
                   "a tile has no more heads than one transfer", modes=OWN_EXCHANGE),
        Constraint("transfer within the program", ("transfer_heads", "heads_per_program"), _transfer_in_program,
                   "a transfer has no more heads than one program", modes=OWN_EXCHANGE),
        Constraint("one owner", ("transfer_heads",), _transfer_has_one_owner,
                   "result=heads: the heads of one transfer belong to one rank", modes=OWN_EXCHANGE),
        Constraint("one owner of a tile", ("combine_heads",), _tile_has_one_owner,
                   "result=heads: the heads of one tile belong to one rank", modes=("bsp",)),
        Constraint("owners keep", ("exchange",), _owners_keep,
                   "result=heads: who combines a head keeps it; there is nothing to send back"),
        Constraint("tile within the program", ("combine_heads", "heads_per_program"), _tile_in_program,
                   "a tile has no more heads than one program", modes=("bsp",)),
        Constraint("registers of a merge", ("combine_heads", "num_warps"), _merge_fits,
                   "the tile of a merge needs more than 32 registers per thread"),
        Constraint("words in registers", ("protocol", "wire", "combine_heads", "num_warps"), _words_fit,
                   "all ranks' LL or sentinel words of a tile are held at once, 32 per thread at most"),
        Constraint("words for all threads", ("protocol", "combine_heads", "num_warps"), _words_for_threads,
                   "with fewer LL or sentinel words than threads, two threads could see the same word differently"),
        Constraint("LL words hold fp32", ("protocol", "wire"), _ll_hold_fp32, "LL words carry fp32"),
        Constraint("words go one way", ("protocol", "exchange"), _words_go_once,
                   "LL and sentinel words go only to whoever combines them; finished outputs need a signal"),
        Constraint("words arrive", ("protocol",), _words_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("no longer than the sequence", ("block_n",), _no_longer_than_sequence,
                   "a step may exceed the sequence only by rounding up to a power of two"),
        Constraint("steps for each program", ("programs_per_head", "block_n"), _programs_have_steps,
                   "a program would get no token even if all sequences are as long as they may be"),
        Constraint("head by head", ("reducer", "program_order", "combine_site"), _head_by_head,
                   "the last program of a sequence waits for the peers' where programs vary fastest by tokens",
                   modes=("fused",)),
        Constraint("the same bits", ("reducer",), _one_sequence_after_another,
                   "an invariant problem shares out each sequence by itself, and a program that comes last to some of "
                   "them would have to remember which"),
        Constraint("waves", ("programs_per_head", "heads_per_program"), _few_waves,
                   "more than 8 programs per compute unit only add to the reduction"),
        Constraint("registers", ("heads_per_program", "block_n", "num_warps"), _fits_registers,
                   "the fp32 accumulator or the logits need more than 128 registers per thread"),
        Constraint("registers of a step", ("block_n", "num_warps"), _loads_fit_registers,
                   "on AMD the keys and values of a step need more than 32 registers per thread"),
        Constraint("a warp's share", ("block_n", "num_warps", "heads_per_program"), _feeds_every_warp,
                   "a warp gets less than 8 tokens of a step"),
        Constraint("shared memory", ("block_n", "num_stages", "heads_per_program"), _fits_shared_memory,
                   "the pipeline's stages do not fit into a program's shared memory"),
        Constraint("warps of their own", ("loads",), _loads_a_latent,
                   "warps of their own load steps of a latent cache of 512 + 64 elements in bf16 or fp16, on sm_90, "
                   "without soft cap, and not where results are invariant"),
        Constraint("a specialized step", ("loads", "heads_per_program", *SPECIALIZED), _fills_shared_memory,
                   "warps of their own load two steps of 64 tokens, for all query heads up to 64: block_n=64, "
                   "num_warps=8, num_stages=2, reducer=kernel, table_reads=in_step"),
        Constraint("peers", ("exchange",), _peers_exist, "a single rank has no peer to share the combination with"),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
        *peer_atomics(["fused"], ["iris_all_gather", "fine_grained_wait"]),
    ),
)  # fmt: skip


def default_config(task: Task[FlashDecode]) -> Config:
    """One launch that does it all, by programs that fill the machine; parts that arrive within a trip go as words.
    Without atomics on a peer's memory the library's way.
    """
    fused = _fused(task)
    if task.machine.has_peer_atomics or task.problem.world_size == 1:
        return SPACE.first_valid(fused, task) or fused[-1]
    return SPACE.first_valid((of_mode("bsp", each, "eager") for each in fused), task) or fused[-1]


def _fused(task: Task[FlashDecode]) -> list[Config]:
    widths = (64, 16) if task.problem.rope else (16,)
    usual = [_usual(task, min(heads, round_up(task.problem.group))) for heads in widths]
    specialized = [Config({**each, "loads": "specialized", **SPECIALIZED}) for each in usual[0] if task.problem.rope]
    return [*dict.fromkeys(specialized), *itertools.chain(*usual)]


def of_mode(mode: str, config: Config, launch: str) -> Config:
    """The local kernels of a config in a mode of several launches."""
    names = {d.name for d in SPACE.dimensions_of(mode)}
    return Config({name: value for name, value in {**config, "mode": mode, "launch": launch}.items() if name in names})


def _usual(task: Task[FlashDecode], heads: int) -> list[Config]:
    """The default with so many heads per program, by its steps: the first one that fits is the best."""
    transfer_heads = _few_transfers(task, heads)
    config = Config(
        {
            "mode": "fused",
            "block_n": 64,
            "programs_per_head": _filling_programs(task, heads),
            "heads_per_program": heads,
            "num_warps": 4,
            "num_stages": 4 if task.machine.kind != "hip" else 2,
            "loads": "pipelined",
            # With an entry more than the step's, 2 words spill on Blackwell.
            "table_reads": "in_step" if task.machine.arch in ("sm_100", "sm_103") else "ahead",
            "program_order": "heads",
            "reducer": "trailing",
            "transfer_heads": transfer_heads,
            "combine_heads": min(4, transfer_heads),
            "wire": "fp32",
            "exchange": "one_shot",
            "combine_site": "same_launch",
            "protocol": "signal",
        }
    )
    protocols = soonest_protocols(task, task.problem.bytes_moved)
    # Wide heads, a small LDS, short sequences: a smaller step fits where the usual one does not.
    stages = int(config["num_stages"])
    steps = [(64, 4, stages), (32, 4, stages), (16, 2, stages)]
    if task.problem.rope:  # two steps' keys fill the shared memory
        warps = 8 if heads == 64 else 4
        steps = [(64, warps, 3), (64, warps, 2), (32, 4, 2), (16, 2, 2), (16, 2, 1)]
    return [
        config.replace(block_n=n, num_warps=warps, num_stages=depth, protocol=protocol)
        for (n, warps, depth), protocol in itertools.product(steps, protocols)
    ]


def _head_blocks(problem: FlashDecode, heads: int) -> int:
    return problem.kv_heads * -(-problem.group // heads)


def _few_transfers(task: Task[FlashDecode], heads: int) -> int:
    """The fewest heads per transfer that leave at most two trailing programs for each compute unit, of one owner."""
    transfer_heads = 1
    while (
        transfer_heads < heads
        and task.problem.batch * _head_blocks(task.problem, heads) * heads
        > 2 * task.machine.compute_units * transfer_heads
    ):
        if not _have_one_owner(task.problem, 2 * transfer_heads):
            break
        transfer_heads *= 2
    return transfer_heads


def _filling_programs(task: Task[FlashDecode], heads: int) -> int:
    """The most programs that are at most two for each compute unit, of a latent one, which takes its shared memory, and
    have a step of 64 tokens each; at least one.
    """
    blocks, problem = _head_blocks(task.problem, heads), task.problem
    resident = 1 if problem.rope else 2
    useful = [
        int(programs) for programs in SPACE.dimensions["programs_per_head"].values
        if (int(programs) - 1) * 64 < problem.batch * problem.kv_len
        and int(programs) * blocks <= resident * task.machine.compute_units
    ]  # fmt: skip
    return max(useful, default=1)


def first_configs(task: Task[FlashDecode]) -> list[Config]:
    """The default's local kernels in every mode, and the other ways to fuse."""
    default = default_config(task)
    base = default if default["mode"] == "fused" else _fused(task)[0]
    fused = [
        *(base.replace(protocol=protocol) for protocol in ("signal", "ll", "sentinel")),
        base.replace(reducer="last", program_order="tokens", protocol="signal"),  # of words polled, too, 4 to 6 spill
        base.replace(reducer="kernel", combine_site="next_launch"),
        base.replace(exchange="two_shot", wire="rounded", protocol="signal"),
    ]
    if task.problem.rope and base["loads"] == "pipelined":  # deeper pipelines of smaller steps
        smaller = base.replace(block_n=32, num_stages=4)
        fused = [smaller, smaller.replace(num_warps=4, heads_per_program=32), *fused]
    launched = "eager" if task.machine.is_interpreter else "graph"
    others = [of_mode(mode, base, launched) for mode in SEVERAL_KERNELS]
    if SPACE.first_valid(fused, task) is None:
        fused = list(itertools.islice(SPACE.enumerate(task, "fused"), 1))
    return list(SPACE.valid([default, *in_turns([fused, others])], task))
