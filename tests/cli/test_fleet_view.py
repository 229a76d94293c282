"""A fleet's tables: each state by its word, each host by its condition, and no more rows than asked for."""

from __future__ import annotations

import io

from rich.console import Console

from autotune.cli.fleet_view import fleet_dict, fleet_text, headline
from autotune.db import CacheKey, Provenance
from autotune.db.fleet_records import (
    Counts,
    Finding,
    HostRecord,
    Kind,
    Listed,
    ProblemState,
    Snapshot,
    UnderWay,
    Wanted,
)
from autotune.db.lease import Held

KIND = Kind("NVIDIA H200", "sm_90", "nvlink", "3.7", "0", "2.13", "580")


def listed(number: int, state: ProblemState, reason: str = "") -> Listed:
    key = CacheKey("my_gemm", f'{{"m":{number}}}', 4, "NVIDIA H200", "sm_90", "nvlink")
    return Listed(number, Wanted(key, Provenance("s", "f", "3.7", "0", "2.13", ""), {"budget": "5m"}), state, reason)


def snapshot(seconds: float | None = 60.0) -> Snapshot:
    running = UnderWay(1, listed(1, "running"), "gpu-01", Held("{}", 0), "2026-11-25T10:20:30+00:00", "12 of 40 trials")
    hosts = (
        HostRecord("gpu-01", 8, KIND, (Finding("torch", "fine", "2.13"), Finding("clocks", "could be better", "low"))),
        HostRecord("gpu-02", 4, KIND, (Finding("torch", "fine", "2.13"),)),
        HostRecord("gpu-03", 4, KIND, broken="links: NVLink is down"),
        HostRecord("gpu-04", 4, KIND, broken="links: NVLink is down", set_aside="three problems failed"),
    )
    unlucky = (listed(2, "failed", "wrong everywhere"), *(listed(m, "wanted", "crashed") for m in range(3, 7)))
    counts = Counts(wanted=4, running=1, done=2, failed=1)
    return Snapshot(counts, (running,), unlucky, hosts, seconds)


def shown(found: Snapshot, most: int = 20) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(fleet_text(found, most))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_a_fleet_is_told_by_states_and_hosts() -> None:
    assert shown(snapshot()) == [
        "8 problems: 2 done, 1 running, 4 wanted, 1 failed; about 4:30 left",
        "host problem since UTC progress",
        "gpu-01 my-gemm m=1 ×4 10:20:30 12 of 40 trials",
        "state problem reason",
        "set aside my-gemm m=2 ×4 wrong everywhere",
        *(f"failed once my-gemm m={m} ×4 crashed" for m in range(3, 7)),
        "host takes condition",
        "gpu-01 8 × NVIDIA H200 fine, 1 could be better",
        "gpu-02 4 × NVIDIA H200 fine",
        "gpu-03 4 × NVIDIA H200 broken: links: NVLink is down",
        "gpu-04 4 × NVIDIA H200 set aside: three problems failed",
    ]
    assert shown(snapshot(), most=2)[5:7] == ["failed once my-gemm m=3 ×4 crashed", "and 3 more"]
    assert "left" not in headline(snapshot(None)), "no pace yet"


def test_a_fleet_for_programs() -> None:
    values = fleet_dict(snapshot())
    assert values["seconds_left"] == 270.0 and values["counts"]["wanted"] == 4
    [running] = values["running"]
    assert running["problem"] == {"m": 1} and running["options"] == {"budget": "5m"} and running["world_size"] == 4
    assert (running["since"], running["progress"]) == ("2026-11-25T10:20:30+00:00", "12 of 40 trials")
    assert [each["state"] for each in values["unlucky"]] == ["failed"] + ["wanted"] * 4
    assert values["unlucky"][0]["reason"] == "wrong everywhere" and values["hosts"][3]["set_aside"]
