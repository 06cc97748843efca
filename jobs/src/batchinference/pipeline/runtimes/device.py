"""Selects the device that a replica computes on, with the same rule for every runtime."""

from __future__ import annotations

import gc
import importlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from batchinference.pipeline.errors import ModelLoad
from batchinference.spec.profiles import GPU

if TYPE_CHECKING:
    import numpy as np
    import torch

SIMULATED = "BATCHINFERENCE_SIMULATED_DEVICES"
"""If this variable is set, GPUs are simulated: without a GPU, replicas compute on the CPU."""
_BACKENDS = {"npu": "torch_npu"}
"""The PyTorch plugin for each kind of device that PyTorch does not support natively."""


@dataclass(frozen=True)
class Device:
    """The devices that Ray has assigned to a replica."""

    kind: str = "cpu"
    """The torch device type: cpu, cuda, npu..."""
    count: int = 1
    """Number of devices of this kind. Some runtimes distribute a model over several devices."""
    threads: int = 1
    """Number of compute threads on the CPU."""
    share: float = 1.0
    """The fraction of the device, and of its memory, that a replica may use."""

    @property
    def name(self) -> str:
        """The torch name of the first device, such as `cpu` or `cuda:0`. Ray shows a replica only
        its own devices, so the first index is always 0."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:0"

    @property
    def used_name(self) -> str:
        """The torch name of the device that code computes on, if it does not call `torch_device`.
        This is `cpu` if GPUs are simulated and PyTorch finds none, else `name`."""
        simulated = self.kind == "cuda" and os.environ.get(SIMULATED) and not _finds_gpu()
        return "cpu" if simulated else self.name


def device_of(
    *,
    cpus: float,
    gpus: float = 0,
    custom: Mapping[str, int] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Device:
    """Return the device of a replica: its GPUs, else devices of a custom resource of Ray, else the
    CPU. `custom` has the amounts of custom resources by name, and `kinds` the kinds of their
    devices. The kind of GPUs is cuda if `kinds` has no other kind for them."""
    threads = max(1, math.floor(cpus))
    granted: dict[str, float] = {GPU: gpus, **(custom or {})}
    for name, kind in {GPU: "cuda", **(kinds or {})}.items():
        if count := granted.get(name):
            return Device(kind, math.ceil(count), threads, min(1.0, count))
    return Device(threads=threads)


def _finds_gpu() -> bool:
    try:
        import torch  # imported here because not every runtime needs torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _load_backend(kind: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ModelLoad(
            f"this replica was given the device '{kind}', for which PyTorch needs the package "
            f"{module} ({error}): build an image with the version for its PyTorch and driver"
        ) from error


def empty_caches() -> None:
    """Release the device memory that PyTorch caches, if PyTorch is loaded. The cached blocks have
    the sizes of previous batches. They fragment the memory, so even a smaller batch may not fit,
    and other processes on the device cannot use them."""
    gc.collect()  # frees tensors that are only reachable through reference cycles
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu", *_BACKENDS):
        if (backend := getattr(torch, kind, None)) is not None:
            backend.empty_cache()


def limit_this_thread() -> None:
    """Apply PyTorch's number of threads to this thread, if PyTorch is loaded. A new thread reports
    this number, but its first convolutions use all CPUs until the thread sets the number."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(torch.get_num_threads())


def torch_device(device: Device) -> torch.device:
    """Return the torch device of a replica. Also limit the threads that torch uses on the CPU, or
    its fraction of the memory of a shared GPU. Raises ModelLoad if PyTorch cannot use the device,
    or if a GPU is missing and not simulated."""
    import torch

    if device.kind == "cuda" and not _finds_gpu():
        _check_simulated()
        device = Device(threads=device.threads)
    if device.kind == "cpu":
        torch.set_num_threads(device.threads)
        return torch.device("cpu")
    if device.kind in _BACKENDS:
        _load_backend(device.kind, _BACKENDS[device.kind])
    try:
        if device.kind == "cuda" and device.share < 1:
            torch.cuda.set_per_process_memory_fraction(device.share)
        return torch.device(device.name)
    except RuntimeError:
        raise ModelLoad(
            f"PyTorch {torch.__version__} does not know the kind of device '{device.kind}', which "
            "a profile names (cluster.profiles)"
        ) from None


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor of the same type and shape on a device. It is a copy, because
    Ray's blocks must not be modified. On CUDA, the device can compute during the copy."""
    import torch

    if device.type != "cuda":
        return torch.tensor(values, device=device)
    pinned = torch.tensor(values, pin_memory=True)
    computing, copying = torch.cuda.current_stream(device), _copy_stream(device)
    with torch.cuda.stream(copying):
        copied = pinned.to(device, non_blocking=True)
    copying.synchronize()
    copied.record_stream(computing)  # keeps the memory until the model has read it
    return copied


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor on any device as an array of the same type and shape. It is a copy, because
    user code may reuse the tensor's memory. bfloat16, which NumPy lacks, becomes float32."""
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.to("cpu", copy=True).numpy()


@lru_cache(maxsize=1)
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which this process copies arrays to a device."""
    import torch

    return torch.cuda.Stream(device)


def _check_simulated() -> None:
    """Raise ModelLoad if GPUs are not simulated. Without this error, a replica would compute on the
    CPU, without notice, while its GPU costs money."""
    import torch

    if not os.environ.get(SIMULATED):
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ModelLoad(
            f"this replica was given a GPU, and PyTorch {torch.__version__}, built for {built}, "
            "finds none. Use an image that fits the nodes' driver. If the cluster only simulates "
            f"GPUs, as for tests, set {SIMULATED}=1 in cluster.env"
        ) from _cuda_error()


def _cuda_error() -> Exception | None:
    """Return why CUDA does not start, such as a broken GPU or an old driver; None if it starts."""
    import torch

    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:  # AssertionError: PyTorch has no CUDA
        return error
    return None
