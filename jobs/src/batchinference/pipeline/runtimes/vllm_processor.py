"""Configures Ray Data's vLLM processor for a stage, and wraps its stages with error isolation.

Without error isolation, a stage ends the job if it cannot prepare a row, fails rows whose adapter
cannot be downloaded, and loses the reason why a model cannot be loaded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.media.images import open_image
from batchinference.pipeline.ray_compat import StatefulStageUDF
from batchinference.pipeline.runtimes.model_files import (
    Adapters,
    NoAdapter,
    files_of,
    files_without_weights,
)
from batchinference.pipeline.runtimes.prompts import Message, Part, data_uri, plain
from batchinference.pipeline.runtimes.template_limits import limited
from batchinference.pipeline.runtimes.vllm_checks import check_parameters, check_template
from batchinference.pipeline.runtimes.vllm_row_codec import (
    ADAPTER,
    CUT,
    ERROR,
    RESULT,
    ROW,
    opened,
    parameters_of,
    result_of,
)
from batchinference.pipeline.storage.allowed_addresses import Allowed
from batchinference.pipeline.storage.http import THREADS, Fetcher
from batchinference.plan import Stage
from batchinference.plan.stages import HELPER_CPUS, TASK_CPUS
from batchinference.spec.models import VllmModel

Row = dict[str, Any]


class IsolatingStage(StatefulStageUDF):
    """Base class that wraps one of Ray's stage classes, which prepares rows or runs the engine."""

    step: ClassVar[str]
    spec: ClassVar[VllmModel]
    hint: ClassVar[str]
    """A possible reason for a failed model load, appended to the error message; may be empty."""

    def __init__(self, **arguments: Any) -> None:
        # raised at the first batch, because Ray drops the cause of a constructor's error
        self._failure: JobFailure | None = None
        try:
            super().__init__(**self._with_files(arguments))
        except Exception as error:  # noqa: BLE001 - libraries raise many types
            self._failure = load_failure(self.step, self.spec, error, self.hint)

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the model's local folder on the machine of this stage."""
        model: dict[str, Any] = {"model": files_without_weights(self.spec)}
        if "model_config_kwargs" in arguments:
            model = {"model_config_kwargs": {**arguments["model_config_kwargs"], **model}}
        return {**arguments, **model}

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        async for made in super().__call__(batch):
            yield made

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        for made in await self._isolated(rows):
            yield made

    async def _isolated(self, rows: list[Row]) -> list[Row]:
        """Return the results of the rows. If they raise, split them to find the failed rows."""
        try:
            return await self._run(rows)
        except Exception as error:
            if not is_about_the_row(error):
                message = f"step '{self.step}' cannot continue: {describe(error)}"
                raise JobFailure(message) from error
            if len(rows) == 1:
                return [self._failed(rows[0], error)]
        half = len(rows) // 2
        return [*await self._isolated(rows[:half]), *await self._isolated(rows[half:])]

    async def _run(self, rows: list[Row]) -> list[Row]:
        stage: Any = super()  # Ray does not annotate udf as an async generator
        return [made async for made in stage.udf(rows)]

    def _failed(self, row: Row, error: Exception) -> Row:
        return {self.IDX_IN_BATCH_COLUMN: row[self.IDX_IN_BATCH_COLUMN], ERROR: describe(error)}


class GuardedTemplate(IsolatingStage):
    """Wraps Ray's class that applies the chat template, and checks the messages of the job."""

    processor: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._failure is not None:
            return
        try:
            check_template(self.spec, self.processor)
        except ModelLoad as failure:
            self._failure = failure
        # for Ray's class; the check has its own limits
        self.processor.apply_chat_template = limited(self.processor.apply_chat_template)


_TOO_LONG = re.compile(r"maximum context length is (\d+) tokens.*?([\d]+) input tokens", re.DOTALL)


class GuardedEngine(IsolatingStage):
    """Wraps Ray's class that runs the engine, and passes adapters to it as local folders."""

    model: str
    """The value that Ray interprets as the base model."""

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        check_parameters(self.spec)  # before the weights are downloaded
        self._adapters = Adapters(self.spec)
        return {**arguments, "model": files_of(self.spec)}

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        ready = []
        for row in rows:
            try:
                row["model"] = await self._model_of(row.pop(ADAPTER, None))
                ready.append(row)
            except NoAdapter as error:
                yield self._failed(row, error)
        # the engine reports the rows that it rejects; an exception is not about a row
        for made in await self._run(ready):
            yield self._explained(made)

    def _explained(self, made: Row) -> Row:
        """Return the answer with a clear error, if the prompt was too long. vLLM does not say which
        length it is about, and counts no new tokens."""
        found = _TOO_LONG.search(made.get(ERROR) or "")
        if found is None:
            return made
        fix = "" if self.spec.images else ", or set the model's field tooLong to truncate"
        return {
            **made,
            ERROR: f"the prompt has {found[2]} tokens, and the model takes {found[1]} tokens for "
            f"the prompt and the new text together. Shorten the prompt{fix}",
        }

    async def _model_of(self, adapter: Any) -> Any:
        """Return Ray's `model` value for a row: the adapter's folder, or else the base model."""
        if adapter is None:
            return self.model
        try:
            return await asyncio.to_thread(self._adapters.folder, adapter)
        except NoAdapter:
            raise
        except Exception as error:
            raise JobFailure(
                f"step '{self.step}': the adapter '{adapter}' cannot be fetched: {describe(error)}"
            ) from error


