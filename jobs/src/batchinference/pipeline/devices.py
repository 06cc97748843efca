"""Which device a replica computes on: one rule for every runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What a replica was given. `kind` is torch's name of it: cpu, cuda, npu..."""

    kind: str = "cpu"
    count: int = 1
    """Devices of that kind; a model is spread over them where there are several."""
    threads: int = 1
    """Threads to compute with on the CPU."""

    @property
    def name(self) -> str:
        """The first device as torch names it: `cpu`, or `cuda:0`. Ray shows a replica its own
        devices alone, so that they are always counted from 0."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:0"


def device_of(*, cpus: float, gpus: int) -> Device:
    """The device of a replica: its GPUs where it was given some, else the CPU with as many threads
    as it has CPUs."""
    threads = max(1, math.floor(cpus))
    return Device("cuda", gpus, threads) if gpus else Device("cpu", 1, threads)
