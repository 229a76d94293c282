"""What a size off the grid of tiles costs: each mode's time there over its time at the next friendly size.

    python bench/cliffs.py --world-size 2      every case and mode: rows, columns, depth, tokens, heads, pages
    python bench/cliffs.py --toy               tiny problems under Triton's interpreter: does it work at all?

Both sizes run the same config, the mode's first that is valid for both, checked and measured in turns. A line has the
worst ratio of a case and a mode: with fewer than 256 rows, with more, and with other dimensions off the grid.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from arguments import demand_gpus, new_parser, whole
from tables import head, row

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.machine import machine
from autotune.ranks.evaluation import MeasurePlan, warm_from
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload

ROUNDS = 3
MANY = 256
"""Rows of all ranks from which on a cliff matters most."""

Sizes = Mapping[str, Any]
Shapes = tuple[tuple[Sizes, Sizes], ...]
"""Fields off the grid, and the next friendly ones."""

ROWS = (1, 17, 127, 129, 357, 1000, 1023, 1500)
FEW_ROWS = (17, 129, 1000)


@dataclass(frozen=True)
class Case:
    workload: str
    fields: Sizes
    """All but those off the grid: of one rank where they are ``sharded``."""
    sharded: tuple[str, ...] = ()
    axis: str = "m"
    off: tuple[int, ...] = ROWS
    friendly: int = 128
    shapes: Shapes = ()
    """Beside a friendly number of rows, the fields'."""

    def whole(self, sizes: Sizes, ranks: int) -> dict[str, Any]:
        return {name: value * ranks if name in self.sharded else value for name, value in sizes.items()}

    def groups(self, ranks: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Each friendly size, and the ones off the grid to be compared with it."""
        for up in sorted({-(-size // self.friendly) * self.friendly for size in self.off}):
            below = [size for size in self.off if up - self.friendly < size <= up]
            friendly, *off = ({**self.fields, self.axis: size} for size in (up, *below))
            yield self.whole(friendly, ranks), [self.whole(each, ranks) for each in off]
        for fields, near in self.shapes:
            yield self.whole({**self.fields, **near}, ranks), [self.whole({**self.fields, **fields}, ranks)]


def pairs(**fields: dict[int, int]) -> Shapes:
    """Sizes off the grid and the next friendly ones, field by field."""
    return tuple(({name: off}, {name: near}) for name, sizes in fields.items() for off, near in sizes.items())


GATHER = {"m": 1024, "n": 14336, "k": 4096, "b_order": "nk"}
SCATTER = {"m": 1024, "n": 4096, "k": 7168, "b_order": "nk"}
REDUCE = {"m": 1024, "n": 5120, "k": 12800, "b_order": "nk"}
EXPERTS = {"tokens": 256, "hidden": 4096, "experts": 64, "top_k": 8}
WIDE = {**EXPERTS, "width": 768, "b_order": "nk"}
DECODE = {"batch": 8, "q_heads": 64, "kv_heads": 8, "head_dim": 128, "kv_len": 8192, "page_size": 16}

ROWS_AND_K, K = ("m", "k"), ("k",)
OTHER_NK = pairs(n={360: 512, 1448: 1536, 3696: 3840}, k={360: 384, 1448: 1472, 2880: 2944})
OTHER_HEADS = ({"q_heads": 40, "kv_heads": 5}, {"q_heads": 48, "kv_heads": 6})
OTHER_DECODES = (*pairs(batch={3: 4, 7: 8}, page_size={1: 16, 7: 8}, q_heads={56: 64}), OTHER_HEADS)
ODD_TOKENS: Any = {"axis": "tokens", "off": (1, 3, 17, 61, 127, 357), "friendly": 16}
ODD_LENGTHS: Any = {"axis": "kv_len", "off": (129, 1000, 4097, 8191), "friendly": 1024}
HIDDEN = pairs(hidden={2880: 3072})


def few_rows(workload: str, fields: Sizes, sharded: tuple[str, ...], **others: Any) -> Case:
    return Case(workload, {**fields, **others}, sharded, off=FEW_ROWS)


def gather(**others: Any) -> Case:
    return few_rows("all_gather_gemm", GATHER, ("m", "n"), **others)


CASES: dict[str, Case] = {
    "all-gather-gemm": Case("all_gather_gemm", GATHER, ("m", "n"), shapes=OTHER_NK),
    "all-gather-gemm kn": gather(b_order="kn"),
    "all-gather-gemm k": few_rows("all_gather_gemm", GATHER, ("n", "k"), k=2048, layout="k"),
    "all-gather-gemm swiglu": gather(epilogue="swiglu"),
    "all-gather-gemm fp8": gather(dtype="fp8", scales="row"),
    "all-gather-gemm fp8 blocks": gather(dtype="fp8", scales="block"),
    "gemm-reduce-scatter": Case("gemm_reduce_scatter", SCATTER, ROWS_AND_K, shapes=OTHER_NK),
    "gemm-reduce-scatter fp8": few_rows("gemm_reduce_scatter", SCATTER, ROWS_AND_K, dtype="fp8", scales="row"),
    "gemm-all-reduce": Case("gemm_all_reduce", REDUCE, K, shapes=OTHER_NK),
    "gemm-all-reduce-norm": few_rows("gemm_all_reduce_norm", REDUCE, K),
    "all-reduce-norm": Case("all_reduce_norm", {"m": 1024, "n": 8192}, shapes=pairs(n={2880: 3072, 5120: 6144})),
    "flash-decode": Case("flash_decode", DECODE, **ODD_LENGTHS, shapes=OTHER_DECODES),
    "moe-dispatch": Case("moe_dispatch", EXPERTS, **ODD_TOKENS),
    "moe-dispatch-gemm": Case("moe_dispatch_gemm", WIDE, **ODD_TOKENS, shapes=HIDDEN),
    "moe-gemm-combine": Case("moe_gemm_combine", WIDE, **ODD_TOKENS, shapes=pairs(width={720: 768})),
    "moe-combine": Case("moe_combine", EXPERTS, **ODD_TOKENS, shapes=HIDDEN),
}
TINY = {"m": 16, "n": 32, "k": 32}
TOY = {"toy": Case("all_gather_gemm", TINY, ("m", "n"), off=(3, 17), friendly=16, shapes=pairs(k={24: 32}))}


@dataclass(frozen=True)
class Ratio:
    mode: str
    off: dict[str, Any]
    friendly: dict[str, Any]
    value: float

    @property
    def moved(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.off.items() if self.friendly[name] != size)


def measured(gang: Gang, screen: Screen, case: Case, ranks: int, plan: MeasurePlan) -> Iterator[Ratio]:
    found = workload(case.workload)
    dtype = {"dtype": "fp32"} if machine().is_interpreter else {}
    for friendly, off in case.groups(ranks):
        every = [friendly, *off]
        try:
            tasks = [Task(found.problem_type(**{**dtype, **each}, world_size=ranks), machine()) for each in every]
        except InvalidProblem as error:
            print(f"left out: {error}", flush=True)
            continue
        candidates = [*found.baselines(tasks[0]).values(), *found.first_configs(tasks[0])]
        chosen: list[dict[str, Config]] = []
        for task in tasks[1:]:
            valid = [c for c in candidates if all(found.space.violation(c, each) is None for each in (tasks[0], task))]
            chosen.append({str(config["mode"]): config for config in reversed(valid)})
        at_each = [[config for configs in chosen for config in configs.values()], *([*c.values()] for c in chosen)]
        compile_all(screen, found, zip(tasks, at_each, strict=True))
        times: dict[tuple[Config, int], list[float]] = {}
        for turn in range(ROUNDS):
            for place in range(len(tasks)) if turn % 2 else reversed(range(len(tasks))):
                gang.turn_to(found, tasks[place].problem)
                for config in dict.fromkeys(at_each[place]):
                    result = gang.evaluate(config, turn, plan)
                    if result.latency is not None:
                        times.setdefault((config, place), []).append(result.latency.median)
        for place, configs in enumerate(chosen, start=1):
            for mode, config in configs.items():
                here, there = times.get((config, place)), times.get((config, 0))
                if here and there:
                    yield Ratio(mode, every[place], friendly, statistics.median(here) / statistics.median(there))


def compile_all(screen: Screen, found: Any, wanted: Iterable[tuple[Task[Any], Iterable[Config]]]) -> None:
    """Side by side: the ranks, which find it in Triton's cache, would compile one after the other."""
    compiling = []
    for task, configs in wanted:
        screen.turn_to(found, task.problem)
        compiling += [(config, screen.submit(config)) for config in dict.fromkeys(configs)]
    for config, future in compiling:
        screen.verdict(config, future)


def worst(ratios: list[Ratio]) -> str:
    if not ratios:
        return "–"
    found = max(ratios, key=lambda ratio: ratio.value)
    return f"{found.value:.3f} ({found.moved})"


def lines(name: str, case: Case, ratios: list[Ratio]) -> Iterator[str]:
    for mode in dict.fromkeys(each.mode for each in ratios):
        ours = [each for each in ratios if each.mode == mode]
        shapes = [each for each in ours if each.off[case.axis] == each.friendly[case.axis]]
        sizes = [each for each in ours if each not in shapes]
        many = [each for each in sizes if each.off[case.axis] >= MANY]
        few = [each for each in sizes if each not in many]
        yield row([name, mode, *map(worst, (few, many, shapes))])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="a case, again for more; default: all")
    parser.add_argument("--world-size", type=whole, default=2, help="ranks; default: 2")
    parser.add_argument("--toy", action="store_true", help="tiny problems under Triton's interpreter")
    given = parser.parse_args()
    demand_gpus(parser, given.toy)
    here = machine()
    plan = replace(MeasurePlan(0, 1, 1) if given.toy else MeasurePlan(4, 20, 20), warm_from=warm_from(here))
    cases = TOY if given.toy else {name: CASES[name] for name in given.only or CASES}
    first = workload(next(iter(cases.values())).workload)
    problem = first.default_problem(here, given.world_size)
    print(head(["case", "mode", f"fewer than {MANY}", f"{MANY} and more", "other dimensions"], "ll"))
    task = Task(problem, here)
    with Screen(first, task) as screen, closing(Gang(first, task, 1 << 26 if given.toy else 4 << 30)) as gang:
        gang.start()
        for name, case in cases.items():
            ratios = list(measured(gang, screen, case, given.world_size, plan))
            print("\n".join(lines(name, case, ratios)), flush=True)


if __name__ == "__main__":
    main()
