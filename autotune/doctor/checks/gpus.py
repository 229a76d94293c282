"""Checks of the GPUs: models, links and their rates, peer access, clocks, memory."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence

from autotune.device_rates import rates_of
from autotune.doctor.finding import Finding, advice, broken, fine
from autotune.doctor.host import Host
from autotune.text import counted

NONE = "no GPU"

SMALLEST_SHARED_MEMORY = 64 * 1024
"""Bytes: gfx942's, the smallest for which the built-in search spaces are made."""

SLOW = 0.5
"""Share of the fastest pair's rate below which two GPUs are on different islands."""

MOST_IN_USE = 1 << 30
"""Bytes that the driver and a display may hold on an idle GPU."""

KFD = "/sys/class/kfd/kfd/topology/nodes/*"
XGMI = "11"
"""The type of an xGMI link in AMD's kernel driver; 2 is PCIe."""

NVIDIA_FIELDS = (
    "index", "power.limit", "power.default_limit", "temperature.gpu", "pstate", "clocks.sm", "clocks.max.sm",
    "mig.mode.current", "memory.used",
)  # fmt: skip

REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Nvidia-smi's field for the reasons of low clocks, newer and older name."""

THROTTLES = {
    0x04: ("its power cap", False),
    0x08: ("a hardware slowdown", True),
    0x20: ("its temperature (driver)", True),
    0x40: ("its temperature (hardware)", True),
    0x80: ("an external power brake", True),
    0x02: ("fixed application clocks", False),
}
"""NVIDIA's reason bits: text, and True if measurements are worthless while the reason lasts."""


def gpus(host: Host) -> Finding:
    """The GPUs' models; the tuner needs them all alike."""
    devices = host.devices()
    if not devices:
        return fine(f"{NONE}: kernels run under Triton's interpreter")
    kinds = Counter(devices)
    told = " and ".join(f"{count} × {name}" for name, count in kinds.items())
    if len(kinds) > 1:
        mend = "all ranks need the same GPU model: select one with CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"
        return broken(told, mend)
    told += f" ({host.machine().arch})"
    if rates_of(host.machine()) is None:
        return advice(told, "a GPU not known here: untuned calls go to the library until something is tuned on it")
    return fine(told)


def shared_memory(host: Host) -> Finding:
    """Shared memory of one program; on AMD, the driver's figure must equal the one the search spaces use."""
    machine = host.machine()
    if machine.is_interpreter:
        return fine(NONE)
    found = machine.shared_memory
    told = f"{found // 1024} KiB per program"
    sizes = [_field(text, "lds_size_in_kb") for text in host.read(f"{KFD}/properties").values()]
    stated = {int(kib) for kib in sizes if kib.isdigit() and int(kib)}
    if stated and found // 1024 not in stated:
        kib = ", ".join(map(str, sorted(stated)))
        return broken(
            f"assumed {told}, but the driver says {kib} KiB", "upgrade iris-autotune: it does not know this GPU"
        )
    if found < SMALLEST_SHARED_MEMORY:
        return advice(told, "expect many configs to run out of resources: the search spaces assume at least 64 KiB")
    return fine(told)


def links(host: Host) -> Finding:
    """The links between all pairs of GPUs: NVLink or xGMI rather than PCIe."""
    count = len(host.devices())
    if count < 2:
        return fine(f"{count or 'no'} GPU: nothing to link")
    kinds = _nvidia_links(host) if host.machine().kind == "cuda" else _amd_links(host)
    if not kinds:
        return advice(
            "unknown: the driver does not report them", "check with nvidia-smi topo -m or rocm-smi --showtopo"
        )
    told = ", ".join(f"{kind} ({counted(pairs, 'pair')})" for kind, pairs in sorted(kinds.items()))
    slow = [kind for kind in kinds if not kind.startswith(("NV", "xgmi"))]
    if slow:
        mend = "PCIe is about ten times slower: select linked GPUs with CUDA_VISIBLE_DEVICES"
        return advice(told, mend)
    return fine(told)


