"""Loads vLLM's engine once per process, and answers the prompts and requests of all threads."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from filelock import FileLock

from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.rows_in_flight import (
    IN_FLIGHT,
    GivenUp,
    Unanswered,
    answers_of,
    when_done,
)
from batchinference.pipeline.runtimes.answers import NO_ANSWER
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.model_files import files_without_weights
from batchinference.pipeline.runtimes.vllm.adapters import Adapters, NoAdapter
from batchinference.pipeline.runtimes.vllm.chat_template import check_template
from batchinference.pipeline.runtimes.vllm.engine_arguments import arguments_of
from batchinference.pipeline.runtimes.vllm.engine_log import EngineLog
from batchinference.pipeline.runtimes.vllm.results import RowTimeout
from batchinference.pipeline.runtimes.vllm.sampling import check_parameters, parameters_of
from batchinference.pipeline.runtimes.vllm.server import server_of
from batchinference.pipeline.storage.url_fetcher import THREADS
from batchinference.spec.durations import seconds_of
from batchinference.spec.models import VllmModel

NO_DEVICES = " (vLLM needs GPUs unless it was built for CPUs, and this replica has none)"
_NO_BASE_ROWS = (
    "the adapter is null, and vLLM's build for CPUs gives such a row the adapter of another row. "
    "Compute these rows in a job without 'adapter'"
)
Prompt = dict[str, Any]
"""A prompt of the engine: its tokens, or its text and images."""
_Result = TypeVar("_Result")


_ENGINES: WeakValueDictionary[tuple[str, Device], Engine] = WeakValueDictionary()
_LOADING = threading.Lock()


def engine_of(model: VllmModel, device: Device) -> Engine:
    """Return the engine of a model. A process loads an engine once, and ends it when no runtime
    refers to it any more. Raises ModelLoad, or RuntimeError if a device failed."""
    key = model.model_dump_json(by_alias=True), device
    with _LOADING:  # so that only one thread loads the engine
        engine = _ENGINES.get(key)
        if engine is None:
            engine = _ENGINES[key] = _loaded(model, device)
        return engine


def _loaded(model: VllmModel, device: Device) -> Engine:
    log = EngineLog()
    has_devices = device.kind != "cpu"
    try:
        with _exclusive_loading(device):
            return Engine(model, log, device.share)
    except JobFailure:
        raise
    except Exception as error:
        if has_devices and (fault := log.device_fault()):
            raise fault from error
        hint = "" if has_devices else NO_DEVICES
        raise ModelLoad(
            f"the model '{model.source}' cannot be loaded{hint}: {describe(error)}"
        ) from error


def _exclusive_loading(device: Device) -> AbstractContextManager[Any]:
    """Return a context in which no other replica loads its engine on the same device. An engine
    measures the free memory of its device, so engines that share a device load one by one."""
    if device.share == 1:
        return nullcontext()
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace("/", "-")
    return FileLock(Path(tempfile.gettempdir(), f"batchinference-vllm-{name}.lock"))


class Engine:
    """vLLM's engine for a model. It ends when nothing refers to it."""

    def __init__(self, model: VllmModel, log: EngineLog, share: float = 1.0) -> None:
        self.log = log
        self.parameters = parameters_of(model)  # checked before the weights are downloaded
        self.processor = _processor(model) if model.is_chat and model.request is None else None
        self.threads = ThreadPoolExecutor(THREADS)
        """The threads that prepare prompts with images."""
        self.tokenizer_lock = threading.Lock()
        """Held by the thread that prepares a batch of prompts without images: a tokenizer is not
        thread-safe, and more threads would keep the GIL from the event loop."""
        self._adapters = Adapters(model)
        self._numbers = itertools.count()
        self._timeout = model.row_timeout
        self._loop = _event_loop()
        self._llm = self._run(_started(model, share))
        if model.task == "generate":
            check_parameters(model, self._llm, self.parameters)
        if model.request is not None:
            self._server = self._run(server_of(self._llm, model))
        # for each row that the engine computes, another row waits, so that the engine never idles
        IN_FLIGHT.wanted = 2 * self._llm.vllm_config.scheduler_config.max_num_seqs
        if model.task == "score" and len(self.labels) != 1:
            raise ModelLoad(
                f"task: '{model.source}' has {len(self.labels)} labels, and a model for task score "
                "has one. Use classify"
            )
        # a chat template writes the special tokens itself
        self._tokenization = {"add_special_tokens": not model.is_chat}
        limits = self._llm.renderer.default_cmpl_tok_params
        self._limits = limits.with_kwargs(**self._tokenization)
        weakref.finalize(self, self._llm.shutdown)
        if model.task == "generate":
            self._check_constraint(model)

    def _check_constraint(self, model: VllmModel) -> None:
        """Raise ModelLoad if the engine cannot compile the constraint that all answers share."""
        parameters = self.parameters.clone()
        parameters.max_tokens, parameters.min_tokens = 1, 0
        if parameters.structured_outputs is None:
            return
        (answer,) = self.submit([(self.tokenize("a"), parameters, None)]).result()
        if isinstance(answer, Exception) and (fault := self.log.device_fault()):
            raise fault from answer
        reasons = {one.finish_reason for one in getattr(answer, "outputs", ())}
        if isinstance(answer, Exception) or reasons & set(NO_ANSWER):
            where = "sampling" if model.answer_schema is None else "schema"
            raise ModelLoad(
                f"{where}: the engine cannot compile it, and its log says why. Choose another "
                "structured_outputs_config.backend in engine"
            )

    def tokenize(self, prompt: str) -> Prompt:
        """Return a prompt as tokens. Raises an error of vLLM if the model takes fewer tokens."""
        (tokens,) = self._llm.renderer.render_cmpl([{"prompt": prompt}], self._limits)
        return dict(tokens)

    def submit(self, asked: list[tuple[Prompt, Any, Any]]) -> Future[list[Any]]:
        """Send prompts to the engine with their parameters and adapters (None: the base model), and
        return a future with the answers. An exception replaces the answer to a failed prompt."""
        # a single task, because a task per prompt would take longer than small models compute
        answers = self._answers(asked, IN_FLIGHT.expect(len(asked)), IN_FLIGHT.given_up)
        return asyncio.run_coroutine_threadsafe(answers, self._loop)

    async def _answers(
        self, asked: list[Any], answered: Callable[[], None], given_up: GivenUp
    ) -> list[Any]:
        if given_up.done():
            return [Unanswered(given_up.result()) for _ in asked]
        added = [await _result_or_error(self._add(answered, *one)) for one in asked]
        queues = [one for one in added if not isinstance(one, Exception)]
        when_done(given_up, lambda cause: [queue.put(Unanswered(cause)) for queue in queues])
        return [
            one if isinstance(one, Exception) else await _result_or_error(self._output(one))
            for one in added
        ]

    async def _output(self, queue: Any) -> Any:
        """Return the output that a queue gets. Raises RowTimeout if the time limit was reached."""
        output = await queue.get()
        if getattr(queue, "is_late", False):
            raise RowTimeout(self._timeout, output)
        return output

    async def _abort(self, number: str, queue: Any) -> None:
        queue.is_late = True
        await self._llm.abort(number)

    async def _add(
        self, answered: Callable[[], None], prompt: Prompt, parameters: Any, adapter: Any
    ) -> Any:
        """Send a prompt to the engine, and return the queue that will get the prompt's only output,
        or its error. The queue then calls `answered`, and ignores later outputs."""
        number = str(next(self._numbers))
        options = {"lora_request": adapter, "tokenization_kwargs": self._tokenization}
        queue = await self._llm.add_request(number, prompt, parameters, **options)
        put, timer = queue.put, None
        if self._timeout is not None:
            end = partial(self._abort, number, queue)
            timer = self._loop.call_later(
                seconds_of(self._timeout), lambda: self._loop.create_task(end())
            )

        def put_only(output: Any) -> None:
            if getattr(queue, "is_answered", False):
                return
            queue.is_answered = True
            put(output)
            answered()
            if timer is not None:
                timer.cancel()

        queue.put = put_only
        return queue

    @property
    def has_died(self) -> bool:
        """Whether the processes of the engine have ended, so that no row can be computed."""
        return bool(self._llm.errored)

    def answer_requests(
        self, asked: list[tuple[str, bytes]]
    ) -> list[tuple[int, bytes] | Unanswered]:
        """Send requests (path, body) to vLLM's server, and return responses (status, body). When
        the batch is given up, requests without a response get `Unanswered`."""
        return self._run(self._responses(asked, IN_FLIGHT.expect(len(asked)), IN_FLIGHT.given_up))

    async def _responses(
        self,
        asked: list[tuple[str, bytes]],
        answered: Callable[[], None],
        given_up: GivenUp,
    ) -> list[tuple[int, bytes] | Unanswered]:
        limit = None if self._timeout is None else seconds_of(self._timeout)

        async def response(request: tuple[str, bytes]) -> tuple[int, bytes]:
            try:
                async with asyncio.timeout(limit):
                    return await self._server(*request)
            except TimeoutError:
                return HTTPStatus.REQUEST_TIMEOUT, f"no answer within {self._timeout}".encode()
            finally:
                answered()

        return await answers_of(response, asked, given_up)

    @cached_property
    def labels(self) -> dict[int, str]:
        """The labels of a model that classifies, by the number of the class."""
        return dict(self._llm.model_config.hf_config.id2label)

    def prompt_of_pair(self, query: str, document: str) -> tuple[Prompt, Any]:
        """Return the prompt of a cross-encoder for a query and a document, and parameters that tell
        some models where the document begins."""
        from vllm.entrypoints.pooling.scoring.utils import compress_token_type_ids

        _, prompt = self._pairs.get_score_prompt(query, document, encode_kwargs={})
        parameters = self.parameters.clone()
        if (types := prompt.pop("token_type_ids", None)) is not None:
            parameters.extra_kwargs = {"compressed_token_type_ids": compress_token_type_ids(types)}
        return prompt, parameters

    @cached_property
    def _pairs(self) -> Any:
        from vllm.entrypoints.chat_utils import ChatTemplateConfig
        from vllm.entrypoints.pooling.scoring.io_processor import CrossEncoderIOProcessor

        return CrossEncoderIOProcessor(
            self._llm.vllm_config, self._llm.renderer, ChatTemplateConfig()
        )

    def adapter(self, name: Any) -> Any:
        """Return vLLM's request for an adapter. If `name` is None, return None, for the base model.
        Raises errors of `request_for`, and NoAdapter if `name` is None in a build for CPUs."""
        if name is not None:
            return self._adapters.request_for(name)
        if _is_built_for_cpus():
            raise NoAdapter(_NO_BASE_ROWS)
        return None

    def without_images(self, messages: list[Any]) -> tuple[list[Any], Prompt]:
        """Return messages with texts instead of images, and a `Prompt` with only the images."""
        from vllm.entrypoints.chat_utils import parse_chat_messages_async

        config = self._llm.model_config
        parsed = parse_chat_messages_async(messages, config, content_format="string")
        conversation, images, ids = self._run(parsed)
        return conversation, {"multi_modal_data": images, "multi_modal_uuids": ids}

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _result_or_error(awaited: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await awaited
    except Exception as error:  # noqa: BLE001 - the engine raises many types
        return error


@lru_cache(maxsize=1)
def _is_built_for_cpus() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


@lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the engines, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


async def _started(model: VllmModel, share: float) -> Any:
    # the standard output of a preview is only for results
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    import vllm
    from vllm.usage.usage_lib import UsageContext

    arguments = vllm.AsyncEngineArgs(**arguments_of(model, share))
    # vLLM's defaults for batches compute more rows at the same time than those for servers
    return vllm.AsyncLLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)


def _processor(model: VllmModel) -> Any:
    """Return the part of a model that has the chat template: its processor or tokenizer. Raises
    ModelLoad if the template does not accept the messages of the job."""
    from transformers import AutoProcessor

    path = files_without_weights(model)
    processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
    check_template(model, processor)
    return processor
