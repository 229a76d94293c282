"""``python -m autotune``: the command ``tune``."""

from autotune.cli import main

main()
