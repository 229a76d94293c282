"""The beginning of every dispatch, in one launch with the readers of the tokens: routing, tokens, and the plan.

Programs by their ids: those that send the routing; those that move tokens (PULL: from the peers, otherwise to them);
one for each local expert that plans; then the caller's own, which wait for the plan and for the tokens that they read.
Each waits only for programs with lower ids, of its own rank or of others, and the first do not wait: no wait starves
its producer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.plan import plan_expert, send_routing
from autotune.kernels.moe.tokens import fetch_tokens, push_tokens


@triton.jit
def exchange_and_plan(
    pid, tokens, routing, inbox, plan, planned, comm_programs, epoch, peers, FORM: tl.constexpr
):  # fmt: skip
    """The part of one of the first routing.parts + comm_programs + local programs."""
    first_plan = routing.parts + comm_programs
    if pid < routing.parts:
        send_routing(tokens.ids, tokens.gates, routing, epoch, pid, peers, FORM)
    elif pid < first_plan:
        if FORM.PULL:
            fetch_tokens(tokens, routing, inbox, epoch, pid - routing.parts, comm_programs, peers, FORM)
        else:
            push_tokens(tokens, inbox, epoch, pid - routing.parts, comm_programs, peers, FORM)
    else:
        plan_expert(pid - first_plan, routing, plan, epoch, peers, FORM)
        heap.signal(planned + (epoch & 1).to(tl.int32), peers.rank, peers)
