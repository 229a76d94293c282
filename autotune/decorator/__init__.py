"""The decorator: Triton's autotuner with a joint space, a database, ranks that agree, and launches that cost little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton

from autotune.decorator.candidates import Default
from autotune.decorator.own_options import OnMiss, Options, Ranks
from autotune.decorator.tuned_kernel import TunedKernel
from autotune.errors import InvalidArguments
from autotune.search_spaces import Dimension, Space

__all__ = ["TunedKernel", "autotune"]

RIGHT_FORM = "write @autotune.autotune(configs=[triton.Config({…}), …], key=[…]) above @triton.jit"


def autotune(
    configs: Sequence[Any] | None = None, key: Sequence[str] = (), prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None, restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None, post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None, rep: int | None = None, use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None, cache_results: bool = False,
    *, space: Space | Sequence[Dimension] | None = None, default: Default | None = None,
    config_hook: Callable[[dict[str, Any]], Any] | None = None, free: Sequence[str] = (),
    on_miss: OnMiss | None = None, trials: int | None = None, ranks: Ranks = "all", db: str | None = None,
) -> Callable[[Any], TunedKernel]:  # fmt: skip
    """Tune a ``@triton.jit`` kernel, with or without ``@triton.heuristics`` between; a drop-in for ``triton.autotune``.

    The first arguments are Triton's, with Triton's meaning. Beyond them:

    - ``space``: dimensions, or a Space with constraints, instead of ``configs``. Their values go to the kernel as
      meta-parameters; num_warps, num_stages, num_ctas and maxnreg to the compiler. A parameter that not every mode has
      needs a default in the kernel. ``default`` is the space's config for want of a tuned one, or a function that makes
      it (``lambda call: {... call.M ...}``); ``config_hook`` runs before every launch, as a ``triton.Config``'s
      pre_hook does.
    - ``free``: key arguments in which a tuned config may stand in for another size, within a factor of two.
    - ``on_miss``: ``tune``, ``nearest`` (else the default), ``default`` or ``error`` where nothing is tuned for a key.
      If not given: ``tune`` for ``configs``, as in Triton; ``nearest`` for a ``space``. AUTOTUNE_OFFLINE=1 makes
      ``nearest`` of ``tune``.
    - ``trials``: configs evaluated at most, by a search where there are more. If not given: all of a list, 120 of a
      space.
    - ``ranks``: who chooses together: ``all`` of the default process group, ``each`` for itself, or a function that
      returns the group, called at a launch.
    - ``db``: URL or path of the database, by default AUTOTUNE_DB or the user's.

    Raises InvalidArguments, a ValueError, where the arguments do not fit the kernel or each other. A launch raises what
    Triton's raises, and at a key's first look-up NotTuned, InvalidConfig, RanksDisagree and GangError. Where the
    database cannot be used it goes on without, with one warning; in a CUDA graph's capture it times nothing.
    """
    _check_configs(configs)
    options = Options(space, default, config_hook, free, on_miss, trials, ranks, db)

    def decorator(fn: Any) -> TunedKernel:
        if not hasattr(fn, "arg_names"):
            raise InvalidArguments(f"{getattr(fn, '__name__', type(fn).__name__)} is not a Triton kernel: {RIGHT_FORM}")
        return TunedKernel(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook=pre_hook, post_hook=post_hook,
            prune_configs_by=prune_configs_by, warmup=warmup, rep=rep, use_cuda_graph=use_cuda_graph, do_bench=do_bench,
            cache_results=cache_results, options=options,
        )  # fmt: skip

    return decorator


def _check_configs(configs: Any) -> None:
    """Raise InvalidArguments unless they are Triton's; without parentheses the kernel stands in their place."""
    if callable(configs):
        raise InvalidArguments(f"@autotune.autotune is without its arguments: {RIGHT_FORM}")
    if configs is not None and not (isinstance(configs, Sequence) and not isinstance(configs, str)):
        raise InvalidArguments(f"configs={configs!r} is not a list: {RIGHT_FORM}")
    for each in configs or ():
        if not isinstance(each, triton.Config):
            raise InvalidArguments(f"configs has {each!r}, which is not a triton.Config: {RIGHT_FORM}")
