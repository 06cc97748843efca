"""ONNX models: the results equal those of a direct call of ONNX Runtime."""

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

from batchinference.pipeline.arrow import to_batch
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import load_runtime
from batchinference.pipeline.runtimes.onnx import _check_version
from plugins.messages import Messages
from support.models.replicas import loaded, model_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Save = Callable[..., str]
Value = tuple[str, int, list[Any]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that writes a model of given operators and returns its path."""

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
    """Write a model that computes x @ weights for rows of three numbers. Return its path."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = np.random.default_rng(0).integers(-9, 9, (3, 2)).astype(dtype)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    shapes = [("x", kind, [rows, 3])], [("y", kind, [rows, 2])]
    return save([node], *shapes, numpy_helper.from_array(weights, "w"))


def same(save: Save, kind: int, shape: list[Any]) -> str:
    """Write a model that returns its input. Return its path."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return save([node], [("x", kind, shape)], [("y", kind, shape)])


def direct(source: str, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def batch(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)


def test_result_equals_a_direct_call(save: Save) -> None:
    source = linear(save)
    run = loaded("onnx", ("x",), source=source)
    for rows in (1, 2, 7):
        result = run({"x": batch(rows)})
        assert result.dtype == np.float32
        assert np.array_equal(result, direct(source, x=batch(rows)))


def test_network_exported_by_torch_matches_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        net, (torch.zeros(2, 3, 8, 8),), path, input_names=["pixels"],
        dynamic_axes={"pixels": {0: "rows"}}, dynamo=False,
    )  # fmt: skip
    external = {"save_as_external_data": True, "size_threshold": 0, "location": "net.onnx.data"}
    onnx.save(onnx.load(path), path, **external)
    assert (tmp_path / "net.onnx.data").exists()
    pixels = np.random.default_rng(0).normal(size=(5, 3, 8, 8))
    with torch.inference_mode():
        expected = net(torch.tensor(pixels, dtype=torch.float32)).numpy()
    for source in (path, tmp_path):
        result = loaded("onnx", ("pixels",), source=str(source))({"pixels": pixels})
        assert np.abs(result - expected).max() < 1e-5


def test_model_with_a_fixed_batch_size_accepts_any_batch(save: Save) -> None:
    source = linear(save, rows=4)
    run = loaded("onnx", ("x",), source=source)
    for rows in (1, 3, 4, 8, 9):
        padded = np.concatenate([batch(rows), np.zeros((12 - rows, 3), np.float32)])
        expected = np.concatenate([direct(source, x=padded[at : at + 4]) for at in (0, 4, 8)])
        assert np.array_equal(run({"x": batch(rows)}), expected[:rows])


def test_output_without_an_axis_of_rows_is_refused(save: Save, messages: Messages) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Transpose", ["n"], ["y"])]
    source = save(nodes, [("x", FLOAT, [1, 3])], [("y", INT64, ["k", 2])])
    with messages.raises(JobFailure):  # each row has two numbers that are not 0
        loaded("onnx", ("x",), source=source)({"x": np.float32([[1, 0, 1], [0, 1, 1]])})


def test_inputs_are_passed_by_name(save: Save) -> None:
    node = helper.make_node("Sub", ["left", "right"], ["y"])
    inputs = [("left", FLOAT, ["n"]), ("right", FLOAT, ["n"])]
    source = save([node], inputs, [("y", FLOAT, ["n"])])
    run = loaded("onnx", ("right", "left"), source=source)
    left, right = np.array([5.0, 6.0]), np.array([1.0, 4.0])
    assert run({"right": right, "left": left}).tolist() == [4, 2]


def test_output_name_selects_an_output(save: Save) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["size"]), helper.make_node("Neg", ["x"], ["turned"])]
    x, *outputs = ((name, FLOAT, ["n"]) for name in ("x", "size", "turned"))
    source = save(nodes, [x], outputs)
    values = {"x": np.array([-1.0, 2.0], np.float32)}
    for name, expected in (("size", [1, 2]), ("turned", [1, -2])):
        assert loaded("onnx", ("x",), source=source, outputName=name)(values).tolist() == expected
    for inputs, fields, reason in (
        (("y",), {}, "the model takes x, not y"),
        (("x", "y"), {"outputName": "size"}, "the model takes x, not x, y"),
        (("x",), {}, "outputName: the model has several outputs. Name one of size, turned"),
        (("x",), {"outputName": "other"}, "no output 'other'. Name one of size, turned"),
    ):
        with pytest.raises(ModelLoad, match=reason):
            loaded("onnx", inputs, source=source, **fields)


def test_columns_are_cast_to_the_input_type(save: Save) -> None:
    for kind, values, of in (
        (FLOAT, [[0.1, 0.2]], pa.float64()),
        (TensorProto.DOUBLE, [[0.5, 2.0]], pa.float32()),
        (TensorProto.FLOAT16, [[0.5, 2.0]], pa.float64()),
        (TensorProto.INT32, [[-1, 2]], pa.int64()),
        (TensorProto.UINT8, [[0, 255]], pa.int64()),
        (TensorProto.BOOL, [[True, False]], pa.bool_()),
    ):
        run = loaded("onnx", ("x",), source=same(save, kind, ["n", 2]))
        result = run(to_batch(pa.table({"x": pa.array(values, pa.list_(of))})))
        assert result.dtype == helper.tensor_dtype_to_np_dtype(kind)
        assert np.allclose(result, values, rtol=1e-6, atol=0)


def test_texts_and_numbers_are_rows_of_one_value(save: Save) -> None:
    run = loaded("onnx", ("x",), source=same(save, TensorProto.STRING, ["n"]))
    assert run({"x": np.array(["a", "bc"], object)}).tolist() == ["a", "bc"]
    with pytest.raises(TypeError, match="input 'x' expects text, got NoneType"):
        run({"x": np.array(["a", None], object)})
    run = loaded("onnx", ("x",), source=same(save, FLOAT, ["n", 1]))
    assert run({"x": np.array([1.0, 2.0])}).tolist() == [[1], [2]]


def test_lossy_casts_are_rejected(save: Save) -> None:
    for kind, values, reason in (
        (FLOAT, np.array([[1, 2]], np.uint8), "'x' is float32 and the column uint8, which is not"),
        (FLOAT, np.array([[1, 2]]), "'x' is float32 and the column int64"),
        (FLOAT, np.array([[True, False]]), "'x' is float32 and the column bool"),
        (INT64, np.array([[1.0, 2.0]]), "'x' is int64 and the column float64"),
        (TensorProto.INT8, np.array([[1, 128]]), "'x' is int8, and a value does not fit in it"),
        (TensorProto.UINT8, np.array([[-1, 2]]), "'x' is uint8, and a value does not fit in it"),
        (FLOAT, np.array([[1e39, 2.0]]), "'x' is float32, and a value does not fit in it"),
        (FLOAT, np.array(["a", "b"], object), "'x' has rows of different shapes or no numbers"),
    ):
        run = loaded("onnx", ("x",), source=same(save, kind, ["n", 2]))
        with pytest.raises(TypeError, match=reason):
            run({"x": values})


def test_output_other_than_a_tensor_is_rejected(save: Save) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    source = save([node], [("x", FLOAT, ["n"])], [])
    model = onnx.load(source)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    model.graph.output.append(helper.make_value_info("y", kind))
    onnx.save(model, source)
    with pytest.raises(ModelLoad, match=r"outputName: 'y' is seq\(tensor\(float\)\)"):
        loaded("onnx", ("x",), source=source)


def test_folder_with_two_models_is_rejected(save: Save, tmp_path: Path) -> None:
    linear(save)
    (tmp_path / "second.onnx").touch()
    with pytest.raises(ModelLoad, match=r"has 2 \.onnx files"):
        loaded("onnx", ("x",), source=str(tmp_path))


@pytest.mark.usefixtures("counted_gpus")
def test_device_of_the_replica_is_used(save: Save) -> None:
    model = model_of("onnx", ("x",), source=linear(save))
    options = load_runtime(model, Device("cpu", 1, 2))._session.get_session_options()  # type: ignore[attr-defined]
    assert options.intra_op_num_threads == 2
    assert load_runtime(model, Device("cuda"))({"x": batch(2)}).shape == (2, 2)
    with pytest.raises(ModelLoad, match="has no provider for the replica's tpu device"):
        load_runtime(model, Device("tpu"))


@pytest.mark.skipif("torch.cuda.is_available()", reason="simulates a GPU")
def test_unusable_gpu_is_rejected(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchinference.pipeline.runtimes import onnx as runtime

    monkeypatch.setattr(runtime, "torch_device", lambda device: torch.device(device.name))
    with pytest.raises(ModelLoad, match="no CUDAExecutionProvider for the replica's cuda device"):
        load_runtime(model_of("onnx", ("x",), source=linear(save)), Device("cuda"))


@pytest.mark.parametrize("as_constant", [False, True])
@pytest.mark.parametrize(
    "location", ["../victim.bin", "sub/../../victim.bin", "{}/victim.bin", "link.bin"]
)
def test_external_data_outside_of_the_folder_is_refused(
    tmp_path: Path, location: str, as_constant: bool
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (tmp_path / "victim.bin", folder / "own.bin"):
        file.write_bytes(np.float32(7).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "victim.bin")
    weight = TensorProto(name="w", dims=[1], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    nodes = [*([constant] if as_constant else []), helper.make_node("Add", ["x", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, FLOAT, [1]) for name in "xy")

    def run(name: str) -> Any:
        weight.ClearField("external_data")
        weight.external_data.add(key="location", value=name)
        weight.external_data.add(key="length", value="4")
        if as_constant:
            constant.attribute[0].t.CopyFrom(weight)
        graph = helper.make_graph(nodes, "g", [x], [y], [] if as_constant else [weight])
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        onnx.save(model, str(folder / "model.onnx"))
        return loaded("onnx", ("x",), source=str(folder))({"x": np.zeros(1, np.float32)})

    assert run("own.bin").tolist() == [7]
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="xternal data"):
        run(location.format(tmp_path))


def test_version_whose_models_read_other_files_is_refused() -> None:
    _check_version("1.31.1")
    for version in ("1.31.0", "1.23.2", "1.30"):
        with pytest.raises(ModelLoad, match=f"ONNX Runtime {version} lets models read"):
            _check_version(version)
