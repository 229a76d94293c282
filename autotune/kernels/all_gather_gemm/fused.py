"""Our GEMM: each tile loads A from its owner, or waits for what programs of ours move into an inbox."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.all_gather_gemm.device import FETCH, NONE, PUSH, gather_gemm_kernel
from autotune.kernels.all_gather_gemm.modes import Ours, Pull, PullStaged, Push, Staged
from autotune.kernels.all_gather_gemm.problem import EPILOGUES, AllGatherGemm
from autotune.kernels.all_gather_gemm.pull import pull_gemm_kernel
from autotune.kernels.all_gather_gemm.push import push_kernel, return_kernel
from autotune.kernels.all_gather_gemm.scratch import Inbox
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.all_gather_gemm.way import GatherCall, GatherWay, of_shard, of_step, returned_of, scales_of_c
from autotune.kernels.launching.contract import MaybeS
from autotune.kernels.launching.gemm import Splits, halves_constant
from autotune.kernels.launching.one_program import barrier_launch, empty_launches
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.scratch import Counters
from autotune.kernels.launching.streams import side_stream
from autotune.kernels.launching.tensors import Allocate, Run
from autotune.kernels.launching.way import M

BLOCK = 2048
"""Elements that a program copies of the gathered A."""


class FusedWay(GatherWay[M, MaybeS]):
    def roundings(self, problem: AllGatherGemm) -> float:
        """The result alone; an activation comes before."""
        return 0.0 if problem.gated else 1.0


def _gemm(call: GatherCall[Any, Any]) -> dict[str, Any]:
    problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
    c = tensors.c.unflatten(0, (problem.world_size, problem.shard[0])) if _by_shard(problem, mode) else tensors.c
    return {
        **mode.common(call.task, tensors), **call.common(), **of_shard(call),
        "c": mode.c_operand(problem, c),
        "EPILOGUE": EPILOGUES.index(problem.epilogue), "HALVES": halves_constant(problem.halves, problem.n_local),
        "c_scales": scales_of_c(tensors), "N": problem.n_local, "result": tensors.c,
        "ready": scratch.ready, "done": scratch.done, "scale_a": None if problem.gathers_scales else tensors.scale_a,
    }  # fmt: skip


def _by_shard(problem: AllGatherGemm, mode: Ours) -> bool:
    return problem.tiled_by_shard(mode.block_m, mode.split_k)


def _tiles(problem: AllGatherGemm, mode: Ours) -> int:
    if _by_shard(problem, mode):
        return problem.world_size * mode.tiles(problem.shard[0], problem.n_local)
    return mode.tiles(problem.m, problem.n_local) * mode.split_k


class PullWay(FusedWay[Pull, Counters]):
    def peers_read(self, mode: Pull) -> bool:
        return True

    def scratch(self, task: GatherTask, mode: Pull, shared: Allocate, own: Allocate) -> Counters:
        return Counters.of(task.problem.world_size, shared)

    def launches(self, call: GatherCall[Pull, Counters]) -> list[Launch]:
        """One program per tile or persistent."""
        problem, mode, programs = call.problem, call.knobs, _tiles(call.problem, call.knobs)
        if mode.schedule != "tile":
            programs = min(programs, call.machine.compute_units)
        segments = {"BY_SHARD": _by_shard(problem, mode), "EVEN_K": problem.shard[1] % mode.block_k == 0}
        return [Launch(pull_gemm_kernel, programs, _gemm(call) | segments, mode.options)]


@dataclass(frozen=True, kw_only=True)
class SplitInbox(Inbox):
    splits: Splits


StagedCall = GatherCall[Staged, SplitInbox]


def _slots(mode: Staged) -> int:
    """Two where peers push into an inbox, one where only we write."""
    return 2 if isinstance(mode, Push) else 1


class StagedWay(FusedWay[Staged, SplitInbox]):
    def peers_read(self, mode: Staged) -> bool:
        return isinstance(mode, PullStaged)

    def scratch(self, task: GatherTask, mode: Staged, shared: Allocate, own: Allocate) -> SplitInbox:
        problem = task.problem
        return SplitInbox.of_units(
            problem, shared, math.ceil(problem.shard[0] / mode.transfer_rows), slots=_slots(mode), chunks=mode.k_chunks,
            splits=Splits.of(mode, problem.m, problem.n_local, own),
        )  # fmt: skip

    def launches(self, call: StagedCall) -> list[Launch]:
        """A push in its own launch comes before the GEMM, the copy of the gathered A, where that is a result, after."""
        launches, returned = _gather_gemm(call), returned_of(call.tensors)
        return launches if returned is None else [*launches, _return(call, returned, launches[-1])]

    def run(self, call: StagedCall, launches: list[Launch]) -> Run:
        assert call.heap is not None, "a call that is only compiled is not run"
        if call.knobs.push_site != "side_stream" or call.heap.device.type != "cuda":
            return in_order(launches)
        push, *others = launches
        copies = [] if returned_of(call.tensors) is None else [others.pop()]
        return _SideStream(push, in_order(others), in_order(copies), side_stream(call.heap, "push"))


def _return(call: StagedCall, returned: torch.Tensor, gemm: Launch) -> Launch:
    """The copy of the gathered A behind the GEMM that has waited for it."""
    problem, scratch = call.problem, call.scratch
    arguments = {
        "shard": call.tensors.a, "inbox_pointer": scratch.inbox, "returned": returned,
        "epoch_counter": scratch.epoch_counter, "status": call.status, "M": problem.m, "K": problem.k,
        "shard_rows": problem.shard[0], "rank": call.rank, "GATHERED": gemm.arguments["GATHERED"],
        "SLOTS": _slots(call.knobs), "BLOCK": BLOCK,
    }  # fmt: skip
    return Launch(return_kernel, problem.m * math.ceil(problem.k / BLOCK), arguments, {"num_warps": 8})


def _gather_gemm(call: StagedCall) -> list[Launch]:
    """The GEMM over an inbox, after the push kernel if that is separate."""
    problem, mode, scratch = call.problem, call.knobs, call.scratch
    communicating = mode.comm_programs
    same_launch, beside = mode.push_site == "same_launch", mode.push_site == "side_stream"
    if mode.schedule == "tile":
        programs, head_start = _tiles(problem, mode) + communicating * same_launch, 1
    else:
        programs = call.machine.compute_units - (communicating if beside else 0)
        head_start = mode.head_start if same_launch else 0
    gathered = not _by_shard(problem, mode)
    transfer = {
        "inbox_pointer": scratch.inbox, "scale_inbox": scratch.scale_inbox, "arrivals": scratch.arrivals,
        "transfer_rows": mode.transfer_rows, "finishing": programs + (0 if same_launch else communicating),
        "SLOTS": _slots(mode), "GATHERED": gathered, "CHUNKS": mode.k_chunks,
        **of_step(problem, mode, mode.k_chunks),
    }  # fmt: skip
    in_two_parts = mode.in_two_parts(call.task) and not mode.preload_b
    kind = FETCH if isinstance(mode, PullStaged) else PUSH if same_launch else NONE
    gemm = _gemm(call) | transfer | {
        "a": mode.a_operand(scratch.inbox if gathered else call.tensors.a, in_two_parts=in_two_parts),
        "inbox": mode.a_operand(scratch.inbox, in_two_parts=in_two_parts),
        **vars(scratch.splits), "SPLITS": mode.split_k,
        "PRELOAD": mode.preload_b, "comm_programs": communicating, "head_start": head_start,
        "TRANSFER": kind.value, "FLATTEN": mode.schedule == "flattened", "PROXY_FENCE": mode.tma,
        "trace": mode.trace_of(programs, call.tensors.c),
    }  # fmt: skip
    # On another stream nothing but room lets the push begin; elsewhere it is the first to.
    resident = programs if beside else None
    launches = [Launch(gather_gemm_kernel, programs, gemm, mode.options, resident)]
    if not same_launch:
        pushing = transfer | call.common() | of_shard(call)
        del pushing["status"], pushing["spin_limit"]  # it waits for nobody
        resident = communicating if beside else None
        push = Launch(push_kernel, communicating, pushing, {"num_warps": 8}, resident)
        return [push, *_between(call), *launches]
    return launches


def _between(call: StagedCall) -> list[Launch]:
    """For ``tune taxes``: a barrier of all ranks, so that nobody computes while data travels."""
    if not call.knobs.phased:
        return []
    return [barrier_launch(call, call.scratch.ready), *empty_launches(call.knobs.empty_launches)]


class _SideStream:
    """The push on its own stream, the GEMM on the caller's; both are done before the caller's next work.

    So they are before ``after``, the copy of the gathered A: the epoch that it reads ends with the later of both.
    """

    def __init__(self, push: Launch, gemm: Run, after: Run, side: torch.cuda.Stream) -> None:
        self._push, self._gemm, self._after, self._side = push, gemm, after, side

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._push.run()
        self._gemm()
        main.wait_stream(self._side)
        self._after()
