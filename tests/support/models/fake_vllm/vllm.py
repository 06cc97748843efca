"""The parts of vLLM that its runtime uses, with an engine that reverses its prompt.

vLLM needs a GPU, unless it was built for CPUs. This module tests everything between a job's file
and vLLM, not vLLM itself.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

import ray
from huggingface_hub import hf_hub_download
from PIL import Image
from tokenizers import Tokenizer

MOST_TOKENS = 4096


class AsyncEngineArgs(SimpleNamespace):
    revision = None
    gpu_memory_utilization = 0.9


class SamplingParams(SimpleNamespace):
    """Any parameters."""

    max_tokens: int | None = 16
    n = 1

    structured_outputs: Any = None

    def clone(self) -> SamplingParams:
        return copy.copy(self)

    def verify(self, *engine: Any) -> None:
        """Accept all parameters."""


class PoolingParams(SimpleNamespace):
    """Any parameters."""

    task = "embed"


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str


@dataclass
class Completion:
    """A text, whose tokens are its letters. In the place of each, `!` would be more likely."""

    text: str
    finish_reason: str
    index: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [*map(ord, self.text)]

    @property
    def logprobs(self) -> list[dict[int, Logprob]]:
        better = Logprob(-0.25, 1, "!")
        return [
            {token: Logprob(-1.5, 3, chr(token)), 33: better, 63: Logprob(-0.5, 2, "?")}
            for token in self.token_ids
        ]


class VLLMValidationError(Exception):
    """A request that vLLM refuses."""


LAST_WORDS: list[bytes] = []
"""What the processes of the engine write before it dies."""


def write_last_words() -> None:
    for line in LAST_WORDS:
        os.write(2, line)


class EngineDeadError(Exception):
    """The engine's process has died."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue")
        write_last_words()


