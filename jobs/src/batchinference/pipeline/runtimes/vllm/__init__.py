"""Runs language models in vLLM's own engine, which computes the rows of several batches at once."""

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.model_files import local_tokenizer
from batchinference.pipeline.runtimes.vllm.chat_template import check_template
from batchinference.pipeline.runtimes.vllm.engine_arguments import check_engine_arguments
from batchinference.pipeline.runtimes.vllm.prompt_truncation import prompt_lengths
from batchinference.pipeline.runtimes.vllm.request_runtime import RequestRuntime
from batchinference.pipeline.runtimes.vllm.runtime import VllmRuntime
from batchinference.spec.models import VllmModel


def load_vllm(model: VllmModel, device: Device) -> RequestRuntime | VllmRuntime:
    """Return the runtime of a model: for complete requests, or for prompts."""
    return VllmRuntime(model, device) if model.request is None else RequestRuntime(model, device)


def check_model(model: VllmModel) -> None:
    """Raise ModelLoad if vLLM lacks an engine argument of the job, or if the chat template does not
    accept the job's messages. If the template is not on this machine, `load_vllm` checks it."""
    check_engine_arguments(model)
    if model.is_chat and not model.images and model.request is None:
        tokenizer = local_tokenizer(model.source, model.revision)
        if tokenizer is not None:
            check_template(model, tokenizer)


__all__ = ["VllmRuntime", "check_model", "load_vllm", "prompt_lengths"]
