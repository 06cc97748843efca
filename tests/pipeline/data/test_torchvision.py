"""torchvision models: results equal a direct call with the transforms of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.kinds import check_runtime
from plugins.messages import Messages
from support.inputs.read_files import read_files
from support.models.replicas import loaded, model_of
from support.models.run_transformers import objects
from support.outputs.batches import outcomes
from support.outputs.stages import in_one_stage

SMALL = "mobilenet_v3_small"
LABELS = ["cat", "dog", "owl"]


def seeded(arch: str = SMALL, **options: Any) -> torch.nn.Module:
    """Return a model with random weights and well separated classes."""
    torch.manual_seed(0)
    module = torchvision.models.get_model(arch, weights=None, **options).eval()
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight)
    return module


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of the state dict of a small model with random weights."""
    path = tmp_path_factory.mktemp("torchvision") / "state.pt"
    torch.save(seeded().state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def own_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of the state dict of a model with three classes."""
    path = tmp_path_factory.mktemp("torchvision") / "state.safetensors"
    save_file(seeded(num_classes=3).state_dict(), path)
    return str(path)


def runtime(source: str, **fields: Any) -> Runtime:
    return loaded("torchvision", ("image",), **{"arch": SMALL, "source": source, **fields})


def image(height: int, width: int) -> np.ndarray:
    random = np.random.default_rng(height * width)
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)


def of_one_size() -> np.ndarray:
    return np.stack([image(250, 300), image(250, 300)[::-1]])


def direct(module: torch.nn.Module, images: np.ndarray, weights: Any = None) -> torch.Tensor:
    """Return torchvision's own result, one image at a time."""
    prepare = (weights or torchvision.models.get_model_weights(SMALL).DEFAULT).transforms()
    with torch.inference_mode():
        rows = [prepare(torch.tensor(each).permute(2, 0, 1)).unsqueeze(0) for each in images]
        return torch.cat([module(row) for row in rows])


@pytest.mark.parametrize(
    "images", [of_one_size(), objects([image(40, 60), image(300, 260), image(240, 240)])]
)
def test_best_class_equals_a_direct_call(state: str, images: np.ndarray) -> None:
    images.flags.writeable = False
    scores, indices = torch.softmax(direct(seeded(), images), dim=-1).max(dim=-1)
    categories = torchvision.models.get_model_weights(SMALL).DEFAULT.meta["categories"]
    values = runtime(state)({"image": images}).to_pylist()
    assert [row["index"] for row in values] == indices.tolist()
    assert [row["label"] for row in values] == [categories[index] for index in indices]
    assert [row["score"] for row in values] == pytest.approx(scores.tolist(), rel=1e-4)
    if images.dtype == np.uint8:
        assert np.array_equal(images, of_one_size()), "the model changed its input"


def test_best_classes_are_ordered(state: str) -> None:
    scores, indices = torch.softmax(direct(seeded(), of_one_size()), dim=-1).topk(5, dim=-1)
    values = runtime(state, topK=5)({"image": of_one_size()}).to_pylist()
    assert [[one["index"] for one in row] for row in values] == indices.tolist()
    assert [one["score"] for one in values[0]] == pytest.approx(scores[0].tolist(), rel=1e-4)


def test_result_type_is_stable(own_classes: str) -> None:
    one = pa.struct([("index", pa.int64()), ("label", pa.string()), ("score", pa.float32())])
    for fields, kind in (({}, one), ({"topK": 1}, pa.list_(one))):
        run = runtime(own_classes, labels=LABELS, **fields)
        assert run({"image": of_one_size()}).type == kind


def test_model_may_have_its_own_classes(own_classes: str) -> None:
    best = direct(seeded(num_classes=3), of_one_size()).argmax(dim=-1)
    values = runtime(own_classes, labels=LABELS)({"image": of_one_size()}).to_pylist()
    assert [row["label"] for row in values] == [LABELS[index] for index in best]
    all_of_them = runtime(own_classes, labels=LABELS, topK=10)({"image": of_one_size()})
    assert [len(row) for row in all_of_them.to_pylist()] == [3, 3]


def test_wrong_number_of_labels_is_rejected(own_classes: str, messages: Messages) -> None:
    other = runtime(own_classes, options={"num_classes": 3})
    with messages.raises(ModelLoad):
        other({"image": of_one_size()})


def test_named_weights_select_the_transforms(tmp_path: Path) -> None:
    weights = torchvision.models.get_model_weights("mobilenet_v2")
    module = seeded("mobilenet_v2")
    torch.save(module.state_dict(), tmp_path / "state.pt")
    module.set_submodule("classifier", torch.nn.Identity())
    result = []
    for name in ("IMAGENET1K_V1", "IMAGENET1K_V2"):
        fields = {"arch": "mobilenet_v2", "weights": name, "features": True}
        embed = runtime(str(tmp_path / "state.pt"), **fields)
        result.append(embed({"image": of_one_size()}))
        expected = direct(module, of_one_size(), weights[name])
        assert np.abs(result[-1] - expected.numpy()).max() < 1e-3 * np.abs(result[-1]).max()
    assert np.abs(result[0] - result[1]).max() > 1e-2 * np.abs(result[0]).max()


@pytest.mark.parametrize(
    ("arch", "head", "width"), [(SMALL, "classifier.3", 1024), ("shufflenet_v2_x0_5", "fc", 1024)]
)
def test_features_are_the_input_of_the_last_layer(
    arch: str, head: str, width: int, tmp_path: Path
) -> None:
    module = seeded(arch)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    module.set_submodule(head, torch.nn.Identity())
    expected = direct(module, of_one_size(), torchvision.models.get_model_weights(arch).DEFAULT)
    embed = runtime(str(tmp_path / "state.pt"), arch=arch, features=True)
    vectors = embed({"image": of_one_size()})
    assert vectors.shape == (2, width)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - expected.numpy()).max() < 1e-4 * np.abs(vectors).max() + 1e-5