def peer_access(host: Host) -> Finding:
    """Peer access between all pairs of GPUs, which all fused kernels need, with atomics, which signals need."""
    count = len(host.devices())
    if count < 2:
        return fine(f"{count or 'no'} GPU: no peers")
    pairs = list(itertools.permutations(range(count), 2))
    cut = [f"{one}→{other}" for one, other in pairs if not host.reaches(one, other)]
    if cut:
        told = f"{len(cut)} of {len(pairs)} pairs have no peer access: {', '.join(cut[:8])}"
        mend = "disable the IOMMU's ACS, disable MIG, pass all GPUs into the container; see nvidia-smi topo -p2p r"
        return broken(told, mend)
    if not host.machine().has_peer_atomics:
        return advice(
            f"all {len(pairs)} pairs, without atomics on a peer's memory",
            "over PCIe sums, decode and few rows go as words of data, the rest by the library (docs/memory-model.md)",
        )
    return fine(f"all {len(pairs)} pairs")


def link_rates(host: Host) -> Finding:
    """Rates of kernels that store to another GPU (push) or load from it (pull); pairs that are far slower."""
    count = len(host.devices())
    if count < 2:
        return fine(f"{count or 'no'} GPU: nothing to link")
    try:
        rates = host.link_rates()
    except (RuntimeError, subprocess.SubprocessError) as error:
        return advice(f"not measured: {error}", "try again while the GPUs are idle")
    if not rates:
        return advice("no pair of GPUs to measure", "see peer access")
    told = f"push {_range([push for *_, push, _ in rates])}, pull {_range([pull for *_, pull in rates])}"
    fastest = max(push for *_, push, _ in rates)
    found = islands(count, [(one, other) for one, other, push, _ in rates if push > SLOW * fastest])
    if len(found) > 1:
        groups = "; ".join(", ".join(map(str, group)) for group in found)
        mend = "select GPUs of one island with CUDA_VISIBLE_DEVICES, or expect the rate of the slowest link"
        return advice(f"{told}; islands of GPUs: {groups}", mend)
    return fine(told)


