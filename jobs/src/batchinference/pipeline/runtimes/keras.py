"""Runs Keras models on any Keras backend."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_use import computing
from batchinference.pipeline.runtimes import (
    check_input_names,
    chosen,
    model_of_factory,
    numbers,
)
from batchinference.pipeline.runtimes.device import Device, torch_device
from batchinference.pipeline.runtimes.model_files import resolve_place
from batchinference.spec.models import KerasModel

MIN_VERSION = (3, 15, 1)
"""The first version in which models cannot read other files."""


class KerasRuntime:
    def __init__(self, model: KerasModel, device: Device) -> None:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it when it is imported
        import keras

        _check_version(keras.__version__)
        self._place = _place(device, keras.backend.backend())
        self._device = keras.device
        self._output_name = model.output_name
        with self._device(self._place):
            self._model = _load(model)
        _check_inputs(self._model, set(model.inputs))

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        arrays = {name: numbers(name, values) for name, values in inputs.items()}
        model_inputs = arrays if len(arrays) > 1 else next(iter(arrays.values()))
        with computing(), self._device(self._place):
            output = self._model.predict_on_batch(model_inputs)
        if isinstance(output, list | tuple) and hasattr(self._model, "output_names"):
            output = dict(zip(self._model.output_names, output, strict=True))
        result: np.ndarray = chosen(output, self._output_name)
        # NumPy has no native bfloat16
        return result.astype(np.float32) if result.dtype.name == "bfloat16" else result


def _check_version(version: str) -> None:
    """Raise ModelLoad if models can read other files in this version of Keras."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ModelLoad(
            f"Keras {version} lets models read other files. Install keras {least} or later"
        )


def _place(device: Device, backend: str) -> str:
    """Return the Keras name of the device. Raises ModelLoad if the backend does not support it."""
    if backend == "torch":
        return str(torch_device(device))
    if device.kind not in ("cpu", "cuda"):
        raise ModelLoad(f"Keras on {backend} has no devices of the kind '{device.kind}'")
    import keras

    # Keras lists accelerators if there are any, otherwise the CPU
    first: str = keras.distribution.list_devices()[0]
    return "cpu:0" if device.kind == "cpu" else first.lower()


def _load(model: KerasModel) -> Any:
    import keras

    path = resolve_place(model.source, model.storage) if model.source else None
    if model.factory is None:
        return keras.saving.load_model(path, compile=False)
    made: Any = model_of_factory(model.factory, model.factory_args or {}, keras.Model)
    if path is not None:
        made.load_weights(path)
    return made


def _check_inputs(model: Any, configured: set[str]) -> None:
    """Raise ModelLoad if the model declares input names that differ from the configured names."""
    tensors = getattr(model, "inputs", None) or []
    if len(tensors) == 1 and len(configured) == 1:
        return
    by_key = len(tensors) > 1 and isinstance(model.input, dict)
    names = set(model.input) if by_key else {tensor.name for tensor in tensors}
    if names:
        check_input_names(names, configured)
