"""Makes the helpers of this folder and those that lie beside it importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
