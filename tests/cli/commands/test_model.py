"""``tune model``: a config's problems and their calls, a list for fleets, a budget where it pays, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeScreen
from model_configs import BY_WIDTH, DEEPSEEK, LLAMA, MIXTRAL, QWEN, config, each_takes, listed, written

from autotune.db import Store
from autotune.machine import HOSTS, Machine, machine
from autotune.model_runs.comparison import row
from autotune.model_runs.measured import ModelLayers


def test_options_change_the_problems(gpus: Bench, tmp_path: Path) -> None:
    apart = listed(gpus, config(tmp_path), "--tp", "2", "--tokens", "256", "--separate")
    assert {name: each["calls"] for name, each in apart.items() if name.startswith("all_gather")} == {
        "all_gather_gemm (256, 512, 512)": 3, "all_gather_gemm (256, 128, 512)": 6,
        "all_gather_gemm (256, 2048, 512)": 6,
    }  # fmt: skip
    never = listed(gpus, config(tmp_path), "--tp", "2", "--tokens", "256", "--sequence-parallel-from", "never")
    assert all(name.startswith("gemm_all_reduce (256") for name in never)
    odd = listed(gpus, config(tmp_path), "--tp", "2", "--tokens", "257")
    assert all(name.startswith("gemm_all_reduce (257") for name in odd), "ranks cannot share 257 tokens out"
    fp8 = listed(gpus, config(tmp_path), "--tp", "2", "--tokens", "256", "--dtype", "fp8")
    assert {each["scales"] for each in fp8.values()} == {"row"}
    *_, skewed = listed(
        gpus, config(tmp_path, **MIXTRAL), "--tp", "2", "--tokens", "4", "--zipf", "1.2", "--dtype", "fp8"
    ).values()
    fields = ("routing", "exponent", "dtype", "scales")
    assert [skewed[name] for name in fields] == ["zipf", 1.2, "fp8", "row"]
    halves = listed(gpus, config(tmp_path, **MIXTRAL), "--tp", "2", "--tokens", "4", *BY_WIDTH)
    assert "moe_gemm_combine (2, 512, 16, 4, 1024)" in halves
    words = ("--tp", "2", "--tokens", "4", "--context", "4096", "--dtype", "fp8")
    *_, decode = listed(gpus, config(tmp_path), *words).values()
    fields = ("batch", "q_heads", "kv_len", "calls", "dtype")
    assert [decode[name] for name in fields] == [4, 8, 2048, 3, "bf16"], "attention is decoded in 16 bits"


SLIDING = ["sliding_attention", "full_attention", "full_attention"]


@pytest.mark.parametrize(
    ("changed", "layers", "soft_cap"),
    [
        ({"model_type": "llama", "sliding_window": 4096}, 3, 0),
        ({"model_type": "gemma2"}, 1, 50),
        ({"model_type": "gemma2", "attn_logit_softcapping": 30.0, "sliding_window": 8192}, 3, 30),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, 1, 0),
        ({"model_type": "gemma3_text", "layer_types": SLIDING}, 2, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 1}, 3, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, 1, 0),
        ({"model_type": "mistral"}, 0, 0),
    ],
)
def test_a_layer_decodes_over_the_tokens_that_it_attends_to(
    gpus: Bench, tmp_path: Path, changed: dict[str, Any], layers: int, soft_cap: int
) -> None:
    file, words = config(tmp_path, **changed), ("--tp", "2", "--tokens", "4", "--context", "8192")
    decodes = [each for each in listed(gpus, file, *words).values() if "kv_len" in each]
    assert [(each["calls"], each["soft_cap"]) for each in decodes] == ([(layers, soft_cap)] if layers else [])
    (near,) = [each for each in listed(gpus, file, *words[:-1], "4096").values() if "kv_len" in each]
    assert near["calls"] == 3, "no window is shorter"


def test_its_sizes_become_ranges(gpus: Bench, tmp_path: Path) -> None:
    words = ("model", config(tmp_path), "--tp", "2", "--tokens", "1..64", "--trials", "3", "--effort", "quick")
    told = gpus.tune(*words)
    assert told.exit_code == 0 and " verified " in told.stdout
    with Store.open() as store:
        entries = store.entries("gemm_all_reduce")
    sizes = {(each.key.fields["m"], each.winner.verified) for each in entries}
    assert sizes == {(1, False), (4, False), (16, False), (64, False), (2, True), (8, True), (32, True)}
    gangs = len(gpus.gangs)
    assert gpus.tune(*words).exit_code == 0 and len(gpus.gangs) == gangs, "what is verified answers"
    gpus.tune("model", config(tmp_path), "--tp", "2", "--tokens", "8", *words[6:])
    with Store.open() as store:
        found = [each.winner.verified for each in store.entries("gemm_all_reduce") if each.key.fields["m"] == 8]
    assert found and not any(found), "alone, it is searched"


@pytest.mark.parametrize(("seconds", "in_turn"), [(4, [1, 2]), (0, [4])])
def test_what_the_budget_is_too_short_for_is_verified_and_searched_by_the_next_command(
    seconds: int, in_turn: list[int], laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What searches leave of it goes to the others."""
    each_takes(seconds, monkeypatch)
    file = config(tmp_path, hidden_size=64, intermediate_size=128, num_attention_heads=4)
    searched = []
    for _ in in_turn:
        found = laptop.json("model", file, "--tokens", "4,16", "--budget", "6s", "--trials", "3")
        assert all(call["entry"] is not None for forward in found["forwards"] for call in forward["calls"])
        with Store.open() as store:
            searched.append(sum(not entry.winner.verified for entry in store.entries()))
        assert len(found["not_searched"]) == 4 - searched[-1]
    assert searched == in_turn


