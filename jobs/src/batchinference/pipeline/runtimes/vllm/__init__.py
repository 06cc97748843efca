"""Runs language models in vLLM's own engine, which computes the rows of several batches at once."""

from __future__ import annotations

from batchinference.pipeline.runtimes.vllm.checks import checks
from batchinference.pipeline.runtimes.vllm.runtime import VllmRuntime

__all__ = ["VllmRuntime", "checks"]
