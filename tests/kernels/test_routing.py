"""A mixture's routing: its plan on every rank as torch has it; drawn, or as a recorded popularity of experts has it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mode import whole
from ranks_of_functions import run_ranks

import autotune
from autotune.errors import InputError
from autotune.heap import open_heap
from autotune.heap.status import new_status
from autotune.kernels.launching.plan import Launch
from autotune.kernels.moe.histogram import given_histogram, histogram_text, shares_of
from autotune.kernels.moe.plan import plan_kernel
from autotune.kernels.moe.problem import SLOTS, ExpertsProblem
from autotune.kernels.moe.routing import Routing, drawn_routing, planned, reached_ranks, typical_routing


def drawn_cases(world_size: int, count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    cases = []
    for number in range(count):
        local = rng.choice([1, 2, 3, 8])
        top_k = rng.randint(1, min(8, local * world_size))
        routing = rng.choice([{"routing": "uniform"}, {"routing": "zipf", "exponent": 1.2}])
        problem = {"tokens": rng.choice([1, 2, 7, 16, 33]), "experts": local * world_size, "top_k": top_k, **routing}
        launch = {"parts": rng.choice([1, 2, 3]), "ll": number % 2 == 0, "step": rng.choice([16, 64, 256])}
        cases.append({"problem": problem, "launch": launch, "seed": rng.randint(0, 999)})
    return cases


@pytest.mark.parametrize(
    ("world_size", "count", "seed", "gpu"),
    [
        (1, 2, 1, False), (2, 2, 2, False), (3, 2, 108, False), (4, 2, 108, False),
        whole(3, 2, 3, False), whole(4, 2, 4, False),
        pytest.param(2, 60, 11, False, marks=pytest.mark.slow),
        pytest.param(2, 200, 12, True, marks=pytest.mark.gpu(2)),
    ],
)  # fmt: skip
def test_plans_are_torchs(world_size: int, count: int, seed: int, gpu: bool, tmp_path: Path) -> None:
    """Of the seeds one draws small cases, in one or in several steps."""
    cases = drawn_cases(world_size, count, seed)
    found = run_ranks(__file__, "plans", world_size, tmp_path, gpu=gpu, argument=cases)
    assert found == [[True] * len(cases)] * world_size


def test_other_routings_differ_in_the_inputs_alone_and_one_has_an_expert_that_all_tokens_choose() -> None:
    sizes = {"tokens": 9, "hidden": 8, "experts": 6, "top_k": 3, "world_size": 3}
    problem = ExpertsProblem(**sizes, routing="zipf", exponent=1.0)
    others = problem.other_routings()
    assert list(others) == ["uniform", "one expert"], "without its own"
    assert list(ExpertsProblem(**sizes).other_routings()) == ["zipf 1", "one expert"]
    assert list(others["one expert"].other_routings()) == ["uniform", "zipf 1"]
    for other in others.values():
        differs = {name for name, value in other.as_dict().items() if value != problem.as_dict().get(name)}
        assert differs <= set(problem.of_inputs) and other.capacity == problem.capacity
    ids = drawn_routing(others["one expert"], torch.device("cpu"), 7).ids
    assert (ids == 0).any(-1).all() and set(ids.unique().tolist()) == set(range(6))


def test_the_reference_lists_each_pair_once_where_its_expert_is() -> None:
    problem = ExpertsProblem(tokens=9, hidden=8, experts=6, top_k=3, world_size=3)
    routing = drawn_routing(problem, torch.device("cpu"), 7, "holes")
    for rank in range(3):
        expected = [
            [
                (source * 9 + token) * 3 + place
                for source in range(3)
                for token in range(9)
                for place in range(3)
                if routing.ids[source, token, place] == rank * 2 + expert
            ]
            for expert in range(2)
        ]
        plan = planned(problem, routing, rank)
        bounds = plan.offsets.tolist()
        assert [plan.pairs[bounds[e] : bounds[e + 1]].tolist() for e in range(2)] == expected
        tokens = {pair // 3 for pairs in expected for pair in pairs}
        reached = reached_ranks(problem, routing.ids)[..., rank].flatten().nonzero().flatten()
        assert set(reached.tolist()) == tokens


def test_a_rank_with_more_rows_than_room_has_no_gates_and_others_keep_theirs() -> None:
    """Each token names expert 0 three times, where it was to have two rows on a rank at most."""
    problem = ExpertsProblem(tokens=3, hidden=8, experts=4, top_k=3, world_size=2)
    ids = torch.zeros((2, 3, 3), dtype=torch.int32)
    lost = planned(problem, Routing(ids, torch.ones(ids.shape)), 0)
    assert lost.offsets.tolist() == [0, 6, 6] and bool(lost.gates.isnan().all()) and problem.capacity == 12
    assert lost.pairs[:6].tolist() == list(range(0, 18, 3)), "each token has a row"
    ids[..., 2] = 3
    for rank, offsets in ((0, [0, 12, 12]), (1, [0, 0, 6])):
        plan = planned(problem, Routing(ids, torch.ones(ids.shape)), rank)
        assert plan.offsets.tolist() == offsets and bool((plan.gates == 1).all())


def test_a_set_has_an_expert_that_all_choose_or_a_rank_without_tokens_by_its_seed() -> None:
    problem = ExpertsProblem(tokens=8, hidden=8, experts=6, top_k=2, world_size=3)
    alone = []
    for seed in range(6):
        ids = drawn_routing(problem, torch.device("cpu"), seed, "one expert").ids
        assert bool((ids[..., 0] == seed).all()) and len(ids[..., 1].unique()) > 1
        holes = drawn_routing(problem, torch.device("cpu"), seed, "holes").ids
        there = (holes >= 0).any(-1)
        assert [bool(tokens.any()) for tokens in there] == [rank != seed % 3 for rank in range(3)]
        assert not there[:, 7:].any()
        alone.append(float((holes[there] < 0).float().mean()))
        plain = drawn_routing(problem, torch.device("cpu"), seed).ids
        assert bool((plain >= 0).all()) and bool((holes[holes >= 0] == plain[holes >= 0]).all())
    assert 0.03 < sum(alone) / 6 < 0.3, "tokens that are there lack single ids"


def test_draws_follow_the_distribution() -> None:
    """Of 32 experts that are chosen one at a time the most popular has a quarter of the tokens, or a 32nd."""
    shares, popular = {}, set()
    for routing, exponent, tokens in (("uniform", 0.0, 4000), ("zipf", 1.0, 2000), ("zipf", 1.0, 4000)):
        problem = ExpertsProblem(
            tokens=tokens, hidden=8, experts=32, top_k=1, world_size=1, routing=routing, exponent=exponent
        )
        ids = drawn_routing(problem, torch.device("cpu"), 3).ids
        (expert, most), *_ = Counter(ids.flatten().tolist()).most_common(1)
        shares[routing] = most / tokens
        popular |= {expert} if routing == "zipf" else set()
    assert len(popular) == 1, "the same in every call"
    harmonic = sum(1 / i for i in range(1, 33))
    assert abs(shares["zipf"] * harmonic - 1) < 0.15 and shares["uniform"] < 1.4 / 32


@pytest.mark.parametrize(("tokens", "routing"), [(1, "uniform"), (4, "uniform"), (1, "zipf")])
def test_configs_are_timed_on_routings_that_differ_little_from_seed_to_seed(tokens: int, routing: str) -> None:
    problem = ExpertsProblem(
        tokens=tokens, hidden=8, experts=64, top_k=8, world_size=2, routing=routing, exponent=float(routing == "zipf")
    )

    def spread(draw: Callable[..., Routing]) -> float:
        """Of the most experts that a rank reads, from seed to seed."""
        every = [draw(problem, torch.device("cpu"), seed).ids.unique() for seed in range(200)]
        busiest = [float(torch.bincount(ids // 32).max()) for ids in every]
        return max(busiest) / min(busiest)

    assert spread(typical_routing) == 1.0 and spread(drawn_routing) > 1.4

    def of_rows(draw: Callable[..., Routing]) -> float:
        every = [draw(problem, torch.device("cpu"), seed).ids.flatten() // 32 for seed in range(60)]
        busiest = [float(torch.bincount(ranks).max()) for ranks in every]
        return max(busiest) / min(busiest)

    assert of_rows(typical_routing) < 1.1 and of_rows(drawn_routing) > 1.3
    kept = [typical_routing(problem, torch.device("cpu"), seed).ids for seed in (1, 1, 2)]
    assert torch.equal(kept[0], kept[1]) and not torch.equal(kept[0], kept[2]), "a seed has one, each its own"


def test_a_token_never_has_an_expert_twice_and_gates_are_shares_of_one_or_zero() -> None:
    problem = ExpertsProblem(tokens=50, hidden=8, experts=8, top_k=8, world_size=2)
    for kind in ("plain", "one expert", "holes"):
        drawn = drawn_routing(problem, torch.device("cpu"), 5, kind)
        for ids in drawn.ids.flatten(0, 1).tolist():
            chosen = [each for each in ids if each >= 0]
            assert len(set(chosen)) == len(chosen) and all(each < 8 for each in chosen)
        zero, total = drawn.gates == 0, drawn.gates.sum(-1)
        assert torch.allclose(total[~zero.any(-1)], torch.ones(())) and bool((total < 1 + 1e-6).all())
        assert bool((zero & torch.signbit(drawn.gates)).any() and (zero & ~torch.signbit(drawn.gates)).any())


SPIN_LIMIT = 1 << (26 if torch.cuda.is_available() else 14)
"""Polls. On GPUs a rank compiles for seconds while the other one waits for its routing."""


def plans(cases: list[dict[str, Any]]) -> list[bool]:
    """For each case whether the plans of several launches in a row, each with other routing, are all as in torch."""
    heap = open_heap(16 << 20, dist.new_group(backend="gloo"))
    found = []
    for case in cases:
        mark = heap.mark()
        problem = ExpertsProblem(hidden=8, world_size=heap.world_size, **case["problem"])
        found.append(_right(heap, problem, case["seed"], **case["launch"]))
        heap.barrier()
        heap.release(mark)
    return found


def _right(heap: Any, problem: ExpertsProblem, seed: int, *, parts: int, ll: bool, step: int) -> bool:
    world, pairs, device = problem.world_size, problem.tokens * problem.top_k, heap.device
    inbox = heap.allocate((SLOTS, world, 2, pairs), torch.int64 if ll else torch.int32).zero_()
    arrivals = heap.allocate((SLOTS, world), torch.int32).zero_()
    epoch, status = heap.allocate((1,), torch.int64).zero_(), new_status(heap)
    ids = torch.empty(problem.tokens, problem.top_k, dtype=torch.int32, device=device)
    gates = torch.empty(problem.tokens, problem.top_k, device=device)
    offsets = torch.empty(problem.local_experts + 1, dtype=torch.int32, device=device)
    listed = torch.empty(problem.capacity, dtype=torch.int32, device=device)
    listed_gates = torch.empty(problem.capacity, device=device)
    own_rows = torch.empty(problem.local_experts, 2, dtype=torch.int32, device=device)
    heap.barrier()
    launch = Launch(
        plan_kernel, parts + problem.local_experts,
        {"ids": ids, "gates": gates, "offsets": offsets, "listed": listed, "listed_gates": listed_gates,
         "own_rows": own_rows, "inbox": inbox, "arrivals": arrivals, "pairs": pairs, "local": problem.local_experts,
         "capacity": problem.capacity, "parts": parts, "rank": heap.rank, "heap_bases": heap.bases,
         "epoch_counter": epoch, "status": status, "spin_limit": SPIN_LIMIT, "WORLD": world, "LL": ll, "STEP": step},
        {"num_warps": 4},
    )  # fmt: skip
    right = []
    for number, kind in enumerate(("plain", "holes", "one expert", "plain")):
        routing = drawn_routing(problem, device, seed + number, kind)
        ids.copy_(routing.ids[heap.rank])
        gates.copy_(routing.gates[heap.rank])
        for each in (offsets, listed, listed_gates, own_rows):
            each.fill_(-1)
        launch.run()
        right.append(_agrees(problem, routing, heap.rank, offsets, listed, listed_gates, own_rows))
    return all(right) and not status[0].item()


def _agrees(problem: ExpertsProblem, routing: Routing, rank: int, *found: torch.Tensor) -> bool:
    """True if all rows that exist are the reference's, no others were written, and own rows are this rank's tokens."""
    expected = planned(problem, routing, rank)
    rows = int(expected.offsets[-1])
    offsets, pairs, gates, own_rows = found
    begin, end = own_rows.long().unbind(1)
    row = torch.arange(len(pairs), device=pairs.device)
    listed_as_own = ((row >= begin[:, None]) & (row < end[:, None])).any(0)
    own = (row < rows) & (expected.pairs // (problem.tokens * problem.top_k) == rank)
    return (
        torch.equal(offsets, expected.offsets)
        and torch.equal(listed_as_own, own)
        and torch.equal(pairs[:rows], expected.pairs[:rows])
        and torch.equal(gates[:rows], expected.gates[:rows])
        and bool((pairs[rows:] == -1).all())
    )


def file(folder: Path, text: str) -> Path:
    path = folder / "counts.txt"
    path.write_text(text)
    return path


def of_counts(counts: list[float], **fields: Any) -> ExpertsProblem:
    given = {"tokens": 4000, "hidden": 8, "experts": len(counts), "top_k": 1, "world_size": 1, **fields}
    return ExpertsProblem(**given, routing="recorded", histogram=histogram_text(counts))


@pytest.mark.parametrize("text", ["10 0 30 20", "1,0,3,2\n", "[100, 0, 300, 200]", "0.1\n0\n0.3\n0.2\n"])
def test_files_in_proportion_are_one_histogram(tmp_path: Path, text: str) -> None:
    found = autotune.recorded_histogram(file(tmp_path, text))
    assert found == histogram_text([1, 0, 3, 2]) and given_histogram(found) == found
    assert shares_of(found) == [432, 0, 1295, 863]
    assert found != histogram_text([1, 0, 3, 1])
    assert shares_of(histogram_text([1, 0, 100_000])) == [1, 0, 1295], "chosen at all"


@pytest.mark.parametrize(
    ("text", "told"),
    [("1 two", "two"), ("1 nan", "nan"), ("1 1e999", "1e999"), ('{"a": 1}', "number"), ("1 " * 600_000, "1048576")],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, text: str, told: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(InputError) as refused:
        autotune.recorded_histogram(path)
    assert told in str(refused.value) and str(path) in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, told in (("none", "No such file"), (".", "Is a directory"), ("binary", "not text"), ("\0", "not text")):
        with pytest.raises(InputError, match=told):
            autotune.recorded_histogram(tmp_path / name)


def test_draws_follow_the_counts_of_each_expert() -> None:
    ids = drawn_routing(of_counts([1, 0, 5, 2]), torch.device("cpu"), 3).ids
    shares = torch.bincount(ids.flatten().long(), minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([1 / 8, 0, 5 / 8, 2 / 8]), atol=0.03)


def test_experts_that_were_never_chosen_come_last() -> None:
    ids = drawn_routing(of_counts([1, 0, 1, 0], top_k=3, tokens=50), torch.device("cpu"), 3).ids
    assert {frozenset(each) & {0, 2} for each in ids[0].tolist()} == {frozenset({0, 2})}
    assert {each for token in ids[0].tolist() for each in token} == {0, 1, 2, 3}


def test_the_largest_number_of_experts_makes_a_short_key() -> None:
    """An index of PostgreSQL takes 2,700 bytes."""
    made = of_counts([float(each) for each in range(1024)])
    assert given_histogram(made.histogram) == made.histogram
    assert len(made.to_json()) < 2300 and len(str(made)) < 200
    assert ExpertsProblem.from_dict(json.loads(made.to_json())) == made