def test_a_lists_own_budgets_are_kept(laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "{workload: gemm-all-reduce, m: %s, n: 64, k: 64, world_size: 2, budget: %s}"
    file = written(tmp_path, entry % (4, "5s"), entry % (8, "6s"))
    result = laptop.tune("model", file, "--effort", "quick", "--trials", "3")
    assert result.exit_code == 0 and "not searched" not in result.stdout, result.output
    assert len({*laptop.gangs[0].problems}) == 2, "neither is left out as too short"
    each_takes(4, monkeypatch)
    short = laptop.tune("model", file, "--force", "--budget", "6s", "--trials", "3")
    assert short.exit_code == 0 and "not searched" in short.stdout, "a budget for all takes their place"


@pytest.mark.parametrize("captured", [True, False])
def test_forwards_are_measured(captured: bool, gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction is of eager calls only where plain was not faster in a graph."""
    orders = []

    def rows(order: ModelLayers, machine: Machine) -> Iterator[dict[str, Any]]:
        orders.append(order)
        for tokens in sorted(order.tokens):
            times = {"plain eager": [600.0, 600.0], "styles eager": [500.0, 500.0]}
            if captured:
                times |= {"plain eager": [900.0, 900.0], "plain graph": [600.0, 600.0]}
            yield {"tokens": tokens, **row(times, 1e-3), "not_captured": f"styles: {tokens}"}

    monkeypatch.setattr("autotune.model_runs.ranks.rows_of", rows)
    words = ("model", config(tmp_path), "--tp", "2", "--tokens", "256,4", "--trials", "9", "--measure", "--layers", "2")
    found, gains = gpus.json(*words), []
    assert [each["forward"] for each in found["measured"]] == ["256 tokens", "4 tokens"]
    for each, whole in zip(found["measured"], found["forwards"], strict=True):
        assert (each["plain"], each["ours"]) == pytest.approx((600.0, 500.0)) and each["way"] == "styles eager"
        assert each["speedup"]["value"] == pytest.approx(1.2) and each["promise"]["untuned"] == 0
        assert (each["layers"], each["of_layers"]) == (2, 3)
        assert each["not_captured"] == f"styles: {each['forward'].split()[0]}"
        assert each["each_way"]["styles eager"] == pytest.approx(500.0) and "plain eager" in each["each_way"]
        told, promise = each["predicted"], each["promise"]
        assert 0 < told["without_communication"] < whole["predicted"]["without_communication"], "of two layers"
        assert told["before"] - told["after"] == pytest.approx(promise["library"] - promise["winners"])
        gains.append((told["before"] - told["after"], whole["predicted"]["before"] - whole["predicted"]["after"]))
    if captured:
        assert 0 < sum(mine for mine, _ in gains) < 0.9 * sum(eager * 2 / 3 for _, eager in gains)
    else:
        assert all(mine == pytest.approx(eager * 2 / 3) for mine, eager in gains), "two layers of three"
    assert orders[0].plan.ranks == 2 and (orders[0].model.layers, orders[0].of_layers) == (2, 3)


@pytest.mark.parametrize(
    ("changed", "words", "told"),
    [
        ({"model_type": "jamba", "num_experts": 8}, (), "jamba"),
        ({"model_type": "mixtral"}, (), "num_local_experts is missing"),
        (QWEN | {"decoder_sparse_step": 0}, (), "decoder_sparse_step"),
        (MIXTRAL | {"num_local_experts": 5}, (), "5 experts"),
        (MIXTRAL | {"intermediate_size": 2049}, BY_WIDTH, "2049"),
        (MIXTRAL, ("--dtype", "fp8", "--scales", "tensor"), "scales='tensor'"),
        (MIXTRAL | {"num_experts_per_tok": 9}, (), "top_k=9"),
        ({"model_type": None}, (), "model_type"),
        ({"hidden_size": "wide"}, (), "hidden_size"),
        ({"num_hidden_layers": 2**40}, (), "num_hidden_layers"),
        ({"num_attention_heads": 7}, (), "must divide hidden_size"),
        ({"num_key_value_heads": 3}, (), "3 KV heads"),
        ({"head_dim": 96}, ("--context", "4096"), "96"),
        ({}, ("--tokens", f"1..{'9' * 5000}"), "--tokens"),
    ],
)
def test_mistakes_are_told(
    gpus: Bench, tmp_path: Path, changed: dict[str, Any], words: tuple[str, ...], told: str
) -> None:  # fmt: skip
    given = ("model", config(tmp_path, **changed), "--tp", "2", "--tokens", "4", "--list", *words)
    result = gpus.tune(*given)
    assert result.exit_code == 2 and told in result.stderr and len(result.stderr.splitlines()) == 1


REAL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "torch_dtype": "bfloat16"}


def tuned_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> str:
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "cache.db"))
    words = ("--tp", "2", "--tokens", "8", "--trials", "3", "--effort", "quick", "--measure", "--layers", "1")
    result = Bench(machine()).tune("model", config(tmp_path, **changed), *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "sums", "experts"), [({}, 2, 0), (MIXTRAL, 1, 1)])
def test_a_toy_is_tuned_by_ranks_under_the_interpreter(
    changed: dict[str, Any], sums: int, experts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    if not machine().is_interpreter:
        pytest.skip("GPUs have a test of their own")
    told = tuned_for_real(tmp_path, monkeypatch, **REAL, **changed)
    assert (told.count("gemm-all-reduce"), told.count("moe-gemm-combine")) == (sums, experts)


@pytest.mark.gpu(2, each=True)
def test_a_model_is_tuned_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned_for_real(tmp_path, monkeypatch).count("gemm-all-reduce") == 2


def test_measured_is_what_ended_ranks_tuned(gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, file = [], f"{tmp_path / 'other.db'}"

    def rows(order: ModelLayers, machine: Machine) -> Iterator[dict[str, Any]]:
        orders.append((order.url, order.regime.value, all(gang.closed for gang in gpus.gangs)))
        yield {"tokens": 4, **row({"plain eager": [6.0, 6.0], "styles eager": [5.0, 5.0]}, 1e-3), "not_captured": ""}

    monkeypatch.setattr("autotune.model_runs.ranks.rows_of", rows)
    started: list[None] = []
    monkeypatch.setattr(FakeScreen, "start", lambda screen: started.append(None))
    words = ("model", config(tmp_path), "--tp", "2", "--tokens", "4", "--trials", "2", "--regime", "graph")
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 1)
    assert gpus.tune(*words, "--db", file, "--measure").exit_code == 130 and not orders
    gpus.prepare = lambda gang: None
    result = gpus.tune(*words, "--db", file, "--measure")
    assert result.exit_code == 0, result.output
    assert orders == [(file, "graph", True)] and len(started) == 2
    with Store.open(file) as store:
        assert {entry.key.regime for entry in store.entries()} == {"graph"}
    assert gpus.tune(*words, "--db", file).exit_code == 0 and len(gpus.gangs) == 2, "all from the cache"


def test_a_mixtures_dense_and_shared_layers_are_counted(gpus: Bench, tmp_path: Path) -> None:
    found = listed(gpus, config(tmp_path, **QWEN), "--tp", "2", "--tokens", "256")
    assert {name: each["calls"] for name, each in found.items()} == {
        "all_gather_gemm (256, 768, 512)": 3, "gemm_reduce_scatter (256, 512, 512)": 3,
        "all_gather_gemm (256, 4096, 512)": 1, "gemm_reduce_scatter (256, 512, 2048)": 1,
        "all_gather_gemm (256, 512, 512)": 2, "gemm_reduce_scatter (256, 512, 256)": 2,
        "moe_dispatch_gemm (128, 512, 16, 4, 128)": 2, "moe_gemm_combine (128, 512, 16, 4, 128)": 2,
    }  # fmt: skip
    less = listed(gpus, config(tmp_path, **QWEN, decoder_sparse_step=2, qkv_bias=False), "--tp", "2", "--tokens", "256")
    assert found["all_gather_gemm (256, 768, 512)"]["bias"] and not less["all_gather_gemm (256, 768, 512)"]["bias"]
    assert less["moe_gemm_combine (128, 512, 16, 4, 128)"]["calls"] == 1


def test_experts_are_read_as_transformers_writes_them(gpus: Bench, tmp_path: Path) -> None:
    """Its newer versions write Qwen3-MoE's experts by another name, and leave defaults out of a text part."""
    qwen = {"model_type": "qwen3_moe", "num_experts_per_tok": 4, "moe_intermediate_size": 128}
    for name in ("num_experts", "num_local_experts"):
        found = listed(gpus, config(tmp_path, **qwen, **{name: 16}), "--tp", "2", "--tokens", "256")
        assert found["moe_gemm_combine (128, 512, 16, 4, 128)"]["calls"] == 3
    text = {**LLAMA, **DEEPSEEK, "num_hidden_layers": 9}
    for changed, experts, shared in (
        ({"first_k_dense_replace": None, "n_shared_experts": None}, 6, 128),
        ({"moe_layer_freq": 2}, 4, 256),
    ):
        values = {name: value for name, value in {**text, **changed}.items() if value is not None}
        file = config(tmp_path, **{**dict.fromkeys(LLAMA), "model_type": "of_images", "text_config": values})
        found = listed(gpus, file, "--tp", "2", "--tokens", "8")
        assert {name: each["calls"] for name, each in found.items()} == {
            "gemm_all_reduce (8, 512, 2048)": 9 - experts, f"gemm_all_reduce (8, 512, {shared})": experts,
            "moe_dispatch_gemm (4, 512, 64, 8, 128)": experts, "moe_gemm_combine (4, 512, 64, 8, 128)": experts,
        }  # fmt: skip


WORDS = ("--tp", "2", "--tokens", "4,256", "--predict")


@pytest.mark.parametrize("device", [*HOSTS, "h100"])
@pytest.mark.parametrize("changed", [{}, MIXTRAL], ids=["dense", "mixture"])
def test_a_model_is_predicted_without_gpus(laptop: Bench, tmp_path: Path, device: str, changed: dict[str, int]) -> None:
    file = config(tmp_path, **changed)
    told = laptop.tune("model", file, *WORDS, "--device", device, "--context", "4096")
    assert told.exit_code == 0 and "predicted, nothing measured" in told.stdout, told.output
    found = laptop.json("model", file, *WORDS, "--device", device)
    assert not laptop.gangs and found["measured"] is False
    for forward in found["forwards"]:
        for name in ("library", "perfect_overlap"):
            calls = sum(call["calls"] * call[name] for call in forward["calls"])
            assert forward[name] == pytest.approx(calls + forward["without_communication"])
        assert forward["speedup"] > 1 and forward["without_communication"] > 0


def test_of_a_lists_alternatives_one_is_predicted(laptop: Bench, tmp_path: Path) -> None:
    entry = "{workload: %s, m: 128, n: 4096, k: 8192, world_size: 2%s}"
    sums = []
    for place in (", place: mlp", ""):
        file = written(tmp_path, *(entry % (name, place) for name in ("gemm-all-reduce", "gemm-all-reduce-norm")))
        (forward,) = laptop.json("model", file, "--predict", "--device", "H100")["forwards"]
        sums.append(forward["library"])
    assert 1.9 * sums[0] < sums[1]
    of_what = laptop.tune("model", file, "--predict")
    assert of_what.exit_code == 2 and "give --device" in of_what.stderr
