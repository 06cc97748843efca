"""The streaming executor of Ray Data, its state and its callbacks."""

from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.base_physical_operator import (
    InternalQueueOperatorMixin,
)
from ray.data._internal.execution.streaming_executor import StreamingExecutor
from ray.data._internal.execution.streaming_executor_state import OpState
from ray.data._internal.issue_detection.detectors import HighMemoryIssueDetector

__all__ = [
    "ExecutionCallback",
    "HighMemoryIssueDetector",
    "InternalQueueOperatorMixin",
    "OpState",
    "StreamingExecutor",
]
