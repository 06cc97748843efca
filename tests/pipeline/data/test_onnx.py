"""ONNX models: the results of a direct call of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from batchinference.pipeline.blocks import to_batch
from batchinference.pipeline.devices import Device
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.runtimes import load_runtime
from batchinference.pipeline.runtimes.memory import memory_errors
from support.models import loaded, model_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Save = Callable[..., str]
Value = tuple[str, int, list[Any]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a model of these operators, inputs and outputs, and gives its path."""

    def write(nodes: list[Any], inputs: list[Value], outputs: list[Value], *weights: Any) -> str:
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            nodes, "graph", [info(*each) for each in inputs], [info(*each) for each in outputs],
            list(weights),
        )  # fmt: skip
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        onnx.checker.check_model(model)
        onnx.save(model, str(tmp_path / "model.onnx"))
        return str(tmp_path / "model.onnx")

    return write


def linear(save: Save, rows: Any = "rows", kind: int = FLOAT) -> str:
    """x @ weights, for rows of three numbers."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = np.random.default_rng(0).integers(-9, 9, (3, 2)).astype(dtype)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    shapes = [("x", kind, [rows, 3])], [("y", kind, [rows, 2])]
    return save([node], *shapes, numpy_helper.from_array(weights, "w"))


def same(save: Save, kind: int, shape: list[Any]) -> str:
    """Gives back its input."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return save([node], [("x", kind, shape)], [("y", kind, shape)])


def two_outputs(save: Save) -> str:
    nodes = [helper.make_node("Abs", ["x"], ["size"]), helper.make_node("Neg", ["x"], ["turned"])]
    return save(nodes, [("x", FLOAT, ["n"])], [("size", FLOAT, ["n"]), ("turned", FLOAT, ["n"])])


def direct(source: str, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def batch(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_result_is_that_of_a_direct_call(save: Save, rows: int) -> None:
    source = linear(save)
    run = loaded("onnx", ("x",), source=source)
    found = run({"x": batch(rows)})
    assert found.dtype == np.float32
    assert np.array_equal(found, direct(source, x=batch(rows)))


def test_a_network_that_torch_exported_gives_torchs_results(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
    shapes = {"input": {0: torch.export.Dim("rows")}}
    torch.onnx.export(
        net, (torch.zeros(2, 3, 8, 8),), tmp_path / "net.onnx", input_names=["pixels"],
        dynamic_shapes=shapes, dynamo=True, verbose=False, external_data=True,
    )  # fmt: skip
    pixels = np.random.default_rng(0).normal(size=(5, 3, 8, 8))
    with torch.inference_mode():
        expected = net(torch.tensor(pixels, dtype=torch.float32)).numpy()
    for source in (tmp_path / "net.onnx", tmp_path):
        found = loaded("onnx", ("pixels",), source=str(source))({"pixels": pixels})
        assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 9])
def test_a_model_for_a_fixed_number_of_rows_takes_any(save: Save, rows: int) -> None:
    source = linear(save, rows=4)
    found = loaded("onnx", ("x",), source=source)({"x": batch(rows)})
    padded = np.concatenate([batch(rows), np.zeros((12 - rows, 3), np.float32)])
    expected = np.concatenate([direct(source, x=padded[at : at + 4]) for at in (0, 4, 8)])
    assert np.array_equal(found, expected[:rows])


def test_several_inputs_are_given_by_name(save: Save) -> None:
    node = helper.make_node("Sub", ["left", "right"], ["y"])
    inputs = [("left", FLOAT, ["n"]), ("right", FLOAT, ["n"])]
    source = save([node], inputs, [("y", FLOAT, ["n"])])
    run = loaded("onnx", ("right", "left"), source=source)
    left, right = np.array([5.0, 6.0]), np.array([1.0, 4.0])
    assert run({"right": right, "left": left}).tolist() == [4, 2]


def test_one_of_several_outputs_is_chosen(save: Save) -> None:
    source = two_outputs(save)
    values = {"x": np.array([-1.0, 2.0], np.float32)}
    for name, expected in (("size", [1, 2]), ("turned", [1, -2])):
        assert loaded("onnx", ("x",), source=source, outputName=name)(values).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        (FLOAT, pa.array([[0.1, 0.2]], pa.list_(pa.float64())), [[0.1, 0.2]]),
        (TensorProto.DOUBLE, pa.array([[0.5, 2.0]], pa.list_(pa.float32())), [[0.5, 2.0]]),
        (TensorProto.FLOAT16, pa.array([[0.5, 2.0]]), [[0.5, 2.0]]),
        (TensorProto.INT32, pa.array([[-1, 2]], pa.list_(pa.int64())), [[-1, 2]]),
        (TensorProto.UINT8, pa.array([[0, 255]]), [[0, 255]]),
        (TensorProto.BOOL, pa.array([[True, False]]), [[True, False]]),
    ],
    ids=["float64 to float32", "float32 to float64", "to float16", "int64 to int32", "int64 to "
         "uint8", "flags"],
)  # fmt: skip
def test_columns_become_what_the_input_takes(
    save: Save, kind: int, column: pa.Array, expected: Any
) -> None:
    run = loaded("onnx", ("x",), source=same(save, kind, ["n", 2]))
    found = run(to_batch(pa.table({"x": column})))
    assert found.dtype == helper.tensor_dtype_to_np_dtype(kind)
    assert (
        found.tolist() == pytest.approx(np.array(expected), rel=1e-6) or found.tolist() == expected
    )


