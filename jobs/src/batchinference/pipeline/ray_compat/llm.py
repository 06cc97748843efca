"""The base class for stages of Ray's processors for language models."""

from ray.llm._internal.batch.stages.base import StatefulStageUDF

__all__ = ["StatefulStageUDF"]
