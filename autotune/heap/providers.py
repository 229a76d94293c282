"""The choice of a heap for GPUs, Iris's or torch's: by the setting, what is installed, and where the ranks are."""

from __future__ import annotations

import functools
import logging

from autotune.agreement import Agreement
from autotune.errors import HeapError
from autotune.heap.loading import iris_if_installed
from autotune.hosts import first_on_hosts, launched_nodes
from autotune.settings import HEAP

LOG = logging.getLogger("autotune")


def provider(agreement: Agreement) -> str:
    """``iris`` or ``torch``, the same on all ranks; rank 0 says it once where it is not the usual one. Collective.

    Raises HeapError where AUTOTUNE_HEAP asks for what cannot be, RanksDisagree where ranks would take different ones.
    """
    # Iris maps the heaps of all ranks of the default group, of which these may be only those of one host.
    several_hosts = len(set(first_on_hosts(agreement))) > 1 or launched_nodes() > 1

    def choice() -> tuple[str, str]:
        asked, obstacle = HEAP.value(), ""
        if iris_if_installed() is None:
            obstacle = "Iris cannot be imported (pip install tokenspeed-iris)"
        elif several_hosts:
            obstacle = "the ranks are on several hosts, and Iris maps the memory of one"
        if asked == "iris" and obstacle:
            raise HeapError(f"AUTOTUNE_HEAP=iris: {obstacle}; unset it, or set it to torch")
        return asked or ("torch" if obstacle else "iris"), "" if asked else obstacle

    name, reason = agreement.same(choice)
    if reason and agreement.rank == 0:
        _say(f"{reason}: the symmetric heap is torch's symmetric memory")
    return name


@functools.cache
def _say(text: str) -> None:
    LOG.warning(text)
