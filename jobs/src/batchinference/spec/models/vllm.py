"""Language models that run in vLLM."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, SpecModel, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.durations import Duration
from batchinference.spec.models.base import (
    LABELED,
    Inputs,
    LabelModel,
    OutputName,
    Revision,
    Source,
    TopK,
    check_revision,
)
from batchinference.spec.models.generation import RequestModel
from batchinference.spec.models.prompts import (
    Images,
    Messages,
    Template,
    check_prompt,
    columns_of_prompt,
    placeholders,
)
from batchinference.spec.models.sampling import check_vllm, row_parameters
from batchinference.spec.resources import Resources
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import HttpPrefix

Parts = Annotated[int, Field(ge=1, le=64)]
_HUB_ID = r"^\w[\w.-]*(/\w[\w.-]*)?$"
_LOCATION = "^(/|[a-z0-9]+://)"
_ENGINE_FIELDS = {
    "model": "source",
    "revision": "revision",
    "task_type": "task",
    "tensor_parallel_size": "parallelism.tensor",
    "pipeline_parallel_size": "parallelism.pipeline",
}
"""Engine arguments, and the field to set instead of each, because the plan needs the value."""


class Parallelism(SpecModel):
    """How a model is distributed over the GPUs of a replica, which has tensor x pipeline GPUs."""

    tensor: Parts = 1
    """Number of GPUs that share each layer, in the same pod."""
    pipeline: Parts = 1
    """Number of groups into which the layers are divided. On a cluster, each group has its own pod,
    with the CPUs and memory in the resources of the step."""


_PAIR = ("query", "document")
_NO_WINDOWS = "'tooLong: windows' is for the runtimes transformers and sentenceTransformers"


class VllmModel(RequestModel, LabelModel):
    """A language model that runs in vLLM with continuous batching: a replica starts new rows as
    soon as other rows are finished."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ("config.json",)
    IN_PROCESS: ClassVar[bool] = False
    WITHOUT_DEVICE: ClassVar[str] = "without GPUs, which vLLM needs unless it was built for CPUs"

    runtime: Literal["vllm"]
    """The library that runs the model."""
    task: Literal["generate", "embed", "classify", "score"] = "generate"
    """What the model computes for a row. `generate`: a text. `embed`: an embedding. `classify`: the
    most likely label. `score`: how well the input `document` answers `query`, by a
    cross-encoder."""
    source: Source
    """A model id of the Hub, the path of a folder, or an object store prefix."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source` and `loraPath`."""
    inputs: Inputs
    """Names for columns. Templates, `images` and `adapter` use these names."""
    output: ColumnName
    """The column for the result: a text, an embedding, a struct of `label` and `score`, or a score.
    If `sampling.n` is above 1, a list of texts."""
    top_k: TopK | None = None
    """Return a list of at most this many of the most likely labels, the most likely first. For
    classify. By default, only the most likely label."""
    prompt: Template | None = None
    """The prompt template, with `{name}` for an input. `{{` and `}}` are literal braces. Without
    `prompt`, the input that no other field uses is the prompt. It is a text, or for a chat a list
    of messages with `role` and `content`."""
    system: Template | None = None
    """The template of the system message, which is the first message of the chat."""
    messages: Messages = []
    """Messages of the chat between `system` and `prompt`, such as examples."""
    images: Images = []
    """The inputs that are images: pixels, the bytes of files, or addresses (http://, https:// or
    data URIs). An image replaces its `{name}` in `prompt`, or precedes the prompt."""
    allow: Annotated[list[HttpPrefix], Field(max_length=64)] = []
    """Prefixes of additional allowed image addresses, such as https://intranet.example/photos/. The
    public internet is always allowed. Rows with other addresses fail."""
    chat: bool | None = None
    """Whether to apply the chat template of the model. By default, only for the task generate."""
    tool_call_parser: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """vLLM's parser for the tool calls of the model, such as `hermes`. Requests with tools that the
    model may use (`tool_choice: auto`) need it."""
    chat_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """A Jinja chat template that replaces the chat template of the model."""
    chat_template_args: Arguments = {}
    """Additional variables of the chat template, such as `enable_thinking`."""
    sampling: Arguments = {}
    """The SamplingParams of vLLM, such as `max_tokens`, `temperature`, `top_p`, `seed`, `stop`, `n`
    or `structured_outputs`. `max_tokens` is by default the rest of the context. A number may come
    from the row, such as `max_tokens: "{limit}"` with an input `limit`. Null means the default.
    `logprobs` needs `details`. For embed, classify and score, the PoolingParams of vLLM."""
    row_timeout: Duration | None = None
    """Maximum time of a row in the engine, including the wait for rows that the engine got before.
    After this time, the row is a failed row, and its computation ends. Unlimited by default."""
    engine: Arguments = {}
    """The engine arguments of vLLM, such as `max_model_len`, `gpu_memory_utilization`, `dtype`,
    `enable_prefix_caching` or `limit_mm_per_prompt`. With a fraction of a GPU (`resources.gpu`),
    `gpu_memory_utilization` is 0.9 x this fraction by default. `max_num_seqs` is 256 by default, or
    1024 on large GPUs. A replica keeps twice as many prompts with their images in memory."""
    parallelism: Parallelism = Parallelism()
    """How the model is distributed over several GPUs."""
    lora_path: Source | None = None
    """The location of the LoRA adapters, each in its own folder: an absolute path or an object
    store prefix. Without it, adapters are ids of the Hub."""
    lora_adapters: Annotated[list[OutputName], Field(max_length=256)] = []
    """The adapters that rows may use. By default, all adapters below `loraPath`. Required for
    adapters of the Hub, because rows must not choose what is downloaded."""
    adapter: ColumnName | None = None
    """The input with the name of the LoRA adapter of each row. Null for the base model."""

    @property
    def output_type(self) -> ColumnType:
        if self.request is not None:
            return "string"
        types: dict[str, ColumnType] = {
            "generate": self.answer_type,
            "embed": ["float32"],
            "classify": "string" if self.score_output else [LABELED] if self.top_k else LABELED,
            "score": "float32",
        }
        return types[self.task]

    @property
    def generates_text(self) -> bool:
        return self.task == "generate"

    @property
    def classifies(self) -> bool:
        return self.task == "classify" and self.top_k is None

    @property
    def has_several_texts(self) -> bool:
        return bool(self.sampling.get("n", 1) != 1)

    @property
    def extra_details(self) -> dict[str, ColumnType]:
        if self.sampling.get("logprobs") is None:
            return {}
        top: ColumnType = {"token": "string", "logprob": "float32"}
        return {"logprobs": [{"token": "string", "logprob": "float32", "top_logprobs": [top]}]}

    @property
    def row_parameters(self) -> dict[str, str]:
        """Return the input of each parameter of `sampling` whose value comes from the row."""
        return row_parameters(self.sampling)

    @property
    def uses_texts(self) -> bool:
        return True

    @property
    def is_chat(self) -> bool:
        """Return whether the chat template is applied."""
        return self.task == "generate" if self.chat is None else self.chat

    @property
    def prefix_columns(self) -> tuple[str, ...]:
        has_cache = self.generates_text and self.engine.get("enable_prefix_caching", True)
        return columns_of_prompt(self) if has_cache else ()

    @property
    def parameter_inputs(self) -> tuple[str, ...]:
        if self.request is not None:
            return super().parameter_inputs
        templates = [self.prompt, self.system, *(message.content for message in self.messages)]
        in_prompt = {name for text in templates for name in placeholders(text or "")}
        return tuple(name for name in self._selecting if name not in in_prompt)

    @property
    def _selecting(self) -> list[str]:
        """Return the inputs that are the LoRA adapter or a parameter of `sampling`."""
        adapter = [] if self.adapter is None else [self.adapter]
        return [*dict.fromkeys([*adapter, *self.row_parameters.values()])]

    @property
    def needs_finite(self) -> bool:
        return self.task == "embed" and self.request is None

    @property
    def pods(self) -> int:
        return self.parallelism.pipeline

    @property
    def extra_locations(self) -> list[str]:
        """Return the location of the LoRA adapters; empty if they are from the Hub."""
        return [] if self.lora_path is None else [self.lora_path]

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        needed = self.parallelism.tensor * self.parallelism.pipeline
        on_cpus = "gpu" in resources.model_fields_set and self.parallelism.pipeline == 1
        is_part = needed == 1 and 0 < resources.gpu < 1
        if resources.gpu != needed and not is_part and (resources.gpu or not on_cpus):
            message = (
                f"vllm takes parallelism.tensor x parallelism.pipeline GPUs, here {needed}. Set "
                f"resources.gpu to {needed}, not {resources.gpu:g}"
            )
            build = ", or write gpu: 0 for vLLM's build for CPUs"
            raise invalid(message + (build if self.parallelism.pipeline == 1 else ""))
        if resources.custom:
            raise invalid("the runtime vllm supports only GPUs. Remove resources.custom")
        if batch_size == "auto":
            raise invalid("vllm makes its batches itself. Set batchSize to a number")

    def _check(self) -> None:
        for name in sorted(self.engine.keys() & _ENGINE_FIELDS.keys()):
            raise invalid(f"engine: '{name}' has a field of its own: {_ENGINE_FIELDS[name]}")
        check_vllm(self.task, self.sampling)
        self._check_results()
        check_revision(self.source, self.revision)
        if self.too_long == "windows":
            raise invalid(_NO_WINDOWS)
        if self.tool_call_parser is not None and self.request is None:
            raise invalid("'toolCallParser' needs 'request'")
        if self.request is not None or self.request_url is not None:
            self._check_request()
            return
        if self.images and self.too_long not in (None, "fail"):
            raise invalid("tooLong: prompts with images are not cut. Use fail, or remove 'images'")
        if not self.is_chat:
            self._check_no_chat()
        if self.allow and not self.images:
            raise invalid("'allow' needs 'images': it is about their addresses")
        if self.task == "score":
            self._check_pair()
        else:
            check_prompt(self, self._selecting)
        self._check_adapters()

    def _check_request(self) -> None:
        if self.task not in ("generate", "embed"):
            raise invalid(f"'request' is for the tasks generate and embed, not for {self.task}")
        self.check_request()

    def _check_results(self) -> None:
        if self.top_k is not None and self.task != "classify":
            raise invalid("topK is for task classify only")
        self.check_details()
        self.check_score()
        self.check_schema(self.sampling)
        if self.details is None and self.sampling.get("logprobs") is not None:
            raise invalid(
                "sampling.logprobs: the output is a text, and the log probabilities would be lost. "
                "Add 'details' with the name of a column for them"
            )

    def _check_pair(self) -> None:
        if set(self.inputs) != set(_PAIR):
            raise invalid("task score takes inputs: {query: COLUMN, document: COLUMN}")
        if self.prompt is not None or self.is_chat:
            raise invalid("task score takes a query and a document. Remove 'prompt' and 'chat'")
        if self.too_long not in (None, "fail"):
            raise invalid("tooLong: the pairs of task score are not cut. Use fail")

    def _check_adapters(self) -> None:
        fields = {"loraPath": self.lora_path, "loraAdapters": self.lora_adapters}
        if self.adapter is None and (unused := [name for name, value in fields.items() if value]):
            raise invalid(f"'{unused[0]}' needs an 'adapter': the input with a name for each row")
        if self.lora_path is not None:
            if not re.match(_LOCATION, self.lora_path):
                raise invalid(
                    f"loraPath: expected an absolute path or an address, got '{self.lora_path}'"
                )
            return
        if self.adapter is not None and not self.lora_adapters:
            raise invalid(
                "'adapter' needs 'loraPath', or 'loraAdapters' with the ids of the Hub that rows "
                "may name"
            )
        for name in self.lora_adapters:
            if not re.fullmatch(_HUB_ID, name, re.ASCII):
                raise invalid(
                    f"loraAdapters: '{name}' is not an id of the Hub, and there is no 'loraPath'"
                )

    def _check_no_chat(self) -> None:
        for name in ("system", "messages", "images", "chat_template", "chat_template_args"):
            if getattr(self, name):
                alias = type(self).model_fields[name].alias
                raise invalid(f"'{alias}' is for a chat. Set 'chat' to true")
