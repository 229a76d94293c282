"""Cost models: a config's predicted latency, by rooflines. They order the first trials and exclude nothing."""

from autotune.cost_models.flash_decode import flash_decode_latency
from autotune.cost_models.gemm import gemm_latency
from autotune.cost_models.roofline import roofline

__all__ = ["flash_decode_latency", "gemm_latency", "roofline"]
