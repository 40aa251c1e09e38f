"""CUDA C++ kernels, compiled by nvcc on first use and called through ctypes.

A source here has `extern "C"` launchers that take pointers and a stream and return a CUDA error code, so it needs
neither
torch's headers nor its ABI: a build takes seconds and stays good across torch versions. The result is kept under
KERNELS_CACHE_DIR (default ~/.cache/tokenfactory-kernels), named by the hash of source, compiler and flags.
`python -m kernels.native` builds everything ahead of time, as the engine image does.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = ("stream_gemm", "wide_gemm", "gdn_step", "staged_attention")
FLAGS = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler=-fPIC")


class NativeBuildError(RuntimeError):
    """nvcc is missing or refused a source; the message says which and holds the compiler's output."""


def build(name: str) -> Path:
    """Compile one source unless the same build is there already, and return the shared library.

    Safe to run in several processes at once: each writes its own file and renames it into place.
    """
    source = Path(__file__).with_name(f"{name}.cu")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        raise NativeBuildError(f"{source.name} needs CUDA's compiler: put nvcc (CUDA 13 or newer) on the PATH")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.cuh")))]
    key = hashlib.sha256("\0".join([*texts, version, *FLAGS]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("KERNELS_CACHE_DIR") or Path.home() / ".cache" / "tokenfactory-kernels")
    library = folder / f"{name}-{key}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / library.name
        run = subprocess.run([nvcc, *FLAGS, "-o", str(made), str(source)], capture_output=True, text=True, check=False)
        if run.returncode:
            raise NativeBuildError(f"nvcc refused {source.name}:\n{run.stdout}{run.stderr}")
        made.replace(library)
    return library


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The library of one source, built if need be; one handle for the process."""
    return ctypes.CDLL(str(build(name)))
