"""The parts of vLLM that Ray Data's stages use, with an engine that reverses its prompt.

vLLM needs a GPU. This module tests everything between a job's file and vLLM, not vLLM itself.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import ray
from PIL import Image

MOST_TOKENS = 4096


class AsyncEngineArgs(SimpleNamespace):
    revision = None
    gpu_memory_utilization = 0.9

    def create_engine_config(self) -> Any:
        if (share := self.gpu_memory_utilization) > 1:
            raise ValueError(f"GPU memory utilization must be less than 1.0. Got {share}.")
        sizes = SimpleNamespace(pipeline_parallel_size=self.pipeline_parallel_size)
        return SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=4), parallel_config=sizes
        )


class SamplingParams(SimpleNamespace):
    """Any parameters."""


class PoolingParams(SimpleNamespace):
    """Any parameters."""


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class Completion:
    text: str
    token_ids: list[int]
    logprobs: None = None


@dataclass
class RequestOutput:
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt: str = ""
    finished: bool = True
    metrics: None = None
    prompt_logprobs: None = None


@dataclass
class PoolingRequestOutput:
    prompt_token_ids: list[int]
    outputs: Any
    prompt: str = ""
    finished: bool = True


@dataclass
class AsyncLLMEngine:
    arguments: AsyncEngineArgs
    _tokenizer: Any = field(init=False)

    def __post_init__(self) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(
            self.arguments.model, revision=self.arguments.revision
        )

    @classmethod
    def from_engine_args(cls, arguments: AsyncEngineArgs, stat_loggers: Any) -> AsyncLLMEngine:
        return cls(arguments)

    async def generate(
        self, request_id: str, prompt: Any, sampling_params: Any, lora_request: Any
    ) -> AsyncIterator[RequestOutput]:
        tokens = prompt["prompt_token_ids"]
        text = self._tokenizer.decode(tokens)
        if len(tokens) > MOST_TOKENS:
            raise ValueError(
                f"This model's maximum context length is {MOST_TOKENS} tokens. However, you "
                f"requested 0 output tokens and your prompt contains {len(tokens)} input tokens"
            )
        if "refuse" in text:
            raise ValueError("The decoder prompt is too long")
        generated = text[::-1][: sampling_params.max_tokens]
        if lora_request is not None:
            generated += f" by {lora_request.lora_path}"
        if images := prompt["multi_modal_data"]:
            generated += f" of {[tuple(map(int, size)) for size in images['image']]}"
        if ray.is_initialized() and (group := ray.util.get_current_placement_group()):
            generated += f" on {len(group.bundle_specs)} bundles"
        yield RequestOutput(tokens, [Completion(generated, [1])])

    async def encode(
        self, request_id: str, prompt: Any, pooling_params: Any, **_: Any
    ) -> AsyncIterator[PoolingRequestOutput]:
        import torch

        tokens = prompt["prompt_token_ids"]
        vector = torch.tensor([float(len(tokens)), 0.5])
        yield PoolingRequestOutput(tokens, SimpleNamespace(data=vector))

    async def do_log_stats(self) -> None:
        """Log nothing."""


async def parse_chat_messages_async(
    messages: list[dict[str, Any]], model: Any, content_format: str
) -> tuple[list[dict[str, Any]], dict[str, Any] | None, None]:
    """Return the conversation with texts only, and the sizes of its images."""
    conversation, sizes = [], []
    for message in messages:
        texts = [message["content"]] if isinstance(message["content"], str) else []
        for part in () if texts else message["content"]:
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                content = part["image_url"]["url"].partition(",")[2]
                image = Image.open(io.BytesIO(base64.b64decode(content)))
                image.load()
                sizes.append(image.size)
        conversation.append({"role": message["role"], "content": "".join(texts)})
    return conversation, {"image": sizes} if sizes else None, None


class EngineDeadError(Exception):
    """Never raised here."""


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)


_module("vllm.config", ModelConfig=SimpleNamespace)
_module("vllm.entrypoints")
_module("vllm.entrypoints.chat_utils", parse_chat_messages_async=parse_chat_messages_async)
_module("vllm.inputs")
_module("vllm.inputs.llm", TextPrompt=dict, TokensPrompt=dict)
_module("vllm.outputs", RequestOutput=RequestOutput, PoolingRequestOutput=PoolingRequestOutput)
_module("vllm.lora")
_module("vllm.lora.request", LoRARequest=LoRARequest)
_module("vllm.v1")
_module("vllm.v1.engine")
_module("vllm.v1.engine.exceptions", EngineDeadError=EngineDeadError)
_module("vllm.v1.metrics")
_module("vllm.v1.metrics.ray_wrappers", RayPrometheusStatLogger=object)
