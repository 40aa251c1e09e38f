"""Weights kept as they are used, so that a second start maps a file instead of unpacking and packing a model again.

A file holds one model's weights for one release of torch, one kind of processor and one recipe; its name says which.
It is written whole under another name and moved into place, and read back only if every byte is as it was written.
Anything else is ignored with a log line, and the weights come from the model's own files as at the first start.

Layout: `MAGIC`, the header's length (8 bytes) and SHA-256, the header (JSON), zeros up to a multiple of `PAGE`, data.
The header names the key, the data's length and SHA-256, and the tree of weights with the place of each tensor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import mmap
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from inference_grpc.model import fbgemm
from inference_grpc.model.gated_delta_net import GatedDeltaNetWeights
from inference_grpc.model.hybrid import GatedAttentionWeights, HybridLayer, HybridWeights, MtpWeights
from inference_grpc.model.linear import Rounding, ScaledLinear, StackedLinear
from inference_grpc.model.weights import LayerWeights, LlamaWeights

logger = logging.getLogger(__name__)

MAGIC: Final = b"TFPACK\x00\x01"  # the last byte is the version of this layout
PAGE: Final = 4096
LEAST_BYTES: Final = 16 * 2**20  # a smaller model is packed sooner than it is written
_ALIGNMENT: Final = 64
_HEAD_BYTES: Final = 2**20  # of a model's file: configuration and places of tensors, at least in part
_SUFFIX: Final = ".packed"
_RECORDS: Final = {
    kind.__name__: kind
    for kind in (
        LlamaWeights,
        LayerWeights,
        HybridWeights,
        HybridLayer,
        GatedAttentionWeights,
        GatedDeltaNetWeights,
        MtpWeights,
    )
}
_DTYPES: Final = {str(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}


class _Unsuitable(Exception):
    """A file that is not what this start needs, or weights that cannot be kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    weights: LlamaWeights | HybridWeights
    formats: Counter[str]


class PackedCache:
    """A folder of such files, of `budget_bytes` at most: those that were not used for longest give way."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes

    def read(self, name: str, key: str) -> Kept | None:
        """What was kept under this key; None if nothing was, or nothing sound."""
        path = self._path(name, key)
        try:
            kept = _read(path, key)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (_Unsuitable, OSError) as error:
            logger.warning("packed_weights_ignored path=%s reason=%s", path, error)
            return None
        logger.info("packed_weights_found path=%s", path)
        return kept

    def write(self, name: str, key: str, kept: Kept) -> None:
        """Keep it if it is worth it and there is room; failing to is a log line, never an error."""
        path = self._path(name, key)
        try:
            encoder = _Encoder()
            tree = encoder.encode(kept.weights)
            if encoder.nbytes < LEAST_BYTES:
                return
            if encoder.nbytes + PAGE > self._budget_bytes:
                raise _Unsuitable(f"{encoder.nbytes >> 20} MiB are more than may be kept (ENGINE_PACKED_MIB)")
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(encoder.nbytes)
            _write(path, {"key": key, "formats": kept.formats, "tree": tree}, encoder)
        except (_Unsuitable, OSError) as error:
            logger.warning("packed_weights_not_kept path=%s reason=%s", path, error)
            return
        logger.info("packed_weights_kept path=%s mib=%d", path, encoder.nbytes >> 20)

    def _path(self, name: str, key: str) -> Path:
        return self._folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{_SUFFIX}"

    def _make_room(self, nbytes: int) -> None:
        files = sorted((file.stat().st_mtime, file) for file in self._folder.glob(f"*{_SUFFIX}"))
        room = self._budget_bytes - nbytes - sum(file.stat().st_size for _, file in files)
        for _, file in files:
            if room >= 0:
                return
            room += file.stat().st_size
            file.unlink(missing_ok=True)
            logger.info("packed_weights_removed path=%s", file)


def key_of(path: Path, use: Sequence[object]) -> str:
    """All that decides about the packed bytes: the model's files, torch, the processor, and how they are to be used."""
    files = [path] if path.is_file() else sorted([path / "config.json", *path.glob("*.safetensors")])
    return json.dumps(
        {
            "files": [[file.name, *_identity(file)] for file in files],
            "torch": torch.__version__,
            "processor": torch.backends.cpu.get_cpu_capability(),
            "layout": str(fbgemm.layout()),
            "records": [[name, [f.name for f in dataclasses.fields(kind)]] for name, kind in _RECORDS.items()],
            "use": [repr(part) for part in use],
        }
    )


def _identity(path: Path) -> tuple[int, int, str]:
    status = path.stat()
    with path.open("rb") as file:
        return status.st_size, status.st_mtime_ns, hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()