def guarded(kind: Any, guard: type[IsolatingStage], step: str, spec: VllmModel, hint: str) -> Any:
    """Return Ray's stage class wrapped with a guard. It keeps the class name, which Ray uses as the
    operator's name."""
    return type(kind.__name__, (guard, kind), {"step": step, "spec": spec, "hint": hint})


def load_failure(step: str, spec: VllmModel, error: Exception, hint: str = "") -> JobFailure:
    if isinstance(error, JobFailure):
        return error
    problem = f"step '{step}': the model '{spec.source}' cannot be loaded{hint}"
    return ModelLoad(f"{problem}: {describe(error)}")


MAX_BYTES = 64 << 20
"""Maximum size of a downloaded image in bytes."""


class ImageInliner:
    """Replaces the URLs of images with their content."""

    def __init__(self, model: VllmModel) -> None:
        self._fetcher = Fetcher(
            Allowed(model.allow), MAX_BYTES, "model.allow", "an image of a prompt may have"
        )

    def __call__(self, messages: Any) -> list[Message]:
        """Return the messages of a chat with images as data URIs.

        Raises ValueError for parts that are neither text nor image, and the errors of Fetcher."""
        return [self._message(message) for message in plain(messages)]

    def _message(self, message: Message) -> Message:
        content = message["content"]
        if not isinstance(content, list):
            return message
        return {**message, "content": [self._part(part) for part in content]}

    def _part(self, part: Part) -> Part:
        """Return a part with only the fields of its type. vLLM reads other fields too, such as
        tensors."""
        kind = part.get("type")
        if kind == "text":
            return {"type": "text", "text": part["text"]}
        if kind != "image_url":
            raise ValueError(f"the content of a message has text and image_url, not '{kind}'")
        image = part["image_url"]
        url = image.get("url") if isinstance(image, Mapping) else image
        return {"type": "image_url", "image_url": {"url": data_uri(self._content(url))}}

    def _content(self, url: Any) -> bytes:
        """Return the bytes of an image file from its URL. Raises ValueError for other schemes."""
        scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
        if scheme == "data":
            content = _decoded_data_uri(url)
        elif scheme in ("http", "https"):
            content = self._fetcher.fetch_url(url)
        else:
            raise ValueError("expected the address of an image: http://, https:// or data:")
        with open_image(content):
            return content


def _decoded_data_uri(uri: str) -> bytes:
    head, _, content = uri.partition(",")
    if not head.endswith(";base64"):
        raise ValueError("a data URI of an image is in base64")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a data URI of an image is no base64: {error}") from None


class GuardedImages(IsolatingStage):
    """Wraps Ray's class that decodes images, and inlines all images so that it downloads none."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._inliner = ImageInliner(self.spec)
        self._pool = ThreadPoolExecutor(THREADS)

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        ready = []
        for row, messages in zip(rows, await self._fetched(rows), strict=True):
            if isinstance(messages, Exception):
                yield self._failed(row, messages)
            else:
                ready.append({**row, "messages": messages})
        async for made in super().udf(ready):
            yield made

    async def _fetched(self, rows: list[Row]) -> list[list[Message] | Exception]:
        """Return the messages of each row, or the row's error."""
        run = asyncio.get_running_loop().run_in_executor
        return await asyncio.gather(*(run(self._pool, self._messages_of, row) for row in rows))

    def _messages_of(self, row: Row) -> list[Message] | Exception:
        try:
            return self._inliner(row["messages"])
        except Exception as error:
            if not is_about_the_row(error):
                raise
            return error


ENGINE = "vLLMEngineStage"
IMAGES = "PrepareMultimodalStage"
TEMPLATE = "ChatTemplateStage"
NO_GPUS = " (vLLM needs GPUs unless it was built for CPUs, and here are none for it)"
Selector = dict[str, str] | None


@dataclass(frozen=True)
class NodeSelectors:
    """Label selectors for the nodes of the engine and of its helper actors; None for any node."""

    engine: Selector
    helpers: Selector


@dataclass(frozen=True)
class RetryOptions:
    """Ray arguments that set how often tasks and actors are retried after their process died."""

    of_tasks: Mapping[str, int]
    of_actors: Mapping[str, int]


