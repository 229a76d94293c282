"""``tune model --predict``: rooflines of GPUs that are not here, told as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import Bench
from model_configs import MIXTRAL, config

from autotune.machine import HOSTS

WORDS = ("--tp", "2", "--tokens", "4,256", "--predict")


@pytest.mark.parametrize("device", [*HOSTS, "h100"])
@pytest.mark.parametrize("changed", [{}, MIXTRAL], ids=["dense", "mixture"])
def test_a_model_is_predicted_without_a_gpu(
    laptop: Bench, tmp_path: Path, device: str, changed: dict[str, int]
) -> None:
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
    file = tmp_path / "list.yaml"
    entry = "{workload: %s, m: 128, n: 4096, k: 8192, world_size: 2%s}"
    sums = []
    for place in (", place: mlp", ""):
        entries = [entry % (name, place) for name in ("gemm-all-reduce", "gemm-all-reduce-norm")]
        file.write_text(f"problems: [{', '.join(entries)}]")
        (forward,) = laptop.json("model", str(file), "--predict", "--device", "H100")["forwards"]
        sums.append(forward["library"])
    assert 1.9 * sums[0] < sums[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--predict", "--device", "H10"), "known: H100, H200, MI300X, MI350X; did you mean H100?"),
        (("--predict",), "give --device"),
        (("--device", "H100"), "--device is for --predict"),
        (("--predict", "--device", "H100", "--budget", "5m", "--force"), "--force, --budget"),
        (("--predict", "--device", "H100", "--measure"), "--measure"),
        (("--predict", "--device", "H100", "--tp", "16"), "8 GPUs"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(laptop: Bench, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    result = laptop.tune("model", config(tmp_path, num_attention_heads=16), *words)
    assert result.exit_code == 2 and told in result.stderr and len(result.stderr.splitlines()) == 1
