"""Keras models on the torch backend: results equal those of a direct call.

Keras takes seconds to import, so only the functions that use it import it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import Runtime, load_runtime
from batchinference.pipeline.runtimes.device import Device
from support.models.replicas import loaded, model_of

os.environ.setdefault("KERAS_BACKEND", "torch")

FACTORY = "user_keras:dense"


def dense(**arguments: Any) -> Any:
    import keras
    import user_keras

    keras.utils.set_random_seed(0)
    return user_keras.dense(**arguments)


def runtime(*inputs: str, **fields: Any) -> Runtime:
    return loaded("keras", inputs or ("x",), **fields)


def batch(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)


def direct(model: Any, values: Any) -> np.ndarray:
    import keras

    with torch.inference_mode():
        return np.asarray(keras.ops.convert_to_numpy(model(values, training=False)))


@pytest.mark.parametrize("kind", ["file", "weights"])
def test_saved_model_gives_the_same_results(kind: str, tmp_path: Path) -> None:
    model = dense()
    path = tmp_path / ("model.keras" if kind == "file" else "model.weights.h5")
    if kind == "file":
        model.save(path)
    else:
        model.save_weights(path)
    run = runtime(source=str(path), **({} if kind == "file" else {"factory": FACTORY}))
    for rows in (1, 2, 7):
        found = run({"x": batch(rows)})
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert np.abs(found - direct(model, batch(rows))).max() < 1e-6


def test_factory_is_called_with_its_arguments() -> None:
    import keras

    keras.utils.set_random_seed(0)
    found = runtime(factory=FACTORY, factoryArgs={"units": 5})({"x": batch(4)})
    assert np.abs(found - direct(dense(units=5), batch(4))).max() < 1e-6


def test_convolution_gives_the_same_results(tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.Input((8, 8, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3)]
    model = keras.Sequential(layers)
    model.save(tmp_path / "model.keras")
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    found = runtime(source=str(tmp_path / "model.keras"))({"x": images})
    assert np.abs(found - direct(model, images.astype(np.float32))).max() < 1e-5


def test_float64_columns_and_bfloat16_outputs_become_float32() -> None:
    assert runtime(factory=FACTORY)({"x": batch(4).astype(np.float64)}).dtype == np.float32
    rough = runtime(factory=FACTORY, factoryArgs={"dtype": "bfloat16"})
    assert rough({"x": batch(2)}).dtype == np.float32


def test_inputs_are_passed_by_name(tmp_path: Path) -> None:
    run = runtime("right", "left", factory="user_keras:difference")
    values = {"right": np.array([[1.0], [2.0]]), "left": np.array([[5.0], [7.0]])}
    assert run(values).tolist() == [[4], [5]]


def test_output_name_selects_an_output() -> None:
    values = {"x": np.array([[1.0], [2.0]])}
    for factory, name, expected in [
        ("user_keras:two_outputs", "double", [2, 4]),
        ("user_keras:two_outputs", "triple", [3, 6]),
        ("user_keras:dict_of_outputs", "b", [3, 6]),
    ]:
        assert runtime(factory=factory, outputName=name)(values).ravel().tolist() == expected
    with pytest.raises(
        ModelLoad, match=r"outputName: the model has several outputs\. Name one of double, triple"
    ):
        runtime(factory="user_keras:two_outputs")(values)
    with pytest.raises(
        ModelLoad, match=r"outputName: no output 'half'\. Name one of double, triple"
    ):
        runtime(factory="user_keras:two_outputs", outputName="half")(values)


def test_dropout_is_off() -> None:
    run = runtime(factory=FACTORY, factoryArgs={"dropout": 0.5})
    assert np.array_equal(run({"x": batch(50)}), run({"x": batch(50)}))


def test_rows_of_different_shapes_are_rejected() -> None:
    values = np.empty(2, dtype=object)
    values[:] = [np.zeros(3), np.zeros(2)]
    with pytest.raises(TypeError, match="input 'x' has rows of different shapes"):
        runtime(factory=FACTORY)({"x": values})


def test_mismatched_model_is_rejected_at_load() -> None:
    difference = {"factory": "user_keras:difference"}
    cases: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("left", "other"), difference, "takes left, right, not left, ot"),
        (("left",), difference, "the model takes left, right, not left"),
        (("x",), {"factory": "user_keras:nothing"}, "'user_keras:nothing' returned int"),
        (("x",), {"source": "/nowhere/model.keras"}, "'/nowhere/model.keras' not found: there is"),
    ]
    for inputs, fields, reason in cases:
        with pytest.raises(ModelLoad, match=reason):
            runtime(*inputs, **fields)


def test_device_unknown_to_keras_is_rejected() -> None:
    from batchinference.pipeline.runtimes.keras import _place

    with pytest.raises(ModelLoad, match="Keras on jax has no devices of the kind 'npu'"):
        _place(Device("npu"), "jax")


@pytest.mark.usefixtures("counted_gpus")
def test_threads_equal_the_cpus_of_the_replica() -> None:
    model = model_of("keras", ("x",), factory=FACTORY)
    for device in (Device("cpu", 1, 2), Device("cuda", 1, 2)):
        if device.kind == "cpu" or not torch.cuda.is_available():
            load_runtime(model, device)
            assert torch.get_num_threads() == 2


@pytest.mark.parametrize("version", ["3.13.0", "3.15.0", "3.9", "2.15.0.dev1"])
def test_version_whose_models_read_other_files_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime("a", factory="user_keras:dense")
    monkeypatch.setattr("keras.__version__", version)
    with pytest.raises(ModelLoad, match=r"Install keras 3\.15\.1 or later"):
        runtime("a", factory="user_keras:dense")
