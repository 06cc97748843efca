"""Runs models of the transformers library.

The tasks in `encoders.MODELS` call the model itself. Generation tasks call its `generate`. Other
tasks use the library's pipeline for the task."""

from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.model_files import local_part, local_tokenizer
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import GENERATION


def load_transformers(model: TransformersModel, device: Device) -> Runtime:
    """Return a model that is loaded and ready on a device."""
    import transformers  # only here, because checks do not need it, and it takes seconds

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if model.request is not None:
        from batchinference.pipeline.runtimes.transformers.request_runtime import RequestRuntime

        return RequestRuntime(model, device)
    if model.task in GENERATION:
        from batchinference.pipeline.runtimes.transformers.generation import GenerationRuntime

        return GenerationRuntime(model, device)
    from batchinference.pipeline.runtimes.transformers.encoders import MODELS, EncoderRuntime

    if model.task in MODELS:
        return EncoderRuntime(model, device)
    from batchinference.pipeline.runtimes.transformers.pipelines import PipelineRuntime

    return PipelineRuntime(model, device)


def check_model(model: TransformersModel) -> None:
    """Raise ModelLoad if the messages of the job need a chat template that is missing or does not
    accept them. If the tokenizer is not on this machine, the replicas check this."""
    if model.task not in GENERATION or not (model.system or model.messages or model.prompt):
        return
    if model.task == "text-generation":
        processor = local_tokenizer(model.source, model.revision)
    else:
        processor = local_part(model.source, model.revision, "AutoProcessor")
    if processor is not None:
        from batchinference.pipeline.runtimes.transformers.prompt_inputs import ChatTemplate

        ChatTemplate(processor, model).check(model)
