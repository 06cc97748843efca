"""Runs models of the transformers library.

Embedding and classification tasks call the model itself. Generation tasks call its `generate`. All
other tasks use the library's pipeline for the task.
"""

from __future__ import annotations

import transformers

from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import GENERATION


def load_transformers(model: TransformersModel, device: Device) -> Runtime:
    """Return a model that is loaded and ready on a device."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if model.task in GENERATION:
        from batchinference.pipeline.runtimes.transformers.generation import GenerationRuntime

        return GenerationRuntime(model, device)
    from batchinference.pipeline.runtimes.transformers.encoders import MODELS, EncoderRuntime

    if model.task in MODELS:
        return EncoderRuntime(model, device)
    from batchinference.pipeline.runtimes.transformers.pipelines import PipelineRuntime

    return PipelineRuntime(model, device)
