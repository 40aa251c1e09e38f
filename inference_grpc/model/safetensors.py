"""Reads safetensors folders: one file or shards with an index, memory-mapped, every length checked before it is used.

A tensor is a view of the file, so nothing is copied until someone computes with it. Writing is here too, in shards.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from inference_grpc.model.errors import ModelFileError

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
MAX_HEADER_BYTES: Final = 100_000_000
MAX_DIMENSIONS: Final = 8
DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which mmap names from 3.12 on
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsError(ModelFileError):
    """A safetensors file or index that is not sound."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int


class SafetensorsFolder:
    """All tensors of a folder by name. `read` gives views of the mapped files."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._maps: dict[Path, mmap.mmap] = {}
        self.tensors: dict[str, Stored] = {}
        for file in _files(folder):
            self._maps[file] = _map(file)
            for name, stored in _header(file, self._maps[file]).items():
                if name in self.tensors:
                    raise SafetensorsError(f"{file}: tensor {name!r} is also in {self.tensors[name].file.name}.")
                self.tensors[name] = stored
        _check_index(folder, self.tensors)

    def read(self, name: str) -> torch.Tensor:
        stored = self.tensors.get(name)
        if stored is None:
            raise SafetensorsError(f"{self.path}: tensor {name!r} is missing.")
        if not stored.nbytes:
            return torch.empty(stored.shape, dtype=stored.dtype)
        raw = torch.frombuffer(self._maps[stored.file], dtype=torch.uint8, count=stored.nbytes, offset=stored.offset)
        # A file may put a tensor at an odd place; views need a multiple of the element's size.
        if (raw.data_ptr()) % stored.dtype.itemsize:
            raw = raw.clone()
        return raw.view(stored.dtype).view(stored.shape)


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise SafetensorsError(f"{index}: the file {name!r} that it names is missing from the folder.")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SafetensorsError(f"{folder}: no .safetensors file is in it.")
    return files


def _weight_map(index: Path) -> dict[str, str]:
    content = read_json(index)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise SafetensorsError(f"{index}: 'weight_map' must give a file for each tensor.")
    return weight_map


def _check_index(folder: Path, tensors: Mapping[str, Stored]) -> None:
    index = folder / INDEX
    if not index.is_file():
        return
    for name, file in _weight_map(index).items():
        if name not in tensors or tensors[name].file.name != file:
            raise SafetensorsError(f"{folder / file}: tensor {name!r} is missing, which {INDEX} says is there.")


def read_json(path: Path) -> dict[str, Any]:  # free form by nature
    """An object from a JSON file; raises `ModelFileError` naming the file."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path}: not a JSON object.")
    return content


def _map(file: Path) -> mmap.mmap:
    try:
        with file.open("rb") as opened:
            # Copy-on-write: torch wants a writable buffer, the file stays as it is. No memory is set aside for copies
            # that nobody makes: a file may be larger than all of it.
            flags = mmap.MAP_PRIVATE | _NO_RESERVE
            mapped = mmap.mmap(opened.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise SafetensorsError(f"{file}: cannot be opened ({error.strerror}).") from error
    except ValueError as error:
        raise SafetensorsError(f"{file}: the file is empty.") from error
    return mapped


def _header(file: Path, data: mmap.mmap) -> dict[str, Stored]:
    if len(data) < 8:
        raise SafetensorsError(f"{file}: the file ends early, in its first 8 bytes.")
    (length,) = struct.unpack_from("<Q", data, 0)
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise SafetensorsError(f"{file}: a header of {length} bytes is declared; the file has {len(data)}.")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as error:
        raise SafetensorsError(f"{file}: the header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise SafetensorsError(f"{file}: the header is not a JSON object.")
    tensors = {name: _entry(file, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    end, previous = 8 + length, ""
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if stored.offset < end:
            raise SafetensorsError(f"{file}: tensors {previous!r} and {name!r} overlap.")
        end, previous = stored.offset + stored.nbytes, name
        if end > len(data):
            raise SafetensorsError(
                f"{file}: tensor {name!r} ends at byte {end}, but the file has {len(data)}; it is truncated."
            )
    return tensors


def _entry(file: Path, name: str, entry: Any, data_start: int) -> Stored:
    try:
        dtype, shape, (start, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
    except (KeyError, TypeError, ValueError) as error:
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        reason = (
            f"the type {kind!r} is not known" if kind is not None and kind not in DTYPES else "its entry is damaged"
        )
        raise SafetensorsError(f"{file}: tensor {name!r}: {reason}.") from error
    if len(shape) > MAX_DIMENSIONS or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise SafetensorsError(f"{file}: tensor {name!r}: its shape or place is absurd ({str(entry)[:120]}).")
    if math.prod(shape) * dtype.itemsize != end - start:
        raise SafetensorsError(
            f"{file}: tensor {name!r}: shape {shape} of {entry['dtype']} needs {math.prod(shape) * dtype.itemsize} "
            f"bytes, {end - start} are declared."
        )
    return Stored(file, dtype, tuple(shape), data_start + start, end - start)


def write_folder(
    folder: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    shard_bytes: int = 5_000_000_000,
    progress: Callable[[str, int], None] = lambda name, nbytes: None,
) -> None:
    """Writes tensors as they come, a new shard when one is full. Files appear under their names only when complete."""
    shards: list[list[tuple[str, torch.Tensor]]] = [[]]
    written: list[tuple[Path, list[str]]] = []
    size = total = 0
    for name, tensor in tensors:
        progress(name, tensor.nbytes)
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            written.append(_write_shard(folder, len(written), shards.pop()))
            shards.append([])
            size = 0
        shards[-1].append((name, tensor.contiguous()))
        size, total = size + tensor.nbytes, total + tensor.nbytes
    written.append(_write_shard(folder, len(written), shards.pop()))
    if len(written) == 1:
        written[0][0].replace(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, (file, names) in enumerate(written, 1):
        target = folder / f"model-{number:05}-of-{len(written):05}.safetensors"
        file.replace(target)
        weight_map |= dict.fromkeys(names, target.name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def _write_shard(folder: Path, number: int, tensors: list[tuple[str, torch.Tensor]]) -> tuple[Path, list[str]]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / f".shard-{number}.partial"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in tensors:
            if tensor.nbytes:
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return path, [name for name, _ in tensors]
