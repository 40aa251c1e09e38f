"""`python -m benchmarks [NAME …]`: run the named benchmarks, or all, one after the other, on embedded stores.

Each prints its tables; its own `--help` says how to write them into docs/benchmarks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from config.local.throwaway import start_stores


def main(names: list[str]) -> int:
    known = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))
    # A quarter of an hour and stores of its own: `make drill`.
    known.remove("drill")
    # Ten minutes and more: `python -m benchmarks.aborts`.
    known.remove("aborts")
    # Needs an NVIDIA GPU: `make bench-gpu`.
    known.remove("gpu")
    if unknown := set(names) - set(known):
        print(f"{', '.join(sorted(unknown))}: no such benchmark; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    os.environ.setdefault("SECRET_KEY", "benchmark-secret-key-benchmark-secret-key")
    os.environ.setdefault("API_KEY_PEPPER", "benchmark-pepper-benchmark-pepper-benchmark")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start_stores()
    worst = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
