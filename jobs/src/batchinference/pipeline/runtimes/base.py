"""The interface of a model runtime, and the choice of its PyTorch device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.device import SIMULATED, Device, load_backend

if TYPE_CHECKING:
    import torch


class Runtime(Protocol):
    """A loaded model."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        """Return the results for a batch: an array (or Arrow array) whose first axis is the row.

        `inputs` maps the model's input names to arrays of shape rows x the column's own shape.
        A runtime that detects errors per row returns a list instead. In this list, an exception
        replaces the result of a failed row. If the call itself raises, the batch is split in
        halves and run again to find the row that causes the error.
        """


def torch_device(device: Device) -> torch.device:
    """Return the torch device. On the CPU, also set torch's threads to the replica's threads.

    Raises ModelLoad if torch does not support the kind of device or does not find a device.
    """
    import torch  # imported here because not every runtime needs torch

    if device.kind == "cuda" and not torch.cuda.is_available():
        _check_simulated()
        device = Device(threads=device.threads)
    if device.kind == "cpu":
        torch.set_num_threads(device.threads)
        return torch.device("cpu")
    load_backend(device.kind)
    try:
        return torch.device(device.name)
    except RuntimeError:
        raise ModelLoad(
            f"PyTorch {torch.__version__} has no devices of the kind '{device.kind}', which a "
            "profile names (cluster.profiles)"
        ) from None


def _check_simulated() -> None:
    """Raise ModelLoad unless GPUs are simulated. Otherwise a replica would silently compute on
    the CPU while its GPU costs money."""
    import torch

    if not os.environ.get(SIMULATED):
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ModelLoad(
            f"this replica was given a GPU, and PyTorch {torch.__version__}, built for {built}, "
            "finds none: use an image that fits the nodes' driver. Where GPUs are only counted, as "
            f"on a cluster for tests, set {SIMULATED}=1 in cluster.env"
        )
