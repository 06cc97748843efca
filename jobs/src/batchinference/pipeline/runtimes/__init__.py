"""One module a model runtime: a class that loads a model and runs it over batches."""

from __future__ import annotations

from batchinference.pipeline.devices import Device
from batchinference.pipeline.runtimes.base import Runtime
from batchinference.spec.models import Model, TransformersModel


def load_runtime(model: Model, device: Device) -> Runtime:
    """A model, loaded and ready on a device."""
    if isinstance(model, TransformersModel):
        from batchinference.pipeline.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(model, device)
    from batchinference.pipeline.runtimes.torch import TorchRuntime

    return TorchRuntime(model, device)


__all__ = ["Runtime", "load_runtime"]
