"""Timing on the device: one CUDA graph per figure, buffers in rotation, medians; and the ceilings of the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def median_us(calls: Sequence[Callable[[], object]], *, repeats: int = 9, loops: int = 1) -> float:
    """Median time of one call, in microseconds. The calls run in order inside one graph; pass enough of them, each on
    data of
    its own, that their data exceeds the L2 several times."""
    torch.cuda.synchronize()  # the data was made on another stream
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(loops):
            for call in calls:
                call()
    return median_graph_us(graph, repeats=repeats) / (len(calls) * loops)


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    return event(), event()


def median_graph_us(graph: torch.cuda.CUDAGraph, *, repeats: int = 9) -> float:
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = _events()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return float(sorted(times)[len(times) // 2])


def copy_bandwidth() -> float:
    """Bytes per second of a device-to-device copy of 4 GiB, read and written bytes counted. Not in a graph: there the
    copy
    would become a node for the copy engine, which is slower."""
    source = torch.randint(-(2**31), 2**31 - 1, (2**30,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        start, end = _events()
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return float(2 * source.nbytes / sorted(times)[len(times) // 2])


def matmul_rate(size: int = 8192) -> float:
    """FLOP per second of a bf16 product of two random square matrices through torch."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / (median_us([lambda: torch.mm(a, b, out=out)]) * 1e-6)
