"""Which device a replica computes on: one rule for every runtime."""

from __future__ import annotations

import gc
import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from batchinference.pipeline.errors import ModelLoad
from batchinference.spec.profiles import GPU

SIMULATED = "BATCHINFERENCE_SIMULATED_DEVICES"
"""The variable to set where GPUs are only counted: their replicas compute on the CPU."""
_BACKENDS = {"npu": "torch_npu"}


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


def device_of(
    *,
    cpus: float,
    gpus: int = 0,
    custom: Mapping[str, int] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Device:
    """The device of a replica: its GPUs where it was given some, else a custom resource that is a
    device, else the CPU with as many threads as it has CPUs.

    `kinds` names the kind of the resources that are devices; GPUs are of the kind cuda unless it
    says otherwise.
    """
    threads = max(1, math.floor(cpus))
    granted = {GPU: gpus, **(custom or {})}
    for name, kind in {GPU: "cuda", **(kinds or {})}.items():
        if granted.get(name):
            return Device(kind, granted[name], threads)
    return Device(threads=threads)


def load_backend(kind: str) -> None:
    """Import what PyTorch needs for a kind of device that is not its own. Raises ModelLoad where
    that is missing."""
    module = _BACKENDS.get(kind)
    if module is None:
        return
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ModelLoad(
            f"this replica was given the device '{kind}', for which PyTorch needs the package "
            f"{module} ({error}): build an image with the one that fits its PyTorch and its driver"
        ) from error


def empty_caches() -> None:
    """Have PyTorch, where it is loaded, give back what it keeps of devices' memory for later.

    What it keeps is in pieces as large as the batches before were: a smaller batch may find none
    that fits, and other processes on the device cannot have them.
    """
    gc.collect()  # tensors that only a cycle of references holds
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu", *_BACKENDS):
        if (backend := getattr(torch, kind, None)) is not None:
            backend.empty_cache()
