"""PyTorch modules: results equal those of the module, for every file format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from batchinference.pipeline.arrow import to_batch
from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import device_of, torch_device
from batchinference.pipeline.runtimes.model_io import select_output
from plugins.messages import Messages
from support.models import replicas

FACTORY = "user_code:Affine"
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def runtime(*inputs: str, **fields: Any) -> Runtime:
    return replicas.loaded("torch", inputs or ("x",), **fields)


def affine(**arguments: Any) -> torch.nn.Module:
    import user_code

    torch.manual_seed(0)
    return user_code.Affine(**arguments).eval()


def batch(rows: int, features: int = 3) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, features)).astype(np.float32)


def direct(module: torch.nn.Module, values: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        result: np.ndarray = module(torch.tensor(values)).numpy()
        return result


def _trusted(path: Path) -> dict[str, Any]:
    return {"source": str(path), "trustSource": True}


def _state_dict(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    torch.save(module.state_dict(), folder / "weights.pt")
    return {"factory": FACTORY, "source": str(folder / "weights.pt")}


def _safetensors(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    save_file(module.state_dict(), folder / "weights.safetensors")
    return {"factory": FACTORY, "source": str(folder / "weights.safetensors")}


def _script(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    torch.jit.script(module).save(folder / "model.pt")
    return _trusted(folder / "model.pt")


def _program(module: torch.nn.Module, folder: Path, by_name: bool = False) -> dict[str, Any]:
    args, kwargs = ((), {"x": torch.zeros(2, 3)}) if by_name else ((torch.zeros(2, 3),), {})
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    return _trusted(folder / "model.pt2")


@pytest.mark.parametrize(
    "keep", [_state_dict, _safetensors, _script, _program, partial(_program, by_name=True)]
)
def test_saved_module_gives_its_results(keep: Any, tmp_path: Path) -> None:
    module = affine()
    loaded = runtime(**keep(module, tmp_path))
    for rows in (1, 2, 7):
        result = loaded({"x": batch(rows)})
        assert result.dtype == np.float32
        assert np.abs(result - direct(module, batch(rows))).max() < 1e-6
    full = loaded({"x": batch(9)})
    parts = [loaded({"x": batch(9)[at : at + 2]}) for at in range(0, 9, 2)]
    assert np.abs(np.concatenate(parts) - full).max() < 1e-6


def test_factory_gets_its_arguments() -> None:
    torch.manual_seed(0)
    loaded = runtime(factory=FACTORY, factoryArgs={"features": 5, "scale": 2.0})
    module = affine(features=5, scale=2.0)
    assert np.abs(loaded({"x": batch(4, 5)}) - direct(module, batch(4, 5))).max() < 1e-6


def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 1))


@pytest.mark.parametrize("scripted", [False, True])
def test_single_input_may_have_any_name(scripted: bool, tmp_path: Path) -> None:
    module = linear()
    if scripted:
        torch.jit.script(module).save(tmp_path / "model.pt")
        model = runtime("data", **_trusted(tmp_path / "model.pt"))
    else:
        torch.save(module.state_dict(), tmp_path / "model.pt")
        model = runtime("data", factory=f"{__name__}:linear", source=str(tmp_path / "model.pt"))
    assert model({"data": batch(2)}) == pytest.approx(direct(module, batch(2)))


def test_pickled_module_is_rejected(tmp_path: Path, messages: Messages) -> None:
    torch.save(linear(), tmp_path / "model.bin")
    with messages.raises(ModelLoad):
        runtime(**_trusted(tmp_path / "model.bin"))
    with pytest.raises(ModelLoad, match=r"holds more than tensors.*model.state_dict\(\)"):
        runtime(factory=FACTORY, source=str(tmp_path / "model.bin"))


def test_program_takes_inputs_by_name(tmp_path: Path) -> None:
    import user_code

    left, right = torch.rand(2, 3), torch.rand(2, 3)
    program = torch.export.export(user_code.Two().eval(), (left,), {"right": right})
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = runtime("right", "left", **_trusted(tmp_path / "model.pt2"))
    result = loaded({"right": right.numpy(), "left": left.numpy()})
    assert np.abs(result - (left @ right.T).numpy()).max() < 1e-6


@pytest.mark.parametrize("fixed", [1, 4])
def test_program_with_a_fixed_batch_size_accepts_any_batch(fixed: int, tmp_path: Path) -> None:
    module = affine()
    program = torch.export.export(module, (torch.zeros(fixed, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = runtime(**_trusted(tmp_path / "model.pt2"))
    for rows in (1, 3, 4, 9):
        result = loaded({"x": batch(rows)})
        assert result.shape == (rows, 2)
        assert np.abs(result - direct(module, batch(rows))).max() < 1e-6


def test_module_that_squeezes_takes_one_row() -> None:
    loaded = runtime(factory="user_code:Squeezing")
    for features, shape in ((1, (2,)), (3, (2, 3))):
        values = batch(2, features)
        both = loaded({"x": values})
        assert both.shape == shape
        parts = [loaded({"x": values[at : at + 1]}) for at in range(2)]
        assert np.array_equal(np.concatenate(parts), both)


def test_unusable_model_is_rejected_at_load(tmp_path: Path, messages: Messages) -> None:
    for fields, reason in (
        ({"factory": "user_code:no_module"}, "module' returned int. Return a torch Module"),
        ({"factory": "user_code:none"}, "cannot load 'user_code:none'"),
        (_trusted(Path("/nowhere/model.pt")), "model '/nowhere/model.pt' not found: there is no"),
    ):
        with pytest.raises(ModelLoad, match=reason):
            runtime(**fields)
    with messages.raises(ModelLoad):
        runtime("image", **_program(affine(), tmp_path))
    with messages.raises(ModelLoad):
        runtime("x", "y", factory=f"{__name__}:linear")


def test_outputs_keep_their_type_except_bfloat16() -> None:
    for dtype in ("float16", "float32", "float64", "int8", "int64", "bool", "bfloat16"):
        loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": dtype})
        result = loaded({"x": np.array([[0.0, 1.0]])})
        assert result.dtype == np.dtype("float32" if dtype == "bfloat16" else dtype)
        assert result.tolist() == [[0, 1]]
    assert loaded({"x": np.array([[0.5, 2.0]])}).tolist() == [[0.5, 2.0]]


def test_number_columns_become_tensors() -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": "float64"})
    for column in (
        pa.array([1, 2], pa.int8()),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
        pa.array([[[1], [2]], [[3], [4]]]),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        pa.array([True, False]),
    ):
        assert loaded(to_batch(pa.table({"x": column}))).tolist() == column.to_pylist()


def test_other_columns_are_rejected_by_input_name(messages: Messages) -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": "float32"})
    for values in (["a", "b"], [[1], [1, 2]], [[1], None], [{"a": 1}] * 2, [[["a"]], [["b"]]]):
        with messages.raises(TypeError):
            loaded(to_batch(pa.table({"x": pa.array(values)})))


def test_module_may_write_into_its_input() -> None:
    values = np.array([1.0, 2.0])
    values.flags.writeable = False
    loaded = runtime(factory="user_code:InPlace")
    assert loaded({"x": values}).tolist() == [2.0, 3.0]
    assert values.tolist() == [1.0, 2.0]


def test_module_may_use_its_output_again() -> None:
    loaded = runtime(factory="user_code:Static")
    first, second = (loaded({"x": np.array([number, 1.0])}) for number in (3.0, 4.0))
    assert (first.tolist(), second.tolist()) == ([6.0, 2.0], [8.0, 2.0])


def test_output_name_selects_an_output() -> None:
    for factory, name in (("user_code:Tuple", "1"), ("user_code:Dict", "twice")):
        assert runtime(factory=factory, outputName=name)({"x": np.arange(2.0)}).tolist() == [0, 2]
    with pytest.raises(ModelLoad, match=r"outputName: .* outputs\. Name one of 0, 1"):
        runtime(factory="user_code:Tuple")({"x": np.zeros(2)})
    with pytest.raises(ModelLoad, match=r"outputName: .* no outputs"):
        select_output({}, None)
    with pytest.raises(ModelLoad, match="no output 'x'"):
        runtime(factory="user_code:Dict", outputName="x")({"x": np.zeros(2)})
    with pytest.raises(TypeError, match="the module returned str, not one tensor"):
        runtime(factory="user_code:Words")({"x": np.zeros(2)})


@pytest.mark.parametrize("keep", [_state_dict, _script, _program])
def test_float64_columns_are_cast_to_the_module(keep: Any, tmp_path: Path) -> None:
    """Doubles in Parquet files, and the numbers in JSON and CSV files, are read as float64."""
    module = affine()
    column = pa.array(batch(4).astype(np.float64).tolist(), pa.list_(pa.float64()))
    loaded = runtime(**keep(module, tmp_path))
    result = loaded(to_batch(pa.table({"x": column})))
    assert (result.dtype, np.abs(result - direct(module, batch(4))).max() < 1e-6) == ("f", True)
    for floats, limit in ((torch.float32, 3.4028235e38), (torch.float8_e4m3fn, 448.0)):
        loaded._floats = floats  # type: ignore[attr-defined]
        assert loaded._tensor("x", np.array([limit, np.inf])).dtype == floats  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="does not fit"):  # not infinity
            loaded({"x": np.full((4, 3), -2 * limit)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("keep", [_state_dict, _script])
def test_dtype_is_the_modules_dtype(keep: Any, dtype: str, tmp_path: Path) -> None:
    module = affine()
    result = runtime(dtype=dtype, **keep(module, tmp_path))({"x": batch(4)})
    assert result.dtype == {"float16": np.float16, "bfloat16": np.float32}[dtype]
    wanted = getattr(torch, dtype)
    with torch.inference_mode():
        expected = module.to(wanted)(torch.tensor(batch(4)).to(wanted)).float().numpy()
    assert np.abs(result - expected).max() < 1e-6


def test_integers_stay_integers() -> None:
    torch.manual_seed(0)
    arguments = {"num_embeddings": 4, "embedding_dim": 2}
    loaded = runtime("input", factory="torch.nn:Embedding", factoryArgs=arguments)
    assert loaded({"input": np.array([0, 3])}).shape == (2, 2)


def test_module_runs_in_evaluation_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded = runtime(factory=FACTORY)  # has dropout, which differs between calls in training mode
    assert np.array_equal(loaded({"x": batch(50)}), loaded({"x": batch(50)}))


def test_threads_equal_the_cpus_of_the_replica() -> None:
    for cpus, threads in ((1, 1), (2.5, 2), (0.5, 1)):
        assert torch_device(device_of(cpus=cpus, gpus=0)) == torch.device("cpu")
        assert torch.get_num_threads() == threads


@pytest.mark.skipif("torch.cuda.is_available()", reason="needs a machine without GPU")
def test_missing_gpu_is_rejected() -> None:
    with pytest.raises(ModelLoad, match=r"was given a GPU, and PyTorch .* finds none"):
        torch_device(device_of(cpus=1, gpus=1))
