"""Uses private parts of Ray Data, in the version that pyproject.toml pins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.data._internal.arrow_ops import transform_pyarrow
from ray.data._internal.arrow_ops.transform_pyarrow import concat, unify_schemas
from ray.data._internal.datasource.lance_datasource import LanceDatasource
from ray.data._internal.execution import streaming_executor_state
from ray.data._internal.execution.bundle_queue.bundler import (
    EstimateSize,
    PendingBundleState,
    RebundlingStrategy,
)
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators import map_operator, map_transformer
from ray.data._internal.execution.operators.actor_pool_map_operator import (
    _ACTOR_STATE_DEAD as _DEAD,
)
from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
from ray.data._internal.execution.operators.base_physical_operator import InternalQueueOperatorMixin
from ray.data._internal.execution.operators.map_operator import MapOperator
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
from ray.data._internal.output_buffer import BlockOutputBuffer, OutputBlockSizeOption
from ray.data._internal.utils.cached_ray_internals import get_draining_nodes
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from batchinference.pipeline.ray_compat import replaced

if TYPE_CHECKING:
    from threading import Event

    from ray.data import DataContext, Datasource
    from ray.data._internal.execution.interfaces import PhysicalOperator, RefBundle
    from ray.data._internal.execution.streaming_executor import StreamingExecutor
    from ray.data._internal.execution.streaming_executor_state import OpState

_map_operator: Any = map_operator
_map_transformer: Any = map_transformer
_pass_on = _map_operator.yield_block_with_stats
_WHOLE = 1 << 40
"""A batch size above this number means that a call is one batch; see `whole_call`."""
_AS_THEY_ARE = OutputBlockSizeOption.of(disable_block_shaping=True)
GATHER_SECONDS, MAX_GATHER_SECONDS = 0.001, 0.02
"""After the first result, Ray Data waits for more results: GATHER_SECONDS times the number of
tasks, and at most MAX_GATHER_SECONDS. With few tasks, longer waits would leave CPUs idle."""


def prepare_joined_blocks(prepared: Callable[[Any], Any]) -> None:
    """Make Ray Data in this process join what `prepared` returns for the blocks that it joins."""
    module: Any = transform_pyarrow
    module.concat = lambda blocks, **options: concat(prepared(blocks), **options)


def huggingface_datasource(dataset: Any) -> Datasource:
    """Return a Ray datasource for a dataset. The import is slow, so it happens here."""
    from ray.data._internal.datasource.huggingface_datasource import HuggingFaceDatasource

    return HuggingFaceDatasource(dataset)


class BlockErrors:
    """Replaces the logger for errors of Ray Data tasks. Calls `record` with each error."""

    def __init__(self, logger: logging.Logger, record: Callable[[BaseException], None]) -> None:
        self._logger, self._record = logger, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def error(self, message: str, *arguments: object, exc_info: Any = None) -> None:
        """Pass an exception to `record`, and a message without an exception to the logger."""
        if isinstance(exc_info, BaseException):
            self._record(exc_info)
        else:
            self._logger.error(message, *arguments, exc_info=exc_info)


@contextmanager
def errors_of_blocks(
    context: DataContext, record: Callable[[BaseException], None]
) -> Iterator[None]:
    """Within the `with` statement, a failing task of Ray Data does not end the execution. Instead,
    `record` is called with its error, whatever the log level is."""
    logger = BlockErrors(streaming_executor_state.logger, record)
    with (
        replaced(context, max_errored_blocks=-1),
        replaced(streaming_executor_state, logger=logger),
    ):
        yield


class PromptWaits:
    """Replaces `ray` in the module in which Ray Data waits for tasks. Ray Data would wait up to 0.1
    s for the results of all tasks. The CPUs of finished tasks would be idle."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def wait(self, tasks: list[Any], *, timeout: float, **arguments: Any) -> Any:
        """Wait up to `timeout` seconds for the first result, and a short time for more results.
        Returns tasks with results, and tasks without, like `ray.wait`."""
        ray.wait(tasks, timeout=timeout, **{**arguments, "num_returns": 1})
        gather = min(timeout, len(tasks) * GATHER_SECONDS, MAX_GATHER_SECONDS)
        return ray.wait(tasks, timeout=gather, **arguments)


@contextmanager
def prompt_waits() -> Iterator[None]:
    """Within the `with` statement, Ray Data starts new tasks soon after earlier ones have ended. If
    executions overlap, it does so until the first of them ends."""
    module: Any = streaming_executor_state
    module.ray = PromptWaits()
    try:
        yield
    finally:
        module.ray = ray  # not the earlier value: if executions overlap, it could be a PromptWaits