class Renderer:
    """Tokenizes prompts."""

    default_cmpl_tok_params = SimpleNamespace(with_kwargs=dict)

    def __init__(self, model: str, revision: str | None) -> None:
        # `transformers` would import PyTorch, which takes most of the start of a worker
        file = Path(model, "tokenizer.json")
        if not file.exists():
            file = Path(hf_hub_download(model, file.name, revision=revision))
        self.tokenizer = Tokenizer.from_file(str(file))

    def render_cmpl(self, prompts: list[Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the tokens of prompts."""
        return [{**one, "prompt_token_ids": self._tokens(one, options)} for one in prompts]

    def _tokens(self, prompt: Any, options: dict[str, Any]) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(prompt["prompt"], **options).ids
        if len(tokens) > MOST_TOKENS:
            raise VLLMValidationError(
                f"This model's maximum context length is {MOST_TOKENS} tokens. However, you "
                f"requested 0 output tokens and your prompt contains at least {len(tokens)} input "
                "tokens"
            )
        return tokens


@dataclass
class AsyncLLMEngine:
    errored = False
    arguments: AsyncEngineArgs
    model_config: Any = None
    renderer: Renderer = field(init=False)
    requests: dict[str, Any] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Texts that are slow wait for it."""
    vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        **dict.fromkeys(("model_config", "speculative_config", "structured_outputs_config")),
    )

    def get_tokenizer(self) -> Any:
        return self.renderer.tokenizer

    def __post_init__(self) -> None:
        if (share := self.arguments.gpu_memory_utilization) > 1:
            write_last_words()
            raise ValueError(f"GPU memory utilization must be less than 1.0. Got {share}.")
        self.renderer = Renderer(self.arguments.model, self.arguments.revision)

    @classmethod
    def from_engine_args(cls, arguments: AsyncEngineArgs, usage_context: str) -> AsyncLLMEngine:
        assert usage_context == "for batches"
        return cls(arguments)

    async def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: Any,
        *,
        lora_request: Any,
        tokenization_kwargs: dict[str, Any],
    ) -> Queue:
        text = self._checked(prompt, tokenization_kwargs)
        if isinstance(params, PoolingParams):
            return Queue(_vector(text))
        queue = Queue(self._generated(text, prompt, params, lora_request))
        self.requests[request_id] = queue, [*text]
        return queue

    async def _generated(self, text: str, prompt: Any, params: Any, adapter: Any) -> Any:
        folder = Path(self.arguments.model).parent
        while text == "hold" and not (folder / "release").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if text.startswith("slow") and not (folder / "release").exists():
            async with self.turn:
                await asyncio.sleep(0.2)
        if (folder / "record").exists():
            (folder / f"computed-{uuid4().hex}").write_text(text)
        generated = text[::-1][: params.max_tokens]
        reason = "stop" if len(generated) == len(text) else "length"
        if adapter is not None:
            generated += f" by {adapter.lora_path}"
        if images := prompt.get("multi_modal_data"):
            generated += f" of {[tuple(map(int, size)) for size in images['image']]}"
        if ray.is_initialized() and (group := ray.util.get_current_placement_group()):
            generated += f" on {len(group.bundle_specs)} bundles"
        texts = [Completion(generated, reason)]
        texts += [Completion(f"{generated} {index}", reason, index) for index in range(1, params.n)]
        return SimpleNamespace(
            outputs=texts[::-1], prompt_token_ids=[*text], num_cached_tokens=len(text) // 2
        )

    async def abort(self, request_id: str) -> None:
        """End a request with what it has generated so far."""
        queue, prompt = self.requests[request_id]
        queue._task.cancel()
        queue.put(SimpleNamespace(outputs=[Completion("so", "abort")], prompt_token_ids=prompt))

    def shutdown(self) -> None:
        """Do nothing."""

    def _checked(self, prompt: Any, options: dict[str, Any]) -> str:
        """Return the text of a prompt after the tokenizer. Some texts make the engine fail."""
        if "prompt_token_ids" not in prompt:
            (prompt,) = self.renderer.render_cmpl([prompt], options)
        text: str = self.renderer.tokenizer.decode(
            prompt["prompt_token_ids"], skip_special_tokens=False
        )
        if "refuse" in text or text == "fail":
            raise VLLMValidationError("The decoder prompt is too odd")
        if "is lost" in text or text == "die":
            raise EngineDeadError
        if "no memory" in text:
            raise MemoryError("no memory left")
        return text


class Queue:
    """Gets an output, which is computed in the meantime."""

    def __init__(self, output: Coroutine[Any, Any, Any]) -> None:
        self._only = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._computed(output))

    async def _computed(self, output: Coroutine[Any, Any, Any]) -> None:
        self.put(await output)

    def put(self, output: Any) -> None:
        if isinstance(output, Exception):
            self._only.set_exception(output)
        else:
            self._only.set_result(output)

    async def get(self) -> Any:
        return await self._only


async def _vector(text: str) -> Any:
    import torch

    vector = torch.tensor([float(len(text)), 0.5], dtype=torch.bfloat16)
    prompt = {"prompt_token_ids": [*text], "num_cached_tokens": 0}
    return SimpleNamespace(outputs=SimpleNamespace(data=vector), **prompt)


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


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)


_module("vllm.entrypoints")
_module("vllm.entrypoints.chat_utils", parse_chat_messages_async=parse_chat_messages_async)
_module("vllm.lora")
_module("vllm.lora.request", LoRARequest=LoRARequest)
_module("vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: False))
_module(
    "vllm.sampling_params",
    RequestOutputKind=SimpleNamespace(FINAL_ONLY=2),
    StructuredOutputsParams=SimpleNamespace,
)
_module("vllm.usage")
_module("vllm.usage.usage_lib", UsageContext=SimpleNamespace(LLM_CLASS="for batches"))
_module("vllm.v1")
_module("vllm.v1.engine")
_module("vllm.v1.engine.exceptions", EngineDeadError=EngineDeadError)