@dataclass(slots=True)
class _Encoder:
    """Weights to JSON and a list of tensors, each with its place in the data."""

    tensors: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    nbytes: int = 0

    def encode(self, value: object) -> Any:  # JSON
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return {"tensor": self._place(value), "dtype": str(value.dtype), "shape": list(value.shape)}
        if isinstance(value, fbgemm.PackedWeight):
            return {"packed": self._place(value.values), "shape": [value.out_features, value.in_features]}
        if isinstance(value, ScaledLinear):
            rounding = value.rounding and dataclasses.asdict(value.rounding)
            return {"scaled": self.encode(value.product), "by": self.encode(value.multiplier), "rounding": rounding}
        if isinstance(value, StackedLinear):
            return {"stacked": [self.encode(part) for part in value.parts]}
        if isinstance(value, list):
            return [self.encode(part) for part in value]
        if type(value) in _RECORDS.values():
            fields = dataclasses.fields(value)  # type: ignore[arg-type]  # the records are dataclasses
            return {"record": type(value).__name__} | {f.name: self.encode(getattr(value, f.name)) for f in fields}
        raise _Unsuitable(f"{type(value).__name__} has no kept form")

    def _place(self, values: torch.Tensor) -> int:
        if str(values.dtype) not in _DTYPES:
            raise _Unsuitable(f"tensors of {values.dtype} have no kept form")
        place = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.tensors.append((place, values.contiguous()))
        self.nbytes = place + values.nbytes
        return place


def _write(path: Path, header: dict[str, Any], encoder: _Encoder) -> None:
    digest = hashlib.sha256()
    for piece in _pieces(encoder):
        digest.update(piece)
    header |= {"bytes": encoder.nbytes, "sha256": digest.hexdigest()}
    text = json.dumps(header).encode()
    start = MAGIC + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + text
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", delete=False) as file:
        try:
            file.write(start + bytes(-len(start) % PAGE))
            for piece in _pieces(encoder):
                file.write(piece)
            # Not synced: what has not reached the disk after a crash fails its checksum, and a start need not wait.
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(file.name).unlink()
            raise


def _pieces(encoder: _Encoder) -> list[memoryview]:
    """The data in order, gaps filled with zeros."""
    pieces: list[memoryview] = []
    end = 0
    for place, values in encoder.tensors:
        pieces += [memoryview(bytes(place - end)), values.flatten().view(torch.uint8).numpy().data]
        end = place + values.nbytes
    return pieces


def _read(path: Path, key: str) -> Kept:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise _Unsuitable("it has another layout")
        length = int.from_bytes(file.read(8), "little")
        digest, text = file.read(32), file.read(min(length, size))
        if hashlib.sha256(text).digest() != digest:
            raise _Unsuitable("its header is damaged")
        header = json.loads(text)
        if header["key"] != key:
            raise _Unsuitable("it is of other weights")
        start = -(-(len(MAGIC) + 40 + length) // PAGE) * PAGE
        if size != start + header["bytes"]:
            raise _Unsuitable(f"it has {size} bytes, not {start + header['bytes']}")
        # Private and writable: torch has no read-only tensors, and nobody writes to weights.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    view = memoryview(data)[start:]
    if hashlib.sha256(view).hexdigest() != header["sha256"]:
        raise _Unsuitable("its data is damaged")
    return Kept(_decode(header["tree"], view), Counter(header["formats"]))


def _decode(tree: Any, data: memoryview) -> Any:  # JSON to weights
    if tree is None:
        return None
    if isinstance(tree, list):
        return [_decode(part, data) for part in tree]
    if "record" in tree:
        kind = _RECORDS[tree["record"]]
        return kind(**{name: _decode(part, data) for name, part in tree.items() if name != "record"})
    if "stacked" in tree:
        return StackedLinear(_decode(tree["stacked"], data))
    if "scaled" in tree:
        rounding = tree["rounding"] and Rounding(**tree["rounding"])
        return ScaledLinear(_decode(tree["scaled"], data), _decode(tree["by"], data), rounding)
    if "packed" in tree:
        out_features, in_features = tree["shape"]
        count = fbgemm.packed_size(out_features, in_features)
        values = torch.frombuffer(data, dtype=torch.float16, count=count, offset=tree["packed"])
        return fbgemm.PackedWeight(values, out_features, in_features)
    dtype, shape = _DTYPES[tree["dtype"]], torch.Size(tree["shape"])
    return torch.frombuffer(data, dtype=dtype, count=shape.numel(), offset=tree["tensor"]).view(shape)
