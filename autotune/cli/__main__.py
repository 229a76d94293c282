"""``python -m autotune.cli``: the command ``tune`` from a source tree."""

from autotune.cli import main

main()
