"""Runs torchvision classification models with the transforms and labels of their weights."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from torchvision import models

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.runtimes.device import Device, to_device, torch_device
from batchinference.pipeline.runtimes.model_files import cache_directory, fetch_source
from batchinference.pipeline.runtimes.model_io import check_image
from batchinference.pipeline.runtimes.torch import load_state
from batchinference.spec.models import TorchvisionModel
from batchinference.spec.problems import did_you_mean

_WITH_WEIGHTS = {
    "googlenet": {"transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
}
"""Arguments that torchvision adds for these models only if it loads its own weights."""


class TorchvisionRuntime:
    def __init__(self, model: TorchvisionModel, device: Device) -> None:
        self._spec = model
        self._device = torch_device(device)
        weights = _weights_of(model)
        self._labels = model.labels or list(weights.meta["categories"])
        self._transforms = weights.transforms()
        module = _load(model, weights)
        if model.features:
            module = _without_head(module)
        self._dtype = getattr(torch, model.dtype or "float32")
        module = module.to(device=self._device, dtype=self._dtype).eval()
        # the images are channels-last, and convolutions are faster in this format
        self._module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray | pa.Array:
        (images,) = inputs.values()
        with torch.inference_mode():
            prepared = self._prepared(images)
            with computing():
                output = self._module(prepared).float()
                if self._spec.features:
                    return output.cpu().numpy()
                scores = torch.softmax(output, dim=-1)
                best, indices = scores.topk(self._classes_wanted(scores), dim=-1)
                arrays = best.cpu().numpy(), indices.cpu().numpy()
        return self._classes(*arrays)

    def _prepared(self, images: np.ndarray) -> torch.Tensor:
        """Return transformed images (height x width x 3) as one tensor of the model's type."""
        for image in images:
            check_image(image)
        if images.dtype == object:  # the images differ in size
            tensors = torch.stack([self._transforms(self._pixels(image)) for image in images])
        else:
            tensors = self._transforms(self._pixels(images))
        return tensors.to(self._dtype)

    def _pixels(self, values: np.ndarray) -> torch.Tensor:
        return to_device(values, self._device).movedim(-1, -3)

    def _classes_wanted(self, scores: torch.Tensor) -> int:
        """Return the number of classes for each row. Raises ModelLoad if the number of labels
        differs from the number of classes."""
        if len(self._labels) != scores.shape[-1]:
            raise ModelLoad(
                f"labels: the model has {scores.shape[-1]} classes, and there are "
                f"{len(self._labels)} labels. List the names of its classes"
            )
        return min(self._spec.top_k or 1, scores.shape[-1])

    def _classes(self, best: np.ndarray, indices: np.ndarray) -> pa.Array:
        """Return the most likely class of each row, or a list of classes if `topK` is set. `best`
        has the scores and `indices` the numbers of the classes (rows x classes)."""
        labels = pa.array([self._labels[index] for index in indices.ravel()], pa.string())
        columns = [pa.array(indices.ravel()), labels, pa.array(best.ravel())]
        classes = pa.StructArray.from_arrays(columns, ["index", "label", "score"])
        if self._spec.top_k is None:
            return classes
        starts = pa.array(np.arange(0, len(classes) + 1, best.shape[1], dtype=np.int32))
        return pa.ListArray.from_arrays(starts, classes)


def check_model(model: TorchvisionModel) -> None:
    """Raise ModelLoad if torchvision has no such model or weights."""
    _weights_of(model)


def _weights_of(model: TorchvisionModel) -> Any:
    """Return torchvision's description of the weights of a model, without a download. Raises
    ModelLoad if torchvision has no such model or weights."""
    known = models.list_models(module=models)
    if model.arch not in known:
        raise ModelLoad(
            f"arch: torchvision has no classification model '{model.arch}'"
            + did_you_mean(model.arch, known)
        )
    weights = models.get_model_weights(model.arch)
    name = model.weights or "DEFAULT"
    if name not in weights.__members__:
        raise ModelLoad(
            f"weights: '{model.arch}' has no weights '{name}'. Name one of "
            f"{', '.join(weights.__members__)}"
        )
    return weights[name]


def _load(model: TorchvisionModel, weights: Any) -> torch.nn.Module:
    if model.source is None:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        # the lock makes replicas that start at the same time download the weights only once
        with FileLock(directory / "torchvision.lock"):
            try:
                downloaded: torch.nn.Module = models.get_model(
                    model.arch, weights=weights, progress=False, **model.options
                )
            except OSError as error:
                raise ModelLoad(
                    f"weights: {weights.url} cannot be downloaded ({error}). Without a network, "
                    "fetch this file elsewhere, and name it in the model's field source"
                ) from error
            return downloaded
    classes = {"num_classes": len(model.labels)} if model.labels else {}
    arguments = {**_WITH_WEIGHTS.get(model.arch, {}), **classes, **model.options}
    module: torch.nn.Module = models.get_model(model.arch, weights=None, **arguments)
    module.load_state_dict(load_state(fetch_source(model.source, model.storage)))
    return module


def _without_head(module: torch.nn.Module) -> torch.nn.Module:
    """Replace the last linear layer of a module by Identity, and return the module. The module then
    returns the input of that layer. Raises ModelLoad if it has no linear layer."""
    linear = [name for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    if not linear:
        raise ModelLoad("features: the model has no linear layer. Remove the field")
    module.set_submodule(linear[-1], torch.nn.Identity())
    return module
