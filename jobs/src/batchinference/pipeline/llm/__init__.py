"""Language models that Ray Data runs by a processor of its own, several operators of it."""

from __future__ import annotations

from batchinference.pipeline.llm.chain import add_llm
from batchinference.pipeline.llm.processor import Nodes, Tries

__all__ = ["Nodes", "Tries", "add_llm"]
