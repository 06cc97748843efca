"""Runs language models in vLLM's own engine, which computes the rows of several batches at once."""

from __future__ import annotations

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.vllm.checks import checks
from batchinference.pipeline.runtimes.vllm.prompts import prompt_lengths
from batchinference.pipeline.runtimes.vllm.requests import RequestRuntime
from batchinference.pipeline.runtimes.vllm.runtime import VllmRuntime
from batchinference.spec.models import VllmModel


def load_vllm(model: VllmModel, device: Device) -> RequestRuntime | VllmRuntime:
    """Return the runtime of a model: for complete requests, or for prompts."""
    return VllmRuntime(model, device) if model.request is None else RequestRuntime(model, device)


__all__ = ["VllmRuntime", "checks", "load_vllm", "prompt_lengths"]
