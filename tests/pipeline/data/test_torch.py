"""PyTorch modules: the results of the module itself, however it was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from batchinference.pipeline.blocks import to_batch
from batchinference.pipeline.devices import Device, device_of
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.runtimes import load_runtime
from batchinference.pipeline.runtimes.base import Runtime, take
from batchinference.spec.models import TorchModel

FACTORY = "user_code:Affine"
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def runtime(*inputs: str, **fields: Any) -> Runtime:
    columns = {name: name for name in inputs or ("x",)}
    model = {"runtime": "torch", "inputs": columns, "output": "out", **fields}
    return load_runtime(TorchModel.model_validate(model), Device())


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


def _state_dict(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    torch.save(module.state_dict(), folder / "weights.pt")
    return {"factory": FACTORY, "source": str(folder / "weights.pt")}


def _script(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    torch.jit.script(module).save(folder / "model.pt")
    return {"source": str(folder / "model.pt")}


def _trace(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    torch.jit.trace(module, (torch.zeros(2, 3),)).save(folder / "model.pt")
    return {"source": str(folder / "model.pt")}


def _program(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    return _exported(module, folder, (torch.zeros(2, 3),), {})


def _program_by_name(module: torch.nn.Module, folder: Path) -> dict[str, Any]:
    return _exported(module, folder, (), {"x": torch.zeros(2, 3)})


def _exported(
    module: torch.nn.Module, folder: Path, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    return {"source": str(folder / "model.pt2")}


@pytest.mark.parametrize(
    "keep",
    [_state_dict, _script, _trace, _program, _program_by_name],
    ids=["state dict", "script", "trace", "program", "program called by name"],
)
def test_a_module_that_was_kept_gives_its_results(keep: Any, tmp_path: Path) -> None:
    module = affine()
    loaded = runtime(**keep(module, tmp_path))
    for rows in (1, 2, 7):
        found = loaded({"x": batch(rows)})
        assert found.dtype == np.float32
        assert np.abs(found - direct(module, batch(rows))).max() < 1e-6


def test_a_factory_makes_the_module_with_its_arguments() -> None:
    torch.manual_seed(0)
    loaded = runtime(factory=FACTORY, factoryArgs={"features": 5, "scale": 2.0})
    module = affine(features=5, scale=2.0)
    assert np.abs(loaded({"x": batch(4, 5)}) - direct(module, batch(4, 5))).max() < 1e-6


def test_results_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    loaded = runtime(**_state_dict(affine(), tmp_path))
    whole = loaded({"x": batch(9)})
    parts = [loaded({"x": batch(9)[at : at + 2]}) for at in range(0, 9, 2)]
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-6


def test_several_inputs_are_given_by_name() -> None:
    left, right = np.arange(6).reshape(2, 3), np.arange(6, 12).reshape(2, 3)
    found = runtime("left", "right", factory="user_code:Two")({"right": right, "left": left})
    assert found.tolist() == (left @ right.T).tolist()


def test_a_program_takes_several_inputs_by_name(tmp_path: Path) -> None:
    import user_code

    left, right = torch.rand(2, 3), torch.rand(2, 3)
    program = torch.export.export(user_code.Two().eval(), (left,), {"right": right})
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = runtime("right", "left", source=str(tmp_path / "model.pt2"))
    found = loaded({"right": right.numpy(), "left": left.numpy()})
    assert np.abs(found - (left @ right.T).numpy()).max() < 1e-6


@pytest.mark.parametrize("fixed", [1, 4])
def test_a_program_for_a_fixed_number_of_rows_is_given_that_many(
    fixed: int, tmp_path: Path
) -> None:
    module = affine()
    program = torch.export.export(module, (torch.zeros(fixed, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = runtime(source=str(tmp_path / "model.pt2"))
    for rows in (1, 3, 4, 9):
        found = loaded({"x": batch(rows)})
        assert found.shape == (rows, 2)
        assert np.abs(found - direct(module, batch(rows))).max() < 1e-6


@pytest.mark.parametrize("features", [1, 3], ids=["numbers", "vectors"])
def test_a_module_that_squeezes_may_be_given_one_row(features: int) -> None:
    loaded = runtime(factory="user_code:Squeezing")
    values = batch(2, features)
    both = loaded({"x": values})
    assert both.shape == ((2,) if features == 1 else (2, 3))
    parts = [loaded({"x": values[at : at + 1]}) for at in range(2)]
    assert np.array_equal(np.concatenate(parts), both)


def test_a_program_with_other_inputs_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelLoad, match="the program takes x, not image"):
        runtime("image", **_program(affine(), tmp_path))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
def test_outputs_keep_their_type(dtype: str) -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": dtype})
    found = loaded({"x": np.array([[0.0, 1.0]])})
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == [[0, 1]]


def test_bfloat16_becomes_what_numpy_has() -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": "bfloat16"})
    found = loaded({"x": np.array([[0.5, 2.0]])})
    assert (found.dtype, found.tolist()) == (np.float32, [[0.5, 2.0]])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2], pa.int8()), [1, 2]),
        (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())), [[1.0, 2.0], [3.0, 4.0]]),
        (pa.array([[[1], [2]], [[3], [4]]]), [[[1], [2]], [[3], [4]]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], [3, 4]]),
        (pa.array([True, False]), [True, False]),
    ],
    ids=["numbers", "lists", "nested lists", "lists of a fixed size", "flags"],
)
def test_columns_of_numbers_become_tensors(column: pa.Array, expected: list[Any]) -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": "float64"})
    assert loaded(to_batch(pa.table({"x": column}))).tolist() == expected


@pytest.mark.parametrize(
    "column",
    [pa.array(["a", "b"]), pa.array([[1], [1, 2]]), pa.array([[1], None]), pa.array([{"a": 1}] * 2),
     pa.array([[["a"]], [["b"]]])],
    ids=["text", "lists of several lengths", "a missing list", "structs", "lists of text"],
)  # fmt: skip
def test_what_is_no_tensor_is_refused_by_the_inputs_name(column: pa.Array) -> None:
    loaded = runtime(factory="user_code:Cast", factoryArgs={"dtype": "float32"})
    with pytest.raises(TypeError, match="input 'x' has rows of different shapes or no numbers"):
        loaded(to_batch(pa.table({"x": column})))


def test_a_module_may_write_into_its_input() -> None:
    values = np.array([1.0, 2.0])
    values.flags.writeable = False
    loaded = runtime(factory="user_code:InPlace")
    assert loaded({"x": values}).tolist() == [2.0, 3.0]
    assert values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("factory", "name"),
    [("user_code:Tuple", "1"), ("user_code:Dict", "twice")],
    ids=["by position", "by key"],
)
def test_one_of_several_outputs_is_chosen(factory: str, name: str) -> None:
    run = runtime(factory=factory, outputName=name)
    assert run({"x": np.array([1.0, 2.0])}).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"factory": "user_code:Tuple"}, "the outputs 0, 1, and outputName is not given"),
        ({"factory": "user_code:Dict", "outputName": "x"}, "the outputs once, twice, and it has n"),
    ],
    ids=["none chosen", "another one"],
)
def test_several_outputs_want_a_choice(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoad, match=words):
        runtime(**fields)({"x": np.zeros(2)})


def test_a_module_returns_tensors() -> None:
    with pytest.raises(TypeError, match="the module returned str, not one tensor"):
        runtime(factory="user_code:Words")({"x": np.zeros(2)})


@pytest.mark.parametrize(
    "keep", [_state_dict, _script, _program], ids=["state dict", "script", "program"]
)
def test_columns_of_float64_meet_a_module_of_float32(keep: Any, tmp_path: Path) -> None:
    """Parquet's doubles and the numbers of JSON and CSV come as float64."""
    module = affine()
    column = pa.array(batch(4).astype(np.float64).tolist(), pa.list_(pa.float64()))
    found = runtime(**keep(module, tmp_path))(to_batch(pa.table({"x": column})))
    assert found.dtype == np.float32
    assert np.abs(found - direct(module, batch(4))).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("keep", [_state_dict, _script], ids=["state dict", "script"])