def outputs_within(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Make this process enter `context` while it passes on a block of a Ray Data task. During
    this time, Ray stores the block, and waits if the driver does not take blocks yet."""

    def passed_on(*arguments: Any) -> Generator[Any, Any, None]:
        with context():
            yield from _pass_on(*arguments)

    _map_operator.yield_block_with_stats = passed_on


def pass_on_when_stopping(stopping: Event) -> None:
    """Make this process pass on the blocks of its Ray Data calls as soon as `stopping` is set. Ray
    collects blocks up to 128 MiB or to the end of the call, and drops them if the call fails."""

    class Buffer(BlockOutputBuffer):
        def has_next(self) -> bool:
            """Return whether a block is passed on."""
            waits = stopping.is_set() and self._buffer.num_rows() > 0
            return waits or super().has_next()

    _map_transformer.BlockOutputBuffer = Buffer


def has_dead_actors(operator: PhysicalOperator) -> bool:
    """Return whether an operator of Ray Data waits forever for an actor that Ray has given up."""
    if not isinstance(operator, ActorPoolMapOperator):
        return False
    pool: Any = operator._actor_pool
    return any(actor._get_local_state() == _DEAD for actor in pool._running_actors)


def has_results(operator: PhysicalOperator) -> bool:
    """Return whether an actor of an operator has finished a call."""
    return isinstance(operator, ActorPoolMapOperator) and operator.metrics.num_tasks_finished > 0


class TimedBundling(RebundlingStrategy):
    """Bundles blocks for a task until they have enough rows, or the first block has waited long
    enough. Ray checks this when a block arrives, and `start_late_bundle` does between arrivals."""

    def __init__(self, rows: int, seconds: float) -> None:
        self._rows, self._seconds = rows, seconds
        self._since: float | None = None

    def can_build_ready_bundle(self, state: PendingBundleState) -> bool:
        """Return whether a task can start with the pending blocks. Ray calls this for each block
        with rows, so the waiting time begins with the first block of a bundle."""
        if not state.num_rows:
            self._since = None
            return False
        now = time.monotonic()
        since = now if self._since is None else self._since
        ready = state.num_rows >= self._rows or now - since >= self._seconds
        self._since = None if ready else since
        return ready

    def is_late(self, *, at_once: bool) -> bool:
        """Return whether a block waits, and has waited long enough or is needed `at_once`."""
        if self._since is None:
            return False
        return at_once or time.monotonic() - self._since >= self._seconds

    def rows_needed_from_last_pending_bundle(
        self, total_pending_rows: int, last_pending_bundle: RefBundle
    ) -> int:
        """Return all rows of the last block, so that Ray does not divide the block."""
        return last_pending_bundle.num_rows() or 0


def bundle_in_time(operator: PhysicalOperator, rows: int, seconds: float) -> None:
    """Make an operator bundle blocks until they have `rows` rows, or one has waited `seconds`."""
    if isinstance(operator, MapOperator) and operator._block_ref_bundler is not None:
        operator._block_ref_bundler._strategy = TimedBundling(rows, seconds)


def bundle_whole_calls(operator: PhysicalOperator) -> None:
    """Give each call at least `rows` rows if the operator has the batch size `whole_call(rows)`."""
    if (rows := _batch_rows(operator)) > _WHOLE:
        cast(Any, operator)._block_ref_bundler._strategy = EstimateSize(rows - _WHOLE)


def _batch_rows(operator: PhysicalOperator) -> int:
    """Return the number of rows of an operator's batches; 0 if each call is one batch. It is above
    _WHOLE for `whole_call`, and the minimum rows of a call after `bundle_whole_calls`."""
    queue = getattr(operator, "_block_ref_bundler", None)
    return getattr(getattr(queue, "_strategy", None), "_min_rows_per_bundle", None) or 0


def whole_call(rows: int) -> int:
    """Return a batch size with which Ray Data passes all blocks of a call as one batch of at least
    `rows` rows. Ray's overhead for a batch is about as long as a cheap model computes."""
    return _WHOLE + rows


def keep_blocks_of_reads(operator: PhysicalOperator) -> None:
    """Make an operator that reads pass on each block at once. By default, Ray first collects 128
    MiB. Actors have their copy of the operator when they start, so this cannot change pools."""
    if isinstance(operator, MapOperator) and operator.name.startswith("Read"):
        for transform in operator.get_map_transformer().get_transform_fns():
            transform._output_block_size_option = _AS_THEY_ARE


def start_late_bundle(operator: PhysicalOperator, *, at_once: bool) -> None:
    """Start a task for the waiting blocks of an operator, as if the input had ended. Does so if the
    first block has waited long enough, with `at_once`, or if a node ends soon."""
    queue: Any = getattr(operator, "_block_ref_bundler", None)
    strategy = getattr(queue, "_strategy", None)
    if not (isinstance(operator, MapOperator) and isinstance(strategy, TimedBundling)):
        return
    if not strategy.is_late(at_once=at_once or bool(get_draining_nodes())):
        return
    queue.finalize()
    strategy._since = None  # the waiting time begins again with the next block
    if queue.has_next():  # after the end of the input, tasks have all blocks already
        bundle, parts = queue.get_next_with_original()
        for part in parts:
            operator._metrics.on_input_dequeued(part, input_index=0)
        operator._try_schedule_task(bundle, strict=False)
