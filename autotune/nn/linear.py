"""Column- and row-parallel linear layers, by our operators."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import nn

from autotune.errors import InvalidProblem
from autotune.nn.functional import column_parallel, row_parallel
from autotune.runtime.context import Context, check_context


class ParallelLinear(nn.Module):
    """A rank's shard of a linear layer; the names in its ``state_dict`` are those of ``nn.Linear``."""

    sharded_dim: int
    """Sharded dimension of the weight [out_features, in_features]."""

    def __init__(
        self, context: Context, in_features: int, out_features: int, bias: bool = True, *,
        sequence_dim: int | None = None, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """``in_features`` and ``out_features`` are those of the whole layer. Raises InvalidProblem.

        ``device`` is the context's by default. The parameters are drawn as those of ``nn.Linear``, from this rank's own
        generator; the bias of a row-parallel layer, which all ranks have, is zero.
        """
        check_context(context)
        super().__init__()
        self.context, self.sequence_dim = context, sequence_dim
        self.in_features, self.out_features = in_features, out_features
        form: dict[str, Any] = {"device": context.heap.device if device is None else device, "dtype": dtype}
        shape = self.shard_shape(context, in_features, out_features)
        self.weight = nn.Parameter(torch.empty(shape, **form))
        self.bias = nn.Parameter(torch.empty(shape[0], **form)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear, context: Context, **options: Any) -> Self:
        """This rank's shard of a whole layer, which every rank has; ``options`` are those of the constructor."""
        made = cls._like(linear, context, linear.in_features, linear.out_features, options)
        with torch.no_grad():
            made.weight.copy_(linear.weight.chunk(context.heap.world_size, cls.sharded_dim)[context.heap.rank])
            if made.bias is not None:
                shards = linear.bias.chunk(context.heap.world_size) if cls.sharded_dim == 0 else None
                made.bias.copy_(linear.bias if shards is None else shards[context.heap.rank])
        return made

    @classmethod
    def from_shard(cls, shard: nn.Linear, context: Context, **options: Any) -> Self:
        """The layer of which ``shard`` is this rank's part; it takes the parameters over, without a copy."""
        ranks = context.heap.world_size
        times = (1, ranks) if cls.sharded_dim == 0 else (ranks, 1)
        made = cls._like(shard, context, shard.in_features * times[0], shard.out_features * times[1], options, "meta")
        own = dict(shard.named_parameters(recurse=False))
        if "weight" not in own:
            raise InvalidProblem(f"{shard} has no parameter of its own named weight; from_linear copies a computed one")
        for name, parameter in own.items():
            made.register_parameter(name, parameter)
        return made

    @classmethod
    def _like(
        cls, linear: nn.Linear, context: Context, in_features: int, out_features: int, options: dict[str, Any],
        device: Any = None,
    ) -> Self:  # fmt: skip
        weight, bias = linear.weight, linear.bias is not None
        made = cls(
            context, in_features, out_features, bias, device=device or weight.device, dtype=weight.dtype, **options
        )
        made.train(linear.training)
        for name, parameter in linear.named_parameters(recurse=False):
            if name not in ("weight", "bias"):
                raise InvalidProblem(f"{linear} has a parameter {name}; this layer has weight and bias alone")
            getattr(made, name).requires_grad_(parameter.requires_grad)
        return made

    @classmethod
    def shard_shape(cls, context: Context, in_features: int, out_features: int) -> tuple[int, int]:
        """Shape of the weight's shard. Raises InvalidProblem if the ranks do not divide it."""
        shape, ranks = [out_features, in_features], context.heap.world_size
        if shape[cls.sharded_dim] % ranks:
            name = ("out_features", "in_features")[cls.sharded_dim]
            raise InvalidProblem(f"{name}={shape[cls.sharded_dim]}: {ranks} ranks do not divide it")
        shape[cls.sharded_dim] //= ranks
        return shape[0], shape[1]

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound) if self.sharded_dim == 0 else nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        said = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{said}, ranks={self.context.heap.world_size}, sequence_dim={self.sequence_dim}"


class ColumnParallelLinear(ParallelLinear):
    """Each rank has ``out_features`` / ranks columns of the result, and those rows of ``weight`` and ``bias``.

    The input is the same on every rank. With ``sequence_dim`` it is a rank's part of that dimension, gathered within
    the GEMM. ``keep_gathered`` is that of ``all_gather_gemm``.
    """

    sharded_dim = 0

    def __init__(
        self, context: Context, in_features: int, out_features: int, bias: bool = True, *, keep_gathered: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(context, in_features, out_features, bias, **options)
        self.keep_gathered = keep_gathered

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return column_parallel(self.context, input, self.weight, self.bias, self.sequence_dim, self.keep_gathered)


class RowParallelLinear(ParallelLinear):
    """Each rank has ``in_features`` / ranks columns of the input, and those of ``weight``; ``bias`` is everyone's.

    The result is the same on every rank. With ``sequence_dim`` it is a rank's part of that dimension.
    """

    sharded_dim = 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return row_parallel(self.context, input, self.weight, self.bias, self.sequence_dim)
