"""Makes the benches and the helpers of this folder importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "bench"), str(Path(__file__).parent)]
