"""The pass replaces what is tuned and faster, leaves every other graph as it is, and results stay right."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, DECODER, K, N
from fakes import begun, latency_of
from ranks_of_functions import run_ranks
from scripts import run_script

from autotune.db import Store, Winner
from autotune.fleet.problem_list import parse_list
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.machine import INTERPRETED, Machine, machine
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads import workload

ON_RANKS = str(Path(__file__).with_name("on_ranks.py"))
LIBRARY = 100.0


def keep(
    store: Store, problem: Problem, here: Machine, mode: str, microseconds: float = 50.0, *, compared: bool = True
) -> None:  # fmt: skip
    """A finished study whose winner is the first config of a mode, of any but the library's where it has none."""
    found = workload(problem.workload)
    configs = [*found.baselines(Task(problem, here)).values(), *found.first_configs(Task(problem, here))]
    valid = [each for each in configs if found.space.violation(each, Task(problem, here)) is None]
    ours = [each for each in valid if each["mode"] != "bsp"]
    config = next((each for each in valid if each["mode"] == mode), ours[0])
    study = begun(store, found, Task(problem, here))
    parts, library = {}, {"bsp": latency_of(LIBRARY)} if compared else {}
    if isinstance(problem, AllGatherGemm):  # gathering once for two GEMMs saves the library this
        parts = {"all_gather": latency_of(40.0)}
    store.finish(study.id, Winner(config, latency_of(microseconds), library, parts))


def database(file: Path, here: Machine) -> str:
    """A database with the problems of the cases at m=16."""
    with Store.open(file) as store:
        common: dict[str, Any] = {"m": 16, "world_size": 2, "dtype": "fp32"}
        for b_order, bias in itertools.product(("kn", "nk"), (False, True)):
            fields = {**common, "b_order": b_order, "bias": bias}
            for layout, k in itertools.product(("rows", "k"), (K, 2 * K)):
                keep(store, _problem("all_gather_gemm", 2 * N, k, fields, layout=layout), here, "push")
            for n, k in itertools.product((N, 2 * N, 2 * K), (2 * K, 2 * N)):
                keep(store, _problem("gemm_reduce_scatter", n, k, fields), here, "push")
                mode, time = ("one_shot", 125.0) if (n, k) == (N, 2 * N) else ("two_shot", 50.0)
                keep(store, _problem("gemm_all_reduce", n, k, fields), here, mode, time)
        for b_order in ("kn", "nk"):
            fields = {**common, "b_order": b_order}
            keep(store, _problem("all_gather_gemm", 4 * N, K, fields, gathered=True), here, "push")
            for name, mode in (("gemm_reduce_scatter", "push"), ("gemm_all_reduce", "two_shot")):
                keep(store, _problem(name, N, 2 * K, fields, residual=True), here, mode, 40.0)
        keep(store, _problem("all_gather_gemm", 2 * N, N, common), here, "bsp", LIBRARY)
        keep(store, _problem("gemm_all_reduce", 5 * N, 2 * K, common), here, "two_shot", compared=False)
        keep_extended(store, here)
    return f"sqlite:///{file}"