def test_a_module_computes_with_the_numbers_that_are_wanted(
    keep: Any, dtype: str, tmp_path: Path
) -> None:
    module = affine()
    found = runtime(dtype=dtype, **keep(module, tmp_path))({"x": batch(4)})
    assert found.dtype == {"float16": np.float16, "bfloat16": np.float32}[dtype]
    wanted = getattr(torch, dtype)
    with torch.inference_mode():
        expected = module.to(wanted)(torch.tensor(batch(4)).to(wanted)).float().numpy()
    assert np.abs(found - expected).max() < 1e-6


def test_whole_numbers_stay_so_for_modules_that_look_them_up() -> None:
    torch.manual_seed(0)
    loaded = runtime(factory="torch.nn:Embedding", factoryArgs={"num_embeddings": 4,
                     "embedding_dim": 2}, **{"inputs": {"input": "x"}})  # fmt: skip
    assert loaded({"input": np.array([0, 3])}).shape == (2, 2)


def test_a_state_dict_may_be_kept_as_safetensors(tmp_path: Path) -> None:
    module = affine()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    loaded = runtime(factory=FACTORY, source=str(tmp_path / "weights.safetensors"))
    assert np.abs(loaded({"x": batch(3)}) - direct(module, batch(3))).max() < 1e-6


def test_a_module_runs_in_evaluation_and_without_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded = runtime(factory=FACTORY)  # has dropout, which would differ from call to call
    assert np.array_equal(loaded({"x": batch(50)}), loaded({"x": batch(50)}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"factory": "user_code:no_module"},
            "'user_code:no_module' returned int, not an nn.Module",
        ),
        ({"factory": "user_code:none"}, "cannot load 'user_code:none'"),
        ({"source": "/nowhere/model.pt"}, "model '/nowhere/model.pt' not found: there is no"),
    ],
    ids=["no module", "no factory", "no file"],
)
def test_a_model_that_is_not_there_is_told(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoad, match=words):
        runtime(**fields)


def test_a_cpu_computes_with_as_many_threads_as_the_replica_has_cpus() -> None:
    for cpus, threads in ((1, 1), (2.5, 2), (0.5, 1)):
        assert take(device_of(cpus=cpus, gpus=0)) == torch.device("cpu")
        assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("counted_gpus")
def test_a_gpu_is_taken_where_there_is_one() -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert take(device_of(cpus=1, gpus=1)).type == kind


@pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU where there is none")
def test_a_gpu_that_torch_cannot_find_is_not_paid_for_in_silence() -> None:
    with pytest.raises(ModelLoad, match=r"was given a GPU, and PyTorch .* finds none"):
        take(device_of(cpus=1, gpus=1))
