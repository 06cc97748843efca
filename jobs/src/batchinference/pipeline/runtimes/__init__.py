"""One module a model runtime: a class that loads a model and runs it over batches."""

from __future__ import annotations

from batchinference.pipeline.runtimes.base import Runtime
from batchinference.spec.models import Model, TransformersModel


def load_runtime(model: Model, *, cpus: float, gpus: int) -> Runtime:
    """A model, loaded and ready on its device."""
    if isinstance(model, TransformersModel):
        from batchinference.pipeline.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(model, cpus=cpus, gpus=gpus)
    from batchinference.pipeline.runtimes.torch import TorchRuntime

    return TorchRuntime(model, cpus=cpus, gpus=gpus)


__all__ = ["Runtime", "load_runtime"]
