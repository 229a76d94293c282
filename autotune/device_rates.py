"""Rates of GPUs: operations, memory, links, signals, launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.machine import Machine


@dataclass(frozen=True)
class Rates:
    """Rates that one GPU reaches in practice, per microsecond. Only ratios matter: predictions order configs."""

    flops: float
    """Floating-point operations in 16 bits."""
    memory: float
    """Bytes from HBM."""
    links: float
    """Bytes from all peers together."""
    signal: float
    """Microseconds for a signal to arrive."""
    launch: float
    """Microseconds between two kernels."""


RATES: Mapping[str, Rates] = {
    "sm_80": Rates(flops=250e6, memory=1.6e6, links=235e3, signal=2.0, launch=4.0),
    "sm_89": Rates(flops=290e6, memory=0.68e6, links=25e3, signal=3.0, launch=4.0),
    "sm_90": Rates(flops=800e6, memory=3.8e6, links=350e3, signal=2.0, launch=4.0),
    "sm_100": Rates(flops=1800e6, memory=6.3e6, links=700e3, signal=2.0, launch=4.0),
    "sm_103": Rates(flops=1800e6, memory=6.3e6, links=700e3, signal=2.0, launch=4.0),
    "sm_120": Rates(flops=400e6, memory=1.4e6, links=50e3, signal=3.0, launch=4.0),
    "gfx942": Rates(flops=600e6, memory=4.0e6, links=280e3, signal=3.0, launch=6.0),
    "gfx950": Rates(flops=1200e6, memory=6.0e6, links=330e3, signal=3.0, launch=6.0),
}
"""Rates by architecture: sm_90 measured on H200, the others from data sheets at the same share of the peak."""

MEASURED = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
"""GPUs for whose rates the rules of untuned configs were made."""

ON_H200 = {"flops": 690e6, "memory": 4.14e6, "links": 362e3}
"""The rates of 2 H200 as ranks measure them, over long calls (2026-11-29); ``RATES`` has what short ones reach. Other
GPUs' are taken in proportion. Of 150 drawn problems at most one default changes if all three are off by 5 %.
"""

PCIE_LINKS = 50e3
"""Bytes per microsecond over PCIe 5."""


def is_measured(machine: Machine) -> bool:
    """True if the rates of ``RATES`` were measured on this kind of machine."""
    return machine.device in MEASURED and machine.interconnect == "nvlink"


def rates_of(machine: Machine) -> Rates | None:
    """The rates of a machine's GPUs: as its ranks have measured them, else of its architecture; None if neither is
    known.
    """
    usual, known = RATES["sm_90"], RATES.get(machine.arch)
    if not machine.rates:
        return known
    found = {name: getattr(usual, name) * rate / ON_H200[name] for name, rate in machine.rates}
    return replace(known or usual, **found)


def usual_rates(machine: Machine) -> Rates:
    """The rates of a machine's GPUs as they are linked; of unknown ones those of sm_90: only ratios matter."""
    rates = rates_of(machine) or RATES["sm_90"]
    joined = machine.interconnect in ("pcie", "pcie-peer") and "links" not in dict(machine.rates)
    return replace(rates, links=min(rates.links, PCIE_LINKS)) if joined else rates
