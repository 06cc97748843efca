"""Runs PyTorch modules from a factory, a state dict, a TorchScript file or an exported program."""

import inspect
import pickle
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_unflatten

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.runtimes.device import Device, to_device, to_numpy, torch_device
from batchinference.pipeline.runtimes.model_files import fetch_source
from batchinference.pipeline.runtimes.model_io import (
    check_input_names,
    fixed_rows,
    numeric_array,
    run_in_parts,
    select_output,
)
from batchinference.spec.models import TorchModel


class TorchRuntime:
    def __init__(self, model: TorchModel, device: Device) -> None:
        self._device = torch_device(device)
        self._output_name = model.output_name
        self._module = _load(model, self._device)
        weights = self._module.parameters()
        self._floats = next((one.dtype for one in weights if one.is_floating_point()), None)
        self._rows = self._module.rows if isinstance(self._module, _Program) else None
        self._by_position = _takes_by_position(self._module, list(model.inputs))

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return run_in_parts(self._run, inputs, self._rows)

    def _run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: self._tensor(name, values) for name, values in inputs.items()}
        positional, named = (tensors.values(), {}) if self._by_position else ((), tensors)
        with computing(), torch.inference_mode():
            output = select_output(self._module(*positional, **named), self._output_name)
            if not isinstance(output, torch.Tensor):
                raise TypeError(f"the module returned {type(output).__name__}, not one tensor")
            result = to_numpy(output)
        rows = len(next(iter(inputs.values())))
        # if the batch has one row, a module that calls squeeze() also removes the row axis
        squeezed = rows == 1 and (result.ndim == 0 or len(result) != 1)
        return result[np.newaxis] if squeezed else result

    def _tensor(self, name: str, values: np.ndarray) -> torch.Tensor:
        tensor = to_device(numeric_array(name, values), self._device)
        if self._floats is None or not tensor.is_floating_point():
            return tensor
        info = torch.finfo(self._floats)
        limit = info.max * (1 + info.eps / 4)  # above it, a number rounds to infinity
        is_wider = torch.finfo(tensor.dtype).max > info.max
        if is_wider and (tensor.isfinite() & (tensor.abs() > limit)).any():
            raise TypeError(f"input '{name}' is {self._floats}, and a value does not fit in it")
        return tensor.to(self._floats)


def _takes_by_position(module: torch.nn.Module, inputs: list[str]) -> bool:
    """Return whether the only input must be passed by position, because `forward` has no parameter
    with its name. Raises ModelLoad if there are several inputs and `forward` lacks one of them."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        known = [argument.name for argument in forward.schema.arguments[1:]]
    elif isinstance(module, _Program):
        return False
    else:
        parameters = inspect.signature(module.forward).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return False
        known = list(parameters)
    unknown = set(inputs).difference(known)
    if unknown and len(inputs) > 1:
        check_input_names(known, inputs)
    return bool(unknown)


def _load(model: TorchModel, device: torch.device) -> torch.nn.Module:
    path = fetch_source(model.source, model.storage) if model.source else None
    dtype = getattr(torch, model.dtype) if model.dtype else None
    if model.factory is None:
        return _load_program(str(path), list(model.inputs), device, dtype)
    module = load_callable(model.factory)(**(model.factory_args or {}))
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        raise ModelLoad(f"factory: '{model.factory}' returned {kind}. Return a torch Module")
    if path is not None:
        module.load_state_dict(load_state(path))
    return module.to(device=device, dtype=dtype).eval()


def load_state(path: str) -> dict[str, torch.Tensor]:
    """Return the state dict in a file of torch.save or safetensors, in the memory of the CPU."""
    if path.endswith(".safetensors"):
        return load_file(path)
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise ModelLoad(
            f"source: '{path}' holds more than tensors, and loading it could run code. Save "
            "model.state_dict() instead of the model"
        ) from error


def _load_program(
    path: str, inputs: list[str], device: torch.device, dtype: torch.dtype | None
) -> torch.nn.Module:
    if path.endswith(".pt2"):
        return _Program(torch.export.load(path), inputs).to(device)
    try:
        script: torch.nn.Module = torch.jit.load(path, map_location=device)
    except RuntimeError as error:
        raise ModelLoad(
            f"source: '{path}' is not a TorchScript file. For a model of torch.save, save "
            "model.state_dict() and set 'factory' to a function that returns the module"
        ) from error
    return script.to(dtype=dtype).eval()


class _Program(torch.nn.Module):
    """An exported program that takes its inputs by name, even if it was exported with positions."""

    def __init__(self, program: torch.export.ExportedProgram, inputs: list[str]) -> None:
        super().__init__()
        names = [str(name) for name in program.graph_signature.user_inputs]
        check_input_names(names, inputs)
        self._names = names
        values = [node.meta["val"] for node in program.graph.nodes if node.name in names]
        self.rows = fixed_rows([x.shape[0] for x in values if getattr(x, "ndim", 0)])
        self._input_spec = program.call_spec.in_spec
        self._module = program.module()

    def forward(self, **tensors: torch.Tensor) -> Any:
        values = [tensors[name] for name in self._names]
        positional, named = tree_unflatten(values, self._input_spec)
        return self._module(*positional, **named)
