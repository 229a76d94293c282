"""Makes the helpers in this folder and in the tests' root importable, here and on ranks."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
