"""The PTX of three-bit decoding, run instruction by instruction in Python."""

from __future__ import annotations

import re

import pytest
import torch

from kernels.turboquant.permute import permute_ptx
from kernels.turboquant.reference import Encoded, decode


def run(ptx: str, low: int, negative: int) -> tuple[int, int]:
    """What $0 and $1 hold; the instructions that it uses, by the PTX manual."""
    registers = {"$2": low, "$3": negative}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for operation, target, *sources in re.findall(r"(\w+)\.b32 (\S+), (\S+), ([^,;]+)(?:, (\S+))?;", ptx):
        a, b, *rest = (value(source) for source in sources if source)
        if operation == "prmt":
            taken = b << 32 | a
            nibbles = [(rest[0] >> (4 * n)) & 15 for n in range(4)]
            assert all(n < 8 for n in nibbles)
            found = sum(((taken >> (8 * n)) & 0xFF) << (8 * place) for place, n in enumerate(nibbles))
        else:
            found = {"shr": a >> b, "shl": a << b, "and": a & b, "or": a | b}[operation]
        registers[target] = found & 0xFFFFFFFF
    return registers["$0"], registers["$1"]


@pytest.mark.parametrize("quarter", range(4))
def test_byte_permutations_give_the_values_of_the_plain_form(quarter):
    size = 256
    low = torch.randint(0, 256, (size // 4,), dtype=torch.uint8)
    signs = torch.randint(0, 256, (size // 8,), dtype=torch.uint8)
    expected = decode(Encoded(low, signs, torch.ones((), dtype=torch.float16)))
    columns = torch.arange(size // 4)
    # As the kernel loads them: signs of the right half of a quarter stand one bit higher.
    plane = signs[columns % (size // 8)] >> (columns // (size // 8)).to(torch.uint8)
    found = []
    for start in range(0, size // 4, 4):
        words = [int.from_bytes(bytes(part[start : start + 4].tolist()), "little") for part in (low, plane)]
        for word in run(permute_ptx(quarter), *words):
            found += [word & 0xFFFF, word >> 16]
    values = torch.tensor(found, dtype=torch.int32).to(torch.int16).view(torch.float16)
    assert torch.equal(values.float(), expected.view(4, -1)[quarter])
