"""Build every CUDA source: `python -m kernels.native`."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from kernels import native


def main() -> int:
    with ThreadPoolExecutor() as pool:
        for name, library in zip(native.SOURCES, pool.map(native.build, native.SOURCES), strict=True):
            sys.stdout.write(f"{name}: {library}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
