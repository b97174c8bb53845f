"""Speed and memory beside their targets: `python -m bench`, or `make bench`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The package under measurement; one thread, as the Makefile has it, before torch is imported.
sys.path.insert(0, str(ROOT / "solution"))
os.environ["OMP_NUM_THREADS"] = "1"
