"""Process groups as programs name them: by themselves, by c10d's name, or as a dimension of a mesh."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh

from autotune.errors import InputError


def process_group(given: Any) -> Any:
    """The process group that is meant; None: the default group. Raises InputError where there is none, and where this
    rank is not in it.
    """
    if isinstance(given, DeviceMesh):
        if given.ndim != 1:
            names = " or ".join(f"mesh[{name!r}]" for name in given.mesh_dim_names or ()) or "mesh with a name for each"
            raise InputError(f"group is a mesh of {given.ndim} dimensions; give one of them: {names}")
        return given.get_group()
    if isinstance(given, str):
        try:
            return _resolve_process_group(given)  # type: ignore[arg-type]  # a str
        except (RuntimeError, ValueError) as error:
            raise InputError(f"there is no process group named {given!r}; give group.group_name of one") from error
    if given is None and not dist.is_initialized():
        raise InputError(
            'torch.distributed has no process group yet; first call torch.distributed.init_process_group("gloo"), on '
            'GPUs "cpu:gloo,cuda:nccl", on every rank, such as those that torchrun starts'
        )
    if given == dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError("this rank is not in the group; name one that it is in, or leave the call to the others")
    if given is not None and not isinstance(given, dist.ProcessGroup):
        raise InputError(
            f"group is a {type(given).__name__}; give a process group, its name, or a one-dimensional mesh"
        )
    return given


def ranks_of(group: Any) -> tuple[int, ...]:
    """The ranks of a group by their numbers in the default group; None: all."""
    return tuple(dist.get_process_group_ranks(group))