def keep_extended(store: Store, here: Machine) -> None:
    """Norms, gates and fp8."""
    common: dict[str, Any] = {"m": 16, "world_size": 2}
    for dtype, b_order in (("fp32", "kn"), ("bf16", "nk")):
        fields = {**common, "dtype": dtype, "b_order": b_order}
        keep(store, _problem("gemm_all_reduce_norm", N, 2 * K, fields), here, "one_shot", 20.0)
    keep(store, AllReduceNorm(**common, n=N, dtype="fp32"), here, "one_shot", 20.0)
    keep(store, AllReduceNorm(**common, n=N, dtype="fp32", quantised="row"), here, "one_shot", 10.0)
    fields = {**common, "dtype": "bf16", "quantised": "block"}
    keep(store, _problem("gemm_all_reduce_norm", 512, 2 * K, fields), here, "one_shot", 10.0)
    gate = {"epilogue": "geglu_tanh", "gate_up": "interleaved", "bias": True}
    for dtype, epilogue in (("fp32", {"epilogue": "swiglu"}), ("bf16", gate)):
        fields = {**common, "dtype": dtype, "b_order": "nk", **epilogue}
        keep(store, _problem("all_gather_gemm", 8 * N, K, fields), here, "push")
    decoder, eps = DECODER, torch.finfo(torch.float32).eps
    fields = {**common, "dtype": "fp32", "b_order": "nk"}
    for k in (decoder.hidden, decoder.intermediate):
        made = _problem("gemm_all_reduce_norm", decoder.hidden, k, fields, eps=float(f"{eps:.7g}"))
        keep(store, made, here, "one_shot", 20.0)
    up = _problem("all_gather_gemm", 2 * decoder.intermediate, decoder.hidden, fields, epilogue="swiglu")
    keep(store, up, here, "push")
    for scales, n, k in (("tensor", N, K), ("row", N, K), ("block", 144, 512)):
        fields = {**common, "dtype": "fp8", "b_order": "nk", "scales": scales}
        keep(store, _problem("all_gather_gemm", 2 * n, k, fields), here, "push")
        for name in ("gemm_reduce_scatter", "gemm_all_reduce"):
            keep(store, _problem(name, n, 2 * k, fields), here, "push")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return database(tmp_path_factory.mktemp("database") / "cache.db", INTERPRETED)


