"""The meetings of a context's ranks: what they do together, and an end of waiting where one of them cannot."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from autotune.agreement import Agreement, is_settled, listed, raising, settled
from autotune.errors import GangError, InputError, RanksDisagree
from autotune.heap.alarm import RAISED, Alarm
from autotune.kernels.launching.streams import capturing
from autotune.runtime.lookup import Found
from autotune.runtime.stream_order import STREAM_ORDER
from autotune.settings import wait_seconds

REFUSAL_SECONDS = 10.0
"""Seconds for which a rank whose call is refused waits for the others, which may be late, before it gives up on them.
"""

MOMENT = 1e-3
"""Seconds between two looks for what others do."""


class CallAgreement(Agreement):
    left_alone = (
        "this rank was left alone in a first call, or in release or close: another rank died, or did not make the same "
        "call"
    )
    disagree = (
        "the ranks call an operator with different problems or configs ({seen}); where they have different numbers of "
        "rows, all of them give rows= to all_gather_gemm, tokens= to the operators of a mixture of experts"
    )


class Step(NamedTuple):
    """A rank's word in the first exchange of a meeting."""

    call: str
    found: Found | None = None
    """The config that it knows, or its database's."""
    source: str = ""
    """The look-up that it comes from: the database, and its answer or error."""


class Meeting:
    """A rank comes to a meeting, or goes on to a call that needs none, and the alarm's page says which: so one that
    waits sees at once where the others have gone on without it, into kernels that wait for it.
    """

    def __init__(self, agreement: Agreement, alarm: Alarm, device: torch.device) -> None:
        self._agreement, self._alarm, self._device = agreement, alarm, device

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around a meeting, which begins with ``first``. Where a rank leaves it alone, by an error that the others have
        not raised, or by an interrupt, it gives up, so that none waits for it.
        """
        self._demand_standing()
        try:
            yield
        except BaseException as error:
            if not is_settled(error) and self._agreement.world_size > 1:
                if isinstance(error, GangError):
                    self._demand_standing()
                self.give_up(error)
                for each in (error, error.__cause__):
                    # Where this rank was in a collective, they hold the group, whose connections would stay open.
                    if each is not None and not isinstance(error, InputError):
                        traceback.clear_frames(each.__traceback__)
            raise

    def first(self, action: Callable[[], Step], *, after_a_missed_call: bool = False) -> list[Step]:
        """The first exchange: each rank's step. It is the same for every kind of meeting, so that a rank whose call is
        refused can take part with its error. Raises that, RanksDisagree, and GangError where a rank does not come.
        """
        missing = self._missing(wait_seconds(), after_a_missed_call)
        if missing:
            raise missing
        return self._exchange(action)

    def refuse(self, error: Exception) -> None:
        """Tell the other ranks of the error of a call of this one, unless it leaves none waiting.

        Where they come to the same call, to agree on it, all raise the error, and the context is as before. Otherwise
        they have gone on, and this rank gives up. Raises the error that counts on all.
        """
        if self._agreement.world_size == 1 or is_settled(error):
            return
        self._demand_standing()
        if isinstance(error, GangError):
            return  # a peer did not come: that is no refusal
        with self.together():
            if not self._missing(REFUSAL_SECONDS):
                self._exchange(raising(error))
            raise error

    def give_up(self, error: BaseException) -> None:
        """Leave the others at once: those in kernels by the alarm, those on the host by closing the connections."""
        self._raise_alarm(error)
        settled(error)
        self._agreement.close()

    @property
    def given_up(self) -> str:
        """The words of the rank that has given up on this context, for good; empty as long as none has."""
        return self._alarm.reason if self._alarm.words[RAISED] else ""

    def _missing(self, seconds: float, after_a_missed_call: bool = False) -> GangError | None:
        """Wait for all ranks to come, at most so long; the error where some do not, which is RanksDisagree as soon as
        one is known to have gone on to another call. Raises GangError where one gives up meanwhile.
        """
        alarm, deadline = self._alarm, time.monotonic() + seconds
        alarm.arrive()
        while absent := alarm.absent:
            self._demand_standing()
            ahead = alarm.ahead(absent)
            if ahead and not after_a_missed_call and not alarm.words[RAISED]:
                return RanksDisagree(f"{listed(ahead)} made a call of an operator that rank {alarm.rank} has not made")
            if time.monotonic() > deadline:
                return GangError(f"{listed(absent)} did not come within {seconds:.0f} s to where rank {alarm.rank} is")
            time.sleep(MOMENT)
        return None

    def _exchange(self, action: Callable[[], Step]) -> list[Step]:
        try:
            steps = self._agreement.gather(action)
        except Exception as error:
            if is_settled(error) and not all(self._agreement.gather(self._has_come_to_rest)):
                self._raise_alarm(error)
            raise
        self._agreement.check_same([step.call for step in steps])
        return steps

    def _has_come_to_rest(self) -> bool:
        """True once the device has done what was enqueued; false where it has not in a while: it waits for a call that
        another rank has refused.
        """
        if self._device.type == "cpu" or capturing(self._device):
            return True
        done, deadline = torch.cuda.Event(), time.monotonic() + REFUSAL_SECONDS
        STREAM_ORDER.take(self._device, done.record)
        while not done.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(MOMENT)
        return True

    def _raise_alarm(self, error: BaseException) -> None:
        self._alarm.raise_(
            f"rank {self._agreement.rank} has given up by {type(error).__name__}: {error}. The ranks of this context "
            "are out of step: leave it on every rank, and open another"
        )

    def _demand_standing(self) -> None:
        """Raise GangError where a rank has given up; leaves the others then."""
        if self.given_up:
            self._agreement.close()
            raise settled(GangError(self.given_up))
