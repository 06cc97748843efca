"""What a model runtime is, and how it takes its device."""

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
        """The results for a batch: an array (or Arrow array) whose first axis is the row.

        `inputs` maps the model's input names to arrays of rows x the column's own shape.
        A runtime that learns of each row's error by itself returns a list in which an exception
        stands in the place of the row's result. What it raises is blamed on a row of the batch,
        which is then run in halves.
        """


def torch_device(device: Device) -> torch.device:
    """The device as torch has it. A replica on the CPU gets the threads of its CPUs.

    Raises ModelLoad where torch has no such device, or finds none of them.
    """
    import torch  # which runtimes that compute elsewhere do without

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
    """A replica that holds a GPU and computes on the CPU would cost without a word."""
    import torch

    if not os.environ.get(SIMULATED):
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ModelLoad(
            f"this replica was given a GPU, and PyTorch {torch.__version__}, built for {built}, "
            "finds none: use an image that fits the nodes' driver. Where GPUs are only counted, as "
            f"on a cluster for tests, set {SIMULATED}=1 in cluster.env"
        )
