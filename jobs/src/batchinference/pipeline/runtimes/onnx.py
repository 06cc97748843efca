"""Runs ONNX models with ONNX Runtime."""

import re
from typing import Any

import numpy as np
import onnxruntime

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.runtimes.device import Device, torch_device
from batchinference.pipeline.runtimes.model_files import fetch_source, onnx_file
from batchinference.pipeline.runtimes.model_io import (
    check_input_names,
    fixed_rows,
    numeric_array,
    run_in_parts,
    select_output_name,
)
from batchinference.spec.models import OnnxModel

_CPU = "CPUExecutionProvider"
_PROVIDERS = {"cpu": _CPU, "cuda": "CUDAExecutionProvider", "npu": "CANNExecutionProvider"}
_TYPES = {"float": "float32", "double": "float64", "string": "object"}
"""NumPy names of the types that ONNX names differently."""
MIN_VERSION = (1, 31, 1)
"""The first version in which models cannot read files outside of their folder."""


class OnnxRuntime:
    def __init__(self, model: OnnxModel, device: Device) -> None:
        _check_version(onnxruntime.__version__)
        self._session = _session(onnx_file(fetch_source(model.source, model.storage)), device)
        self._inputs = {node.name: node for node in self._session.get_inputs()}
        check_input_names(self._inputs, model.inputs)
        for node in self._inputs.values():
            _dtype(node)  # raises TypeError if NumPy does not have the type
        self._output = _output(self._session, model.output_name)
        self._rows = fixed_rows([x.shape[0] for x in self._inputs.values() if x.shape])

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        arrays = {name: _fit(self._inputs[name], values) for name, values in inputs.items()}
        return run_in_parts(self._run, arrays, self._rows)

    def _run(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        with computing():
            (output,) = self._session.run([self._output], arrays)
        return np.asarray(output)


def _check_version(version: str) -> None:
    """Raise ModelLoad if this version of ONNX Runtime lets models read files of other folders."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < MIN_VERSION:
        raise ModelLoad(
            f"ONNX Runtime {version} lets models read other files. Install onnxruntime "
            f"{'.'.join(map(str, MIN_VERSION))} or later"
        )


def _session(file: str, device: Device) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads
    options.log_severity_level = 3
    wanted = _provider(device)
    providers = [wanted] if wanted == _CPU else [(wanted, {"device_id": 0}), _CPU]
    session = onnxruntime.InferenceSession(file, options, providers=providers)
    if session.get_providers()[0] != wanted:
        raise ModelLoad(f"ONNX Runtime cannot start its {wanted} here: a library is missing")
    return session


def _provider(device: Device) -> str:
    """Return the execution provider for the device. Raises ModelLoad if this build has none."""
    kind = torch_device(device).type if device.kind == "cuda" else device.kind
    provider = _PROVIDERS.get(kind, "provider")
    if provider not in onnxruntime.get_available_providers():
        raise ModelLoad(
            f"this build of ONNX Runtime has no {provider} for the replica's {kind} device: "
            "install one that has, such as onnxruntime-gpu>=1.31.1, or ask for no device"
        )
    if kind == "cuda":
        onnxruntime.preload_dlls()  # loads the CUDA libraries that torch ships
    return provider


def _output(session: Any, wanted: str | None) -> str:
    """Return the name of the output. Raises ModelLoad if it is missing, ambiguous or no tensor."""
    outputs = {node.name: node.type for node in session.get_outputs()}
    name = select_output_name(outputs, wanted)
    if not outputs[name].startswith("tensor("):
        raise ModelLoad(f"outputName: '{name}' is {outputs[name]}. Name an output that is a tensor")
    return name


def _dtype(wanted: Any) -> np.dtype[Any]:
    """Return the NumPy type of an input. ONNX Runtime writes it as tensor(TYPE)."""
    name = wanted.type.removeprefix("tensor(").removesuffix(")")
    dtype: np.dtype[Any] = np.dtype(_TYPES.get(name, name))
    return dtype


def _fit(wanted: Any, values: np.ndarray) -> np.ndarray:
    """Return values in the type and shape of the input `wanted`. Raises TypeError if they do not
    fit, or would need a cast between kinds of types, such as from int to float."""
    dtype = _dtype(wanted)
    if dtype.kind == "O":
        return _texts(wanted.name, values)
    values = _cast(wanted.name, numeric_array(wanted.name, values), dtype)
    # a column of scalars has shape (batch,), but the input expects (batch, 1)
    return values[:, np.newaxis] if values.ndim == 1 and len(wanted.shape) == 2 else values


def _texts(name: str, values: np.ndarray) -> np.ndarray:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"input '{name}' expects text, got {type(value).__name__}")
    return values.astype(object)


def _cast(name: str, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if values.dtype.kind != dtype.kind and not {values.dtype.kind, dtype.kind} <= {"i", "u"}:
        raise TypeError(
            f"input '{name}' is {dtype} and the column {values.dtype}, which is not cast: the "
            "integers of an image, for example, are usually not what a model of floats expects. "
            "Convert them in a python step"
        )
    with np.errstate(over="ignore"):
        cast = values.astype(dtype, copy=False)
    changed = cast != values if dtype.kind in "iu" else np.isinf(cast) & np.isfinite(values)
    if changed.any():
        raise TypeError(f"input '{name}' is {dtype}, and a value does not fit in it")
    return cast
