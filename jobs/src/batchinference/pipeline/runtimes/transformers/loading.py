"""Loading weights: their numbers, their attention, and the devices that they lie on."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BatchFeature

from batchinference.pipeline.devices import Device
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.libraries import RUNTIMES_EXTRA, need
from batchinference.pipeline.runtimes.base import take
from batchinference.pipeline.runtimes.sources import resolve
from batchinference.spec.models import TransformersModel


class Source:
    """Where a model comes from, and how what lies there is to be loaded."""

    def __init__(self, model: TransformersModel, device: Device) -> None:
        self.path = resolve(model.source, model.revision, model.storage)
        self.device = take(device)
        self.revision = {"revision": model.revision} if model.revision else {}
        self.weights = _weights(model)
        self.device_map = device_map_of(model, device)

    def model(self, kind: Any) -> Any:
        """An object of an Auto class with its weights, in evaluation mode on the device."""
        options = {**self.revision, **self.weights}
        if self.device_map:
            loaded = kind.from_pretrained(self.path, device_map=self.device_map, **options)
        else:
            loaded = kind.from_pretrained(self.path, **options).to(self.device)
        return loaded.eval()

    def processor(self, kind: Any, **options: Any) -> Any:
        """A tokenizer or processor, by its Auto class."""
        return kind.from_pretrained(self.path, **self.revision, **options)


def take_loading(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that choose an implementation when a processor is loaded: taken out, so
    that those of its calls are left."""
    return {name: options.pop(name) for name in ("backend", "use_fast") if name in options}


def device_map_of(model: TransformersModel, device: Device) -> Any:
    """How accelerate lays the model out; None where it goes to the one device as a whole."""
    wanted = model.device_map or ("auto" if device.count > 1 else None)
    if wanted:
        what = "a model on several devices, or with 'deviceMap',"
        need(what, "accelerate", RUNTIMES_EXTRA, ModelLoad)
    return wanted


def to_model(tensors: Any, model: Any) -> Any:
    """The tensors on the model's device, numbers that are no indices in its type."""
    if isinstance(tensors, BatchFeature):
        return tensors.to(model.device, dtype=model.dtype)
    return tensors.to(model.device)


def _weights(model: TransformersModel) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if model.dtype:
        options["dtype"] = "auto" if model.dtype == "auto" else getattr(torch, model.dtype)
    if model.attention:
        options["attn_implementation"] = model.attention
    return options
