"""Makes the benches, the helpers of this folder and those of the tests importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE), str(HERE.parent)]