def islands(count: int, linked: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The GPUs in groups, each of which reaches its others over the linked pairs."""
    group = list(range(count))
    for one, other in linked:
        group = [group[one] if each == group[other] else each for each in group]
    return [[gpu for gpu in range(count) if group[gpu] == each] for each in dict.fromkeys(group)]


def _range(rates: Sequence[float]) -> str:
    low, high = (f"{rate / 1e9:.0f}" for rate in (min(rates), max(rates)))
    return f"{low} GB/s" if low == high else f"{low} to {high} GB/s"


def clocks(host: Host) -> Finding:
    """Reasons for low clocks: throttling, a lowered power limit, a fixed performance level."""
    if not host.devices():
        return fine(NONE)
    return _nvidia_clocks(host) if host.machine().kind == "cuda" else _amd_clocks(host)


def memory_in_use(host: Host) -> Finding:
    """Memory in use on the GPUs, a sign of other jobs."""
    if not host.devices():
        return fine(NONE)
    if host.machine().kind == "cuda":
        used = {row["index"]: int(_number(row["memory.used"])) << 20 for row in _nvidia_rows(host)}
    else:
        files = host.read("/sys/class/drm/card*/device/mem_info_vram_used")
        used = {str(index): int(text) for index, text in enumerate(files.values())}
    busy = {index: amount for index, amount in used.items() if amount > MOST_IN_USE}
    if busy:
        told = ", ".join(f"GPU {index}: {amount / 2**30:.1f} GiB" for index, amount in busy.items())
        return advice(
            f"in use by other processes: {told}", "wait for them or stop them: they disturb every measurement"
        )
    return fine("not used by other processes" if used else "unknown")


def _nvidia_clocks(host: Host) -> Finding:
    rows = _nvidia_rows(host)
    if not rows:
        return advice("unknown: nvidia-smi does not answer", "put nvidia-smi on the PATH")
    slowed: list[str] = []
    noted: list[str] = []
    for row in rows:
        gpu = f"GPU {row['index']}"
        reasons = int(row["reasons"], 16) if row["reasons"].startswith("0x") else 0
        for bit, (reason, pointless) in THROTTLES.items():
            if reasons & bit:
                (slowed if pointless else noted).append(f"{gpu} is slowed by {reason} ({row['temperature.gpu']} °C)")
        if _number(row["power.limit"]) < _number(row["power.default_limit"]):
            noted.append(f"{gpu} is limited to {row['power.limit']} of {row['power.default_limit']} W")
        if row["mig.mode.current"] == "Enabled":
            slowed.append(f"{gpu} is in MIG mode, which has no peer access")
    if slowed:
        return broken(
            "; ".join(slowed + noted), "fix cooling and power, disable MIG, then tune: times are not the GPU's own now"
        )
    if noted:
        return advice(
            "; ".join(noted), "configs tuned now suit only these clocks: reset them with nvidia-smi -rgc and -pl"
        )
    now = ", ".join(sorted({f"{row['clocks.sm']} of {row['clocks.max.sm']} MHz in {row['pstate']}" for row in rows}))
    return fine(f"not throttled; {now}")


def _amd_clocks(host: Host) -> Finding:
    files = host.read("/sys/class/drm/card*/device/power_dpm_force_performance_level")
    levels = {path.split("/")[4]: text.strip() for path, text in files.items()}
    fixed = {card: level for card, level in levels.items() if level not in ("auto", "high", "perf_determinism")}
    if fixed:
        told = ", ".join(f"{card}: {level}" for card, level in fixed.items())
        return advice(f"performance level {told}", "reset it: rocm-smi --setperflevel auto")
    if not levels:
        return advice("unknown: the driver does not report them", "check with rocm-smi or amd-smi")
    return fine(f"performance level {', '.join(sorted(set(levels.values())))}")


def _nvidia_rows(host: Host) -> list[dict[str, str]]:
    """Nvidia-smi's fields per GPU, with ``reasons``; empty if it does not answer."""
    names = ("reasons", *NVIDIA_FIELDS)
    for reasons in REASONS:
        fields = ",".join((reasons, *NVIDIA_FIELDS))
        text = host.command("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits") or ""
        rows = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
        found = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
        if found:
            return found
    return []


def _nvidia_links(host: Host) -> Counter[str]:
    """Pairs of GPUs by kind of link: ``NV18`` is 18 NVLinks, ``PIX`` to ``SYS`` go over PCIe."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", host.command("nvidia-smi", "topo", "-m") or "")
    lines = [line.split() for line in text.splitlines()]
    rows = [line[1:] for line in lines if line and re.fullmatch(r"GPU\d+", line[0]) and "X" in line]
    return Counter(kind for row in rows for kind in row[row.index("X") + 1 : len(rows)])


def _amd_links(host: Host) -> Counter[str]:
    """Pairs of GPUs by kind of link, from the kernel driver, which lists each from both ends."""
    nodes = host.read(f"{KFD}/properties")
    of_gpus = {path.split("/")[-2] for path, text in nodes.items() if _field(text, "simd_count") not in ("", "0")}
    found: Counter[str] = Counter()
    for pattern in (f"{KFD}/io_links/*/properties", f"{KFD}/p2p_links/*/properties"):
        for text in host.read(pattern).values():
            ends = (_field(text, "node_from"), _field(text, "node_to"))
            if set(ends) <= of_gpus and int(ends[0]) < int(ends[1]):
                found["xgmi" if _field(text, "type") == XGMI else "pcie"] += 1
    return found


def _field(text: str, name: str) -> str:
    """The value in the line ``name value`` of a driver's file; empty if absent."""
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def _number(text: str) -> float:
    """The number in a field; 0 for [N/A]."""
    return float(text) if re.fullmatch(r"[0-9.]+", text) else 0.0
