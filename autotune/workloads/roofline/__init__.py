"""Cost models: a config's predicted latency, by rooflines. They order the first trials and exclude nothing."""

from autotune.workloads.roofline.flash_decode_prediction import flash_decode_latency
from autotune.workloads.roofline.limit import roofline

__all__ = ["flash_decode_latency", "roofline"]