def _problem(name: str, n: int, k: int, fields: dict[str, Any], **more: Any) -> Problem:
    return workload(name).problem_type(n=n, k=k, **fields, **more)


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["sample", "all"])
def answers(
    request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:  # fmt: skip
    return run_ranks(ON_RANKS, "everything", 2, tmp_path_factory.mktemp("ranks"), argument=(url, request.param))


@pytest.mark.parametrize("name", CASES)
def test_a_graph_is_fused_where_that_is_faster_and_right_in_any_case(name: str, answers: list[dict[str, Any]]) -> None:
    case = CASES[name]
    for answer in answers:
        found = answer["cases"][name]
        assert found["error"] < case.worst
        told = "\n".join(found["lines"])
        assert case.told in told
        if case.operator:
            assert set(found["operators"]) == {case.operator} and found["collectives"] == 0
            assert ": replaced: mode " in told and ": left: " not in told
        else:
            assert found["unchanged"] and not found["operators"], "the graph is the same, byte by byte"
            assert ": left: " in told and ": replaced: " not in told


def test_what_is_said_to_be_the_same_on_every_rank_is_explained_as_added(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        may_differ, same = answer["said"]
        assert "2.00 times" in may_differ and "2.50 times" in same
        added = may_differ.partition("; with its residual: ")[2]
        assert "may differ from rank to rank" in added and "2.50 times" in added, "what replicated=True would be worth"


def test_ranks_that_add_different_tensors_are_told_so_before_the_sum(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "same on every rank" in answer["disagreed"] and "replicated=False" in answer["disagreed"]


def test_symbolic_rows_are_guarded_where_another_entry_would_be_served(answers: list[dict[str, Any]]) -> None:
    for name, grown in [each for answer in answers for each in answer["grown"].items()]:
        assert max(grown["errors"]) < CASES[name].worst
        assert grown["graphs"] == [1, 1, 1, 1, 2], "one graph from m=8 to m=32, another one beyond"
        first, second = grown["lines"]
        assert "replaced" in first and "for m from 8 to 32" in first and ": left: " in second


def test_what_several_symbolic_sizes_leave_is_compiled_and_right(answers: list[dict[str, Any]]) -> None:
    for name, found in [each for answer in answers for each in answer["free"].items()]:
        assert found["error"] < 1e-5, name
        assert found["operators"] == ["gemm_all_reduce"], name


def test_a_model_is_explained_as_often_as_asked_compiled_or_not(tmp_path: Path) -> None:
    """And none of its graphs count among those that the program may compile."""
    for found in run_ranks(ON_RANKS, "explained", 2, tmp_path, argument=f"sqlite:///{tmp_path / 'none.db'}"):
        assert found == [1] * 2 + [0] + [1] * 4


def test_what_is_tuned_later_counts_from_the_next_fusing_on(url: str, tmp_path: Path) -> None:
    file = shutil.copy(url.removeprefix("sqlite:///"), tmp_path / "tuned.db")
    for found in run_ranks(ON_RANKS, "later", 2, tmp_path, argument=str(file)):
        assert found[:3] == [[False], [True], 3]
        assert len(found[3:]) == 2 and all("closed" in said for said in found[3:])


def test_layers_of_dtensor(answers: list[dict[str, Any]]) -> None:
    for kind, found in [each for answer in answers for each in answer["layers"].items()]:
        wanted = ["all_gather_gemm", "gemm_reduce_scatter"] if "sequence" in kind else ["gemm_all_reduce"]
        assert found["error"] < 1e-5
        assert found["operators"] == wanted and found["collectives"] == 0, found["lines"]
        assert ("bias=true" in found["explained"]) == ("biases" in kind)
        assert found["explained"].startswith(f"{len(wanted)} found, {len(wanted)} replaced\n")


def test_norms_and_gates_of_a_decoder(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        sharded, replicated = answer["decoders"]["sharded"], answer["decoders"]["replicated"]
        assert max(sharded["error"], replicated["error"]) < 1e-5
        assert sharded["operators"] == ["all_gather_gemm"], sharded["lines"]
        assert all("epilogue=swiglu" in line for line in sharded["lines"] if "replaced" in line)
        assert replicated["operators"] == ["gemm_all_reduce_norm"] * 3, replicated["lines"]


def test_gradients_stay_right(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["trained"]["error"] < 1e-5
        assert answer["trained"]["graphs"] == 2 and answer["trained"]["operators"] == ["gemm_all_reduce"]


def test_ranks_decide_alike_though_one_has_another_database(answers: list[dict[str, Any]]) -> None:
    first, second = ({name: each["lines"] for name, each in answer["cases"].items()} for answer in answers)
    assert first == second


@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu(2, each=True))])
def test_a_program_tunes_what_it_calls_first_and_the_next_one_finds_it(gpu: bool, tmp_path: Path) -> None:
    ours, theirs = run_ranks(ON_RANKS, "first_calls", 2, tmp_path, gpu=gpu, argument=str(tmp_path / "first.db"))
    assert ours == theirs
    first, second, later = ours
    assert first["sources"] == ["exact", "default"] and "nothing tuned" in first["lines"][0], "one search a run"
    assert second["sources"] == ["exact"] and second["lines"] == later["lines"]
    assert "the library" in later["lines"][0], "its way is the fastest, or so many times slower"
    assert max(each["error"] for each in ours) < (1e-2 if gpu else 1e-5)
    assert [each["cached"] for each in ours] == [False, False, True], "who has a graph would not come to tune"


def test_the_pass_brings_its_operators() -> None:
    """A program that compiles and calls none of them by name has imported none. Interpreted ones have them."""
    operator = "import torch; torch.ops.iris_autotune.all_gather_gemm.default"
    assert run_script("-c", operator, interpreted=False).returncode == 1, "not there already"
    assert run_script("-c", f"import autotune; autotune.fusing; {operator}", interpreted=False).returncode == 0


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(False, marks=[
            pytest.mark.slow,
            pytest.mark.skipif(" " in sys.prefix, reason="torch (2.13) links no kernels where its path has a space"),
        ]),
        pytest.param(True, marks=pytest.mark.gpu(2, each=True)),
    ],
)  # fmt: skip
def test_inductor_takes_the_options_and_what_is_found_is_collected(gpu: bool, tmp_path: Path) -> None:
    url = database(tmp_path / "cache.db", machine() if gpu else INTERPRETED)
    for answer in run_ranks(ON_RANKS, "inductor", 2, tmp_path, gpu=gpu, argument=url):
        for name, found in answer["found"].items():
            assert found["error"] < max(CASES[name].worst, 1e-2 if gpu else 0), name
            assert len(found["lines"]) == 1 and (": replaced: mode " in found["lines"][0]) == bool(CASES[name].operator)
        calls = {each.problem.as_dict()["m"]: each.calls for each in parse_list(answer["list"])}
        assert calls == {16: 1, 256: 1}, "each ran once; what is not tuned was found once"
        assert answer["list"].count("workload: ") == 4
