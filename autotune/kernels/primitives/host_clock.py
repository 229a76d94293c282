"""The host's clock, as the interpreter's device functions read it."""

from __future__ import annotations

import time


class HostClock:
    @property
    def now(self) -> int:
        """Nanoseconds, for all processes of the host. A property, since Triton's hash of a device function takes no
        calls.
        """
        return time.monotonic_ns()


CLOCK = HostClock()
