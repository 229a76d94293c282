"""One of each record, with every field set, as the tuner makes them."""

from __future__ import annotations

from dataclasses import replace

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Roofline, Routed, TrialRecord, Winner
from autotune.outcome import Evaluation, Latency, Outcome

KEY = CacheKey(
    "all_gather_gemm",
    '{"dtype":"bf16","k":8192,"m":4096,"n":28672,"world_size":8}',
    8,
    "NVIDIA H200",
    "sm_90",
    "nvlink",
)
PROVENANCE = Provenance(source_hash="abc", space="f00d", triton="3.6.0", iris="0.0.0", torch="2.11.0", driver="580.1")
LATENCY = Latency(408.25, 401.5, 419.125, 3.5, 50, by_rank=(405.0, 408.25), host=17.5, isolated=431.0)
TRIAL = TrialRecord(
    Config({"mode": "push", "tile_m": 128, "split": True}),
    Evaluation(Outcome.MEASURED, "", LATENCY, error=0.0017, seconds={"compile": 1.5, "measure": 0.25}),
    source="sampler", number=7, predicted=391.5,
)  # fmt: skip

SLOWER = Latency(530.0, 525.0, 540.0, 2.0, 50)
BEST = replace(
    LATENCY, rounds=(408.0, 408.5), host_rounds=(17.0, 18.0), isolated_rounds=(430.0, 432.0), host_overhead=4.5,
    isolated_overhead=6.25,
)  # fmt: skip
WINNER = Winner(
    TRIAL.config,
    BEST,
    {"eager": SLOWER, "graph": replace(SLOWER, rounds=(529.0, 531.0))},
    limits={"gemm": LATENCY},
    roofline=Roofline({"flops": 7.5e8, "memory": 4e6}, {"flops": 330.25, "links": 0.0}),
    routings={"zipf 1": Routed(BEST, {"graph": SLOWER}), "one expert": Routed(BEST)},
)
