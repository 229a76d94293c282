"""The plugin's one setting, and its log."""

from __future__ import annotations

import os

from vllm.logger import init_logger

SWITCH = "IRIS_AUTOTUNE_VLLM"

LOG = init_logger("vllm.iris_autotune")  # vLLM shows the logs below its own name alone


def switched_off() -> bool:
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "false", "no")
