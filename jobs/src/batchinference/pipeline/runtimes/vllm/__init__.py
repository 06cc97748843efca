"""Language models that Ray Data runs by a processor of its own, several operators of it."""

from __future__ import annotations

from batchinference.pipeline.execution.vllm_stage import add_llm
from batchinference.pipeline.runtimes.vllm.processor import Nodes, Tries

__all__ = ["Nodes", "Tries", "add_llm"]