def test_features_need_a_linear_layer(tmp_path: Path, messages: Messages) -> None:
    torch.save(seeded("squeezenet1_1").state_dict(), tmp_path / "state.pt")
    with messages.raises(ModelLoad):
        runtime(str(tmp_path / "state.pt"), arch="squeezenet1_1", features=True)


def test_other_values_than_images_are_rejected(state: str) -> None:
    run = runtime(state)
    for value, reason in (
        (None, "expected an image, got NoneType"),
        ("cat.jpg", "expected an image, got str"),
        (image(4, 4)[:, :, 0], r"got \(4, 4\), uint8: options.mode: RGB"),
        (image(4, 4).astype(np.float32), r"got \(4, 4, 3\), float32"),
        (np.zeros((4, 4, 4), np.uint8), r"got \(4, 4, 4\), uint8"),
    ):
        with pytest.raises(TypeError, match=reason):
            run({"image": objects([image(30, 30), value])})


def test_unknown_models_and_weights_are_rejected_at_check() -> None:
    for fields, reason in (
        ({"arch": "resnet51"}, "no classification model 'resnet51'; did you mean 'resnet5?0'?"),
        ({"arch": "fcos_resnet50_fpn"}, "no classification model 'fcos_resnet50_fpn'"),
        ({"weights": "IMAGENET1K_V9"}, f"'{SMALL}' has no weights 'IMAGENET1K_V9'. Name one of "),
    ):
        with pytest.raises(ModelLoad, match=reason):
            check_runtime(model_of("torchvision", ("image",), **{"arch": SMALL, **fields}))


def test_weights_that_cannot_be_downloaded_name_the_field_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("BATCHINFERENCE_CACHE", str(tmp_path / "cache"))
    url = torchvision.models.get_model_weights(SMALL).DEFAULT.url
    with messages.raises(ModelLoad) as raised:
        loaded("torchvision", ("image",), arch=SMALL)
    assert url in raised.value.message


def test_cached_weights_are_loaded_by_name(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "hub/checkpoints"
    kept.mkdir(parents=True)
    file = Path(torchvision.models.get_model_weights(SMALL).DEFAULT.url).name
    torch.save(seeded().state_dict(), kept / file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("BATCHINFERENCE_CACHE", str(tmp_path / "cache"))
    result = loaded("torchvision", ("image",), arch=SMALL)({"image": of_one_size()})
    assert result.equals(runtime(state)({"image": of_one_size()}))


@pytest.mark.parametrize("fields", [{}, {"topK": 2}, {"features": True}])
def test_corrupt_image_fails_its_row_only(
    own_classes: str, tmp_path: Path, fields: dict[str, Any]
) -> None:
    for number, side in enumerate((30, 40, 30)):
        Image.fromarray(image(side, 40)).save(tmp_path / f"{number}.png")
    (tmp_path / "1a.png").write_text("no image")
    classes = {} if "features" in fields else {"labels": LABELS}
    model = {"runtime": "torchvision", "arch": SMALL, "source": own_classes,
             "options": {"num_classes": 3}, **classes, **fields}  # fmt: skip
    step = {"name": "look", "model": {**model, "inputs": {"image": "image"}, "output": "seen"}}
    result = in_one_stage(step)(merged(read_files("images", tmp_path).batches))
    assert list(outcomes(result).values()) == ["good", "good", "failed", "good"]
    assert result.table.num_rows == 3
    assert result.errors.column("step").to_pylist() == ["read"]