def config_of(stage: Stage, model: VllmModel) -> Any:
    """Return the configuration of Ray Data's vLLM processor for a stage."""
    size = stage.replicas
    replicas = (size.min, size.max) if size else (1, 1)
    helpers = {"concurrency": (1, replicas[1]), "num_cpus": HELPER_CPUS}
    chat = {"chat_template": model.chat_template, "chat_template_kwargs": model.chat_template_args}
    return vLLMEngineProcessorConfig(
        model_source=_source(stage, model),
        task_type=model.task,
        engine_kwargs=_engine(model),
        batch_size=stage.batch_size,
        concurrency=replicas,
        max_concurrent_batches=model.max_concurrent_batches,
        accelerator_type=stage.accelerator,
        placement_group_config={
            "bundle_per_worker": _bundle(stage, model),
            "strategy": _strategy(stage),
        },
        # decode_rows decides whether the job continues: only it knows the id of the failed row
        should_continue_on_error=True,
        prepare_multimodal_stage={"enabled": bool(model.images), **helpers},
        chat_template_stage={"enabled": model.is_chat, **chat, **helpers},
        tokenize_stage={"enabled": True, **helpers},
        # the engine detokenizes itself, which it needs to do to support stop strings
        detokenize_stage={"enabled": False},
    )


def _source(stage: Stage, model: VllmModel) -> str:
    try:
        return files_without_weights(model)
    except Exception as error:
        raise load_failure(stage.name, model, error) from error


def _engine(model: VllmModel) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "tensor_parallel_size": model.parallelism.tensor,
        "pipeline_parallel_size": model.parallelism.pipeline,
    }
    if model.revision is not None:
        arguments |= {"revision": model.revision, "tokenizer_revision": model.revision}
    if model.adapter is not None:
        arguments["enable_lora"] = True
    return {**arguments, **model.engine}


def _bundle(stage: Stage, model: VllmModel) -> dict[str, float]:
    """Return the resources of each GPU worker: its share of the replica's CPUs and GPUs."""
    workers = model.parallelism.tensor * model.parallelism.pipeline
    return {"CPU": stage.cpus * stage.pods / workers, "GPU": stage.gpus / workers}


def _strategy(stage: Stage) -> str:
    """Return the placement strategy that keeps GPUs that share layers on one node."""
    return "STRICT_PACK" if stage.pods == 1 else "PACK"


def processor_of(
    stage: Stage, model: VllmModel, nodes: NodeSelectors, retries: RetryOptions
) -> Any:
    """Return the processor, with label selectors and retry options on each operator."""
    task = {"num_cpus": TASK_CPUS, "label_selector": nodes.helpers, **retries.of_tasks}
    processor = build_processor(
        config_of(stage, model),
        preprocess=partial(opened, parameters_of(model)),
        postprocess=partial(_keep, result_of(model.task)),
        preprocess_map_kwargs=task,
        postprocess_map_kwargs=task,
    )
    for name in processor.list_stage_names():
        found = processor.get_stage_by_name(name)
        arguments = found.map_batches_kwargs
        arguments.update(retries.of_actors)
        arguments["label_selector"] = nodes.engine if name == ENGINE else nodes.helpers
        if "ray_remote_args_fn" in arguments:
            arguments.update(_placement_options(stage, model, nodes.engine))
        # copy the stage: assigning a field makes Ray validate and derive all fields again
        fn = _guarded(found.fn, name, stage, model)
        processor.stages[name] = found.model_copy(update={"fn": fn})
    return processor


def _guarded(kind: Any, name: str, stage: Stage, model: VllmModel) -> Any:
    if name != ENGINE:
        guard = _GUARDS.get(name, IsolatingStage)
        return guarded(kind, guard, stage.name, model, "")
    return guarded(kind, GuardedEngine, stage.name, model, "" if stage.gpus else NO_GPUS)


_GUARDS: dict[str, type[IsolatingStage]] = {IMAGES: GuardedImages, TEMPLATE: GuardedTemplate}


def _placement_options(stage: Stage, model: VllmModel, selector: Selector) -> dict[str, Any]:
    """Return the Ray arguments that create the placement group of an engine with several workers.

    The group is the same as Ray's default, but it is restricted to the engine's nodes, and the
    actor requests no more CPUs than one bundle has.
    """
    bundle = _bundle(stage, model)
    kind = {f"accelerator_type:{stage.accelerator}": 0.001} if stage.accelerator else {}
    workers = model.parallelism.tensor * model.parallelism.pipeline
    group = partial(_create_group, [{**bundle, **kind}] * workers, _strategy(stage), selector)
    return {"num_cpus": bundle["CPU"], "ray_remote_args_fn": group}


def _create_group(
    bundles: list[dict[str, float]], strategy: str, selector: Selector
) -> dict[str, Any]:
    selectors = [selector] * len(bundles) if selector else None
    group = ray.util.placement_group(bundles, strategy, bundle_label_selector=selectors)
    scheduling = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    return {"scheduling_strategy": scheduling}


def _keep(result: Callable[[Mapping[str, Any]], Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the row, its result and its cut, as the processor's postprocess function."""
    return {ROW: answer[ROW], RESULT: result(answer), CUT: answer.get(CUT)}
