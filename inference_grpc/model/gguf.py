"""Reads GGUF files: metadata and tensors by name, memory-mapped, every length checked before it is believed.

The `gguf` package needs seconds for the vocabulary of a file, this reader a tenth of one. Only its tables of block
formats (`gguf.dequantize`) are used.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from inference_grpc.model.errors import ModelFileError

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4
MAX_NAME_BYTES: Final = 1024
_ROWS_AT_A_TIME: Final = 2048
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip


class GgufError(ModelFileError):
    """A file that is not a sound GGUF file, or lacks what was asked of it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # rows first, as numpy and torch have it (GGUF stores it the other way round)
    type: GGMLQuantizationType
    offset: int  # in the file
    nbytes: int


class GgufFile:
    """One open file. `metadata` holds plain Python values; tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise GgufError(f"{path}: cannot be opened ({error.strerror}).") from error
        except ValueError as error:
            raise GgufError(f"{path}: the file is empty.") from error
        reader = _Reader(self._bytes, path)
        tensor_count, entry_count = reader.header()
        self.metadata: dict[str, Any] = dict(reader.entry() for _ in range(entry_count))  # values are free form
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise GgufError(f"{path}: general.alignment is {alignment!r}, not a power of two.")
        declared = [reader.tensor() for _ in range(tensor_count)]
        data_start = -(-reader.position // alignment) * alignment
        self.tensors = _place(declared, data_start, len(self._bytes), path)

    def require(self, key: str) -> Any:
        """A metadata value that must be there."""
        if key not in self.metadata:
            raise GgufError(f"{self.path}: the metadata key {key!r} is missing.")
        return self.metadata[key]

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor as float32. Its shape is checked against what the model's configuration implies."""
        info = self.tensors.get(name)
        if info is None:
            raise GgufError(f"{self.path}: tensor {name!r} is missing.")
        if info.shape != shape:
            raise GgufError(f"{self.path}: tensor {name!r} has shape {list(info.shape)}, expected {list(shape)}.")
        rows = self.raw(name)
        values = np.empty((rows.shape[0], info.shape[-1]), dtype=np.float32)
        # In pieces: unpacking needs several times the memory of what it makes.
        for start in range(0, rows.shape[0], _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            values[part] = self._dequantize(rows[part], info)
        return values.reshape(info.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor that is there, by rows; a view of the file."""
        info = self.tensors[name]
        data = np.frombuffer(self._bytes, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        return data.reshape(math.prod(info.shape[:-1]), -1)

    def _dequantize(self, rows: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.float32]:
        try:
            # A damaged scale makes numpy warn before we can say where it is.
            with np.errstate(all="ignore"):
                values: NDArray[np.float32] = dequantize(rows, info.type)
        except NotImplementedError as error:
            raise GgufError(
                f"{self.path}: tensor {info.name!r} is stored as {info.type.name}, which cannot be read; requantize it."
            ) from error
        if not np.isfinite(values).all():
            raise GgufError(f"{self.path}: tensor {info.name!r} holds values that are not finite; the file is damaged.")
        return values

    def sha256(self) -> str:
        """Of the whole file: it names the weights on GetInfo."""
        return hashlib.sha256(self._bytes).hexdigest()


class _Reader:
    """A cursor over the header that refuses to run past the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._size = len(data)
        self.position = 0
        self._place = "the header"

    def _fail(self, problem: str) -> GgufError:
        return GgufError(f"{self._path}: {problem} (at byte {self.position}, in {self._place}).")

    def _take(self, count: int) -> int:
        start = self.position
        if count > self._size - start:
            raise self._fail(f"the file ends early: {count} more bytes are declared, {self._size - start} are left")
        self.position += count
        return start

    def _number(self, layout: str) -> Any:
        return struct.unpack_from(layout, self._data, self._take(struct.calcsize(layout)))[0]

    def _count(self, what: str, least_bytes: int) -> int:
        """A count that the rest of the file can hold, at `least_bytes` each."""
        count: int = self._number("<Q")
        if count * least_bytes > self._size - self.position:
            raise self._fail(f"{count} {what} are declared, more than the file can hold")
        return count

    def _string(self) -> str:
        length = self._count("bytes of text", 1)
        start = self._take(length)
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail("a text is not UTF-8") from error

    def header(self) -> tuple[int, int]:
        magic = self._data[self._take(4) : 4]
        if magic != MAGIC:
            raise GgufError(f"{self._path}: not a GGUF file (it starts with {magic!r}).")
        version: int = self._number("<I")
        if version not in SUPPORTED_VERSIONS:
            raise GgufError(f"{self._path}: GGUF version {version}; supported are {SUPPORTED_VERSIONS}, little-endian.")
        # The least size of a tensor entry is 8 + 4 + 8 + 4 + 8 bytes, of a metadata entry 8 + 4 + 1.
        return self._count("tensors", 32), self._count("metadata entries", 13)

    def entry(self) -> tuple[str, Any]:
        self._place = "the metadata"
        key = self._string()
        self._place = f"metadata key {key[:80]!r}"
        return key, self._value(self._number("<I"), depth=0)

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._fail(f"unknown value type {kind}")
        return self._number(layout)

    def _array(self, depth: int) -> list[Any]:
        if depth > 2:
            raise self._fail("arrays are nested too deeply")
        kind: int = self._number("<I")
        if kind == _STRING:
            return [self._string() for _ in range(self._count("texts", 8))]
        if kind == _ARRAY:
            return [self._array(depth + 1) for _ in range(self._count("arrays", 12))]
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._fail(f"unknown element type {kind}")
        width = struct.calcsize(layout)
        count = self._count("elements", width)
        start = self._take(count * width)
        return list(struct.unpack_from(f"<{count}{layout[1]}", self._data, start))

    def tensor(self) -> TensorInfo:
        """A declared tensor; its offset is still relative to the data section."""
        self._place = "the tensor list"
        name = self._string()
        self._place = f"tensor {name[:80]!r}"
        if not name or len(name.encode()) > MAX_NAME_BYTES:
            raise self._fail(f"a tensor name must have 1 to {MAX_NAME_BYTES} bytes")
        dimensions: int = self._number("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._fail(f"{dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(int(self._number("<Q")) for _ in range(dimensions))[::-1]
        kind: int = self._number("<I")
        offset: int = self._number("<Q")
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError as error:
            raise self._fail(f"unknown tensor type {kind}") from error
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if 0 in shape or math.prod(shape) > self._size * block:
            raise self._fail(f"shape {list(shape)} is absurd for a file of {self._size} bytes")
        if shape[-1] % block:
            raise self._fail(f"rows of {shape[-1]} values do not divide into {quantization.name} blocks of {block}")
        return TensorInfo(name, shape, quantization, offset, math.prod(shape) // block * block_bytes)


def _place(declared: list[TensorInfo], data_start: int, file_bytes: int, path: Path) -> dict[str, TensorInfo]:
    """The tensors at their place in the file, none past its end, none over another, none twice."""
    placed: dict[str, TensorInfo] = {}
    for info, end_before, previous in _by_offset(declared):
        if info.offset < end_before:
            raise GgufError(f"{path}: tensors {previous!r} and {info.name!r} overlap.")
        if data_start + info.offset + info.nbytes > file_bytes:
            raise GgufError(
                f"{path}: tensor {info.name!r} ends at byte {data_start + info.offset + info.nbytes}, "
                f"but the file has {file_bytes}; it is truncated."
            )
        if info.name in placed:
            raise GgufError(f"{path}: tensor {info.name!r} is declared twice.")
        placed[info.name] = TensorInfo(info.name, info.shape, info.type, data_start + info.offset, info.nbytes)
    return placed


def _by_offset(declared: list[TensorInfo]) -> Iterator[tuple[TensorInfo, int, str]]:
    """Each tensor with the end and the name of the one before it."""
    end, previous = 0, ""
    for info in sorted(declared, key=lambda info: info.offset):
        yield info, end, previous
        end, previous = info.offset + info.nbytes, info.name
