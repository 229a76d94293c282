"""Third-party packages that ranks and compilers need: a fork server imports them once for all of them."""

import torch.distributed  # noqa: F401
import triton.compiler
import triton.runtime.interpreter  # noqa: F401

from autotune.heap.loading import iris_if_installed

iris_if_installed()
