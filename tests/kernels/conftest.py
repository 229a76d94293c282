"""Makes the helpers that lie beside this folder importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
