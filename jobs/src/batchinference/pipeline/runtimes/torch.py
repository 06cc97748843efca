"""PyTorch modules: from a factory, a state dict, a TorchScript file or an exported program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from batchinference.pipeline.devices import Device
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.loading import load_callable
from batchinference.pipeline.runtimes.base import take
from batchinference.pipeline.runtimes.sources import resolve_place
from batchinference.spec.models import TorchModel


class TorchRuntime:
    def __init__(self, model: TorchModel, device: Device) -> None:
        self._device = take(device)
        self._module = _load(model, self._device)

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: self._tensor(name, values) for name, values in inputs.items()}
        with torch.inference_mode():
            output = self._module(**tensors)
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"the module returned {type(output).__name__}, not one tensor")
        if output.dtype == torch.bfloat16:
            output = output.float()  # NumPy has no bfloat16
        return output.cpu().numpy()

    def _tensor(self, name: str, values: np.ndarray) -> torch.Tensor:
        values = _stacked(values)
        if values.dtype.kind not in "biufc":
            raise TypeError(
                f"input '{name}' has rows of different shapes or no numbers: a tensor needs "
                "numbers of one shape"
            )
        # a copy, because blocks are shared memory that must not be written to
        return torch.tensor(values, device=self._device)


def _stacked(values: np.ndarray) -> np.ndarray:
    """Lists of one length, of any depth, as an array; others as they are."""
    if values.dtype != object:
        return values
    rows = [_stacked(row) if isinstance(row, np.ndarray) else row for row in values]
    return np.stack(rows) if len({np.shape(row) for row in rows}) == 1 else values


def _load(model: TorchModel, device: torch.device) -> Any:
    path = resolve_place(model.source) if model.source else None
    if model.factory is None:
        return _load_program(str(path), list(model.inputs), device)
    module = load_callable(model.factory)(**model.factory_args)
    if not isinstance(module, torch.nn.Module):
        raise ModelLoad(f"'{model.factory}' returned {type(module).__name__}, not an nn.Module")
    if path is not None:
        module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return module.to(device).eval()


def _load_program(path: str, inputs: list[str], device: torch.device) -> Any:
    if path.endswith(".pt2"):
        return _by_name(torch.export.load(path), inputs, device)
    return torch.jit.load(path, map_location=device).eval()


def _by_name(
    program: torch.export.ExportedProgram, inputs: list[str], device: torch.device
) -> Callable[..., Any]:
    """A program that is called with its inputs by name, however it was called when exported."""
    names = program.graph_signature.user_inputs
    if set(names) != set(inputs):
        raise ModelLoad(f"the program takes {', '.join(map(str, names))}, not {', '.join(inputs)}")
    module = program.module().to(device)

    def call(**tensors: torch.Tensor) -> Any:
        given = [tensors[str(name)] for name in names]
        positional, named = tree_unflatten(given, program.call_spec.in_spec)
        return module(*positional, **named)

    return call
