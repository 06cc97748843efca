"""Language models run by vLLM, through Ray Data's processor for it."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, SpecModel, rules
from batchinference.spec.models.base import (
    Inputs,
    OutputName,
    Revision,
    RuntimeModel,
    Source,
    check_revision,
)
from batchinference.spec.models.prompts import (
    Images,
    Messages,
    Template,
    check_prompt,
)
from batchinference.spec.resources import Resources
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import UrlPrefix

Parts = Annotated[int, Field(ge=1, le=64)]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_ENGINE_ELSEWHERE = {
    "model": "source",
    "revision": "revision",
    "task_type": "task",
    "tensor_parallel_size": "parallelism.tensor",
    "pipeline_parallel_size": "parallelism.pipeline",
}
"""Engine arguments that have a field, for the plan needs to know them."""


class Parallelism(SpecModel):
    """How a model is distributed over tensor x pipeline GPUs of a replica."""

    tensor: Parts = 1
    """GPUs that share each layer. They are on one node, in one pod."""
    pipeline: Parts = 1
    """Groups of layers, one after the other. On a cluster, each has its own pod, with the CPUs and
    memory of the resources of the step."""


_IS_CHAT = "(has(self.chat) ? self.chat : !has(self.task) || self.task == 'generate')"
_LORA_ADAPTERS = "(has(self.loraAdapters) && size(self.loraAdapters) > 0)"
_RULES = (
    *(
        (f"!has(self.{name}){empty} || {_IS_CHAT}", f"'{name}' is for a chat: set 'chat' to true")
        for name, empty in (
            *(("system", ""), ("chatTemplate", "")),
            *(
                ("messages", " || size(self.messages) == 0"),
                ("images", " || size(self.images) == 0"),
            ),
        )
    ),
    (
        "!has(self.allow) || size(self.allow) == 0 || (has(self.images) && size(self.images) > 0)",
        "'allow' needs 'images': it is about their addresses",
    ),
    (
        f"has(self.adapter) || !(has(self.loraPath) || {_LORA_ADAPTERS})",
        "'loraPath' and 'loraAdapters' need an 'adapter': the input that names each row's",
    ),
    (
        f"!has(self.adapter) || has(self.loraPath) || {_LORA_ADAPTERS}",
        "'adapter' needs 'loraPath', or 'loraAdapters' with the ids of the Hub that rows may name",
    ),
)


class VllmModel(RuntimeModel):
    """A language model run by vLLM, which batches continuously: a replica starts new rows as soon
    as others are done."""

    model_config = ConfigDict(json_schema_extra=rules(*_RULES))

    HUB_FILES: ClassVar[tuple[str, ...]] = ("config.json",)
    IN_PROCESS: ClassVar[bool] = False

    runtime: Literal["vllm"]
    """The library that runs the model."""
    task: Literal["generate", "embed"] = "generate"
    """Whether the model generates a text or an embedding."""
    source: Source
    """A model id of the Hub, the path of a folder, or an s3:// prefix."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source` and `loraPath`."""
    inputs: Inputs
    """Names of columns, which templates, `images` and `adapter` use."""
    output: ColumnName
    """The column for the text or the embedding."""
    prompt: Template | None = None
    """The prompt, with `{name}` for an input. `{{` and `}}` are literal braces. Without it, the
    only input that no other field uses is the prompt: a text, or for a chat a list of messages with
    `role` and `content`."""
    system: Template | None = None
    """The system message, the first of the chat."""
    messages: Messages = []
    """Messages of the chat between `system` and `prompt`, such as examples."""
    images: Images = []
    """The inputs that are images: pixels, the bytes of files, or addresses (http://, https:// or
    data URIs). An image is at the place of its `{name}` in `prompt`, otherwise before the
    prompt."""
    allow: Annotated[list[UrlPrefix], Field(max_length=64)] = []
    """Prefixes of further addresses of images that are allowed, such as
    https://intranet.example/photos/. The public internet is always allowed. A row with any other
    address fails."""
    chat: bool | None = None
    """Whether the chat template of the model is applied. By default, true for generate and false
    for embed."""
    chat_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """A chat template in Jinja, in place of that of the model."""
    chat_template_args: Arguments = {}
    """Further variables of the chat template, such as `enable_thinking`."""
    sampling: Arguments = {}
    """vLLM's SamplingParams: `max_tokens` (vLLM stops after 16 by default),
    `temperature`, `top_p`, `seed`, `stop`... For embed its PoolingParams."""
    engine: Arguments = {}
    """vLLM's engine arguments: `max_model_len`, `gpu_memory_utilization`, `dtype`,
    `enable_prefix_caching`, `limit_mm_per_prompt`..."""
    parallelism: Parallelism = Parallelism()
    """How the model is distributed over several GPUs."""
    lora_path: Source | None = None
    """The location of the LoRA adapters, each in its own folder: an absolute path or an s3://
    prefix. Without it, adapters are ids of the Hub."""
    lora_adapters: Annotated[list[OutputName], Field(max_length=256)] = []
    """The adapters that rows may name. Any below `loraPath` by default. Required for adapters of
    the Hub, because rows must not choose what is downloaded."""
    adapter: ColumnName | None = None
    """The input with the LoRA adapter of each row. If it is null, the row uses the base model."""
    max_concurrent_batches: Annotated[int, Field(ge=1, le=1024)] = 8
    """Batches that a replica processes at the same time. Together they should have as many rows as
    the engine has sequences (`max_num_seqs`)."""

    @property
    def is_chat(self) -> bool:
        """Whether the chat template is used."""
        return self.task == "generate" if self.chat is None else self.chat

    @property
    def pods(self) -> int:
        """Pods of a replica on a cluster."""
        return self.parallelism.pipeline

    @property
    def actors_beside(self) -> int:
        """Actor pools that prepare prompts: for images, the chat template and the tokens."""
        return bool(self.images) + self.is_chat + 1

    @property
    def other_places(self) -> list[str]:
        """Where its adapters are, unless they come from the Hub."""
        return [] if self.lora_path is None else [self.lora_path]

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        """Raise when the step's resources or batches do not fit the model."""
        needed = self.parallelism.tensor * self.parallelism.pipeline
        if resources.gpu != needed:
            message = (
                f"vllm takes parallelism.tensor x parallelism.pipeline GPUs, here {needed}: set "
                f"resources.gpu to {needed}, not {resources.gpu}"
            )
            raise _error(message)
        if resources.custom:
            raise _error("vllm takes GPUs: leave out resources.custom")
        if batch_size == "auto":
            raise _error("vllm makes its batches itself: batchSize is a number")

    @model_validator(mode="after")
    def _check(self) -> VllmModel:
        for name in sorted(self.engine.keys() & _ENGINE_ELSEWHERE.keys()):
            raise _error(f"engine: '{name}' has a field of its own: {_ENGINE_ELSEWHERE[name]}")
        check_revision(self.source, self.revision)
        if not self.is_chat:
            self._check_no_chat()
        if self.allow and not self.images:
            raise _error("'allow' needs 'images': it is about their addresses")
        check_prompt(self, [] if self.adapter is None else [self.adapter])
        self._check_adapters()
        return self

    def _check_adapters(self) -> None:
        given = {"loraPath": self.lora_path, "loraAdapters": self.lora_adapters}
        if self.adapter is None and (unused := [name for name, value in given.items() if value]):
            raise _error(f"'{unused[0]}' needs an 'adapter': the input that names each row's")
        if self.lora_path is not None:
            if not re.match("/|[a-z0-9]+://", self.lora_path):
                raise _error(
                    f"loraPath: expected an absolute path or an address, got '{self.lora_path}'"
                )
            return
        if self.adapter is not None and not self.lora_adapters:
            raise _error(
                "'adapter' needs 'loraPath', or 'loraAdapters' with the ids of the Hub that rows "
                "may name"
            )
        for name in self.lora_adapters:
            if not _HUB_ID.fullmatch(name):
                raise _error(
                    f"loraAdapters: '{name}' is no id of the Hub, and there is no 'loraPath'"
                )

    def _check_no_chat(self) -> None:
        for name in ("system", "messages", "images", "chat_template", "chat_template_args"):
            if getattr(self, name):
                alias = type(self).model_fields[name].alias
                raise _error(f"'{alias}' is for a chat: set 'chat' to true")


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("vllm", "{message}", {"message": message})
