"""vLLM's whole engine on two ranks: the same tokens, and our kernels ran, by the layer and by the pass."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 240
KINDS = ("llama", "mixtral")

linked = pytest.mark.skipif(" " in sys.prefix, reason="torch (2.13) links no kernels where its path has a space")


@dataclass(frozen=True)
class Ran:
    tokens: list[list[int]]
    logprobs: list[float]
    calls: list[dict[str, int]]
    log: str

    def is_like(self, other: Ran) -> bool:
        return self.tokens == other.tokens and self.logprobs == pytest.approx(other.logprobs, abs=1e-3)


Engine = Callable[..., Ran]


@pytest.fixture(scope="module")
def engine(environment: dict[str, str], database: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    from models import make

    folder = tmp_path_factory.mktemp("models")
    models = {kind: str(make(folder / kind, kind)) for kind in KINDS}

    def run(kind: str, options: dict[str, Any], **settings: str) -> Ran:
        return ran([models[kind], json.dumps(options)], {**environment, **settings}, folder / "log")

    return run


def ran(arguments: list[str], environment: dict[str, str], log: Path) -> Ran:
    """In a process group of its own: a rank that dies leaves the others waiting."""
    command = [sys.executable, str(HERE / "engine.py"), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = log.read_text()
    found = [line for line in told.splitlines() if line.startswith("RESULT ")]
    assert process.returncode == 0 and found, told[-6000:]
    return Ran(**json.loads(found[0].removeprefix("RESULT ")), log=told)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Callable[[str], Ran]:
    """One rank, without the plugin; once for each kind."""
    options = {"tensor_parallel_size": 1, "enforce_eager": True}
    settings = {"IRIS_AUTOTUNE_VLLM": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return functools.cache(lambda kind: engine(kind, options, **settings))


@pytest.fixture(scope="module")
def compiled(environment: dict[str, str], database: Path) -> dict[str, Any]:
    """As a user gets it: what ``python -m iris_autotune_vllm --tp 2`` prints."""
    command = [sys.executable, "-m", "iris_autotune_vllm", "--tp", "2"]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    return {"tensor_parallel_size": 2, "compilation_config": {"mode": 3, **json.loads(printed.splitlines()[-1])}}


@pytest.mark.parametrize("kind", ["llama", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_an_eager_model_runs_ours_by_its_layers(engine: Engine, plain: Callable[[str], Ran], kind: str) -> None:
    found = engine(kind, {"tensor_parallel_size": 2, "enforce_eager": True})
    assert found.is_like(plain(kind))
    first, second = found.calls
    assert first == second and first["gemm_all_reduce"] >= 2 * 12, "two layers, two prompts of six tokens"


@linked
@pytest.mark.parametrize("kind", KINDS)
def test_the_pass_brings_ours(engine: Engine, plain: Callable[[str], Ran], compiled: dict[str, Any], kind: str) -> None:
    found = engine(kind, compiled, TEST_COMPILED_CPU="1")
    assert found.is_like(plain(kind))
    first, second = found.calls
    assert first == second
    assert first["gemm_all_reduce"] >= 2 * 12 and first["all_reduce_norm"] >= 12
    if kind == "llama":
        assert first["gemm_all_reduce_norm"] >= 2, "the prompts, of more tokens than the border"
        assert "gemm_all_reduce_norm declined" not in first, "graphs of sizes where it does not gain have none"
    assert "gemm_all_reduce taken" in found.log and " left, " in found.log


@linked
@pytest.mark.slow
def test_a_graph_from_the_cache_is_that_of_the_same_table_alone(
    engine: Engine, plain: Callable[[str], Ran], compiled: dict[str, Any], tmp_path: Path
) -> None:  # fmt: skip
    settings = {"TEST_COMPILED_CPU": "1", "VLLM_CACHE_ROOT": str(tmp_path)}
    first, again = (engine("llama", compiled, **settings) for _ in range(2))
    settings["AUTOTUNE_DB"] = f"sqlite:///{tmp_path / 'nothing.db'}"
    nothing = engine("llama", compiled, **settings)
    assert all(each.is_like(plain("llama")) for each in (first, again, nothing))
    assert first.calls[0]["gemm_all_reduce"] and again.calls[0]["gemm_all_reduce"]
    assert "gemm_all_reduce taken" in first.log and "gemm_all_reduce taken" not in again.log
    assert not any(nothing.calls) and "nothing is tuned for 2 ranks" in nothing.log