def test_texts_are_taken_by_models_of_texts(save: Save) -> None:
    run = loaded("onnx", ("x",), source=same(save, TensorProto.STRING, ["n"]))
    assert run({"x": np.array(["a", "bc"], object)}).tolist() == ["a", "bc"]
    with pytest.raises(TypeError, match="input 'x' expects text, got NoneType"):
        run({"x": np.array(["a", None], object)})


def test_a_column_of_numbers_stands_for_rows_of_one(save: Save) -> None:
    run = loaded("onnx", ("x",), source=same(save, FLOAT, ["n", 1]))
    assert run({"x": np.array([1.0, 2.0])}).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (FLOAT, np.array([[1, 2]], np.uint8), "'x' is float32 and the column uint8, which is not"),
        (FLOAT, np.array([[1, 2]]), "'x' is float32 and the column int64"),
        (FLOAT, np.array([[True, False]]), "'x' is float32 and the column bool"),
        (INT64, np.array([[1.0, 2.0]]), "'x' is int64 and the column float64"),
        (TensorProto.INT8, np.array([[1, 128]]), "'x' is int8, and a value does not fit in it"),
        (TensorProto.UINT8, np.array([[-1, 2]]), "'x' is uint8, and a value does not fit in it"),
        (FLOAT, np.array(["a", "b"], object), "'x' has rows of different shapes or no numbers"),
    ],
    ids=["an image", "whole numbers", "flags", "floating", "too large", "too small", "text"],
)
def test_what_would_have_to_be_bent_is_refused(
    save: Save, kind: int, values: np.ndarray, words: str
) -> None:
    run = loaded("onnx", ("x",), source=same(save, kind, ["n", 2]))
    with pytest.raises(TypeError, match=words):
        run({"x": values})


@pytest.mark.parametrize(
    ("inputs", "fields", "words"),
    [
        (("y",), {}, "the model takes x, not y"),
        (("x", "y"), {"outputName": "size"}, "the model takes x, not x, y"),
        (("x",), {}, "the outputs size, turned: name one as 'outputName'"),
        (("x",), {"outputName": "other"}, "no output 'other': it has size, turned"),
    ],
    ids=["another input", "an input more", "no output", "another output"],
)
def test_what_the_model_does_not_have_is_told_when_it_is_loaded(
    save: Save, inputs: tuple[str, ...], fields: dict[str, Any], words: str
) -> None:
    source = two_outputs(save)
    with pytest.raises(ModelLoad, match=words):
        loaded("onnx", inputs, source=source, **fields)


def test_an_output_that_is_no_tensor_is_told(save: Save) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    source = save([node], [("x", FLOAT, ["n"])], [])
    model = onnx.load(source)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    model.graph.output.append(helper.make_value_info("y", kind))
    onnx.save(model, source)
    with pytest.raises(ModelLoad, match=r"the output 'y' is no tensor but seq\(tensor\(float\)\)"):
        loaded("onnx", ("x",), source=source)


def test_a_folder_holds_one_model(save: Save, tmp_path: Path) -> None:
    linear(save)
    (tmp_path / "second.onnx").touch()
    with pytest.raises(ModelLoad, match=r"must hold one \.onnx file, and holds 2"):
        loaded("onnx", ("x",), source=str(tmp_path))


def test_a_replica_computes_with_the_threads_of_its_cpus(save: Save) -> None:
    run = load_runtime(model_of("onnx", ("x",), source=linear(save)), Device("cpu", 1, 2))
    options = run._session.get_session_options()  # type: ignore[attr-defined]
    assert options.intra_op_num_threads == 2


def test_a_device_that_onnxruntime_does_not_know_is_not_left_idle(save: Save) -> None:
    with pytest.raises(ModelLoad, match="has no provider for the replica's tpu device"):
        load_runtime(model_of("onnx", ("x",), source=linear(save)), Device("tpu"))


@pytest.mark.usefixtures("counted_gpus")
def test_where_gpus_are_only_counted_the_cpu_computes(save: Save) -> None:
    run = load_runtime(model_of("onnx", ("x",), source=linear(save)), Device("cuda"))
    assert run({"x": batch(2)}).shape == (2, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU where there is none")
def test_a_gpu_that_onnxruntime_cannot_use_is_not_left_idle(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchinference.pipeline.runtimes import onnx as runtime

    monkeypatch.setattr(runtime, "take", lambda device: torch.device(device.name))
    with pytest.raises(ModelLoad, match="no CUDAExecutionProvider for the replica's cuda device"):
        load_runtime(model_of("onnx", ("x",), source=linear(save)), Device("cuda"))


@pytest.mark.parametrize(
    "words",
    [
        "Failed to allocate memory for requested buffer of size 4096",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes",
        "OOM when allocating tensor with shape[1000000]",
    ],
    ids=["ONNX Runtime", "JAX", "TensorFlow"],
)
def test_a_device_without_memory_is_told_as_torch_tells_it(words: str) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="llocat"), memory_errors():
        raise RuntimeError(words)
    with pytest.raises(ValueError, match="another"), memory_errors():
        raise ValueError("another")
