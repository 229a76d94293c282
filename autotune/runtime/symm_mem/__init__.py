"""``torch.ops.symm_mem``'s fused operators by our kernels: the same arguments in the same order, the same results.

    from autotune import symm_mem
    _, (c,) = symm_mem.fused_all_gather_matmul(a, [b], gather_dim=0, group_name=group.group_name, return_A=False)

A group is given by its name, by itself, or as a dimension of a mesh. The context is the oldest one that is open for its
ranks; if there is none, the first call opens one and keeps it until ``close``. Where torch raises ValueError, these
raise InvalidProblem. ``install`` puts ours behind torch's names.
"""

from autotune.runtime.symm_mem.fused import close as close
from autotune.runtime.symm_mem.fused import context_of as context_of
from autotune.runtime.symm_mem.fused import fused_all_gather_matmul as fused_all_gather_matmul
from autotune.runtime.symm_mem.fused import fused_all_gather_scaled_matmul as fused_all_gather_scaled_matmul
from autotune.runtime.symm_mem.fused import fused_matmul_reduce_scatter as fused_matmul_reduce_scatter
from autotune.runtime.symm_mem.fused import fused_scaled_matmul_reduce_scatter as fused_scaled_matmul_reduce_scatter
from autotune.runtime.symm_mem.installed import install as install
from autotune.runtime.symm_mem.installed import uninstall as uninstall
