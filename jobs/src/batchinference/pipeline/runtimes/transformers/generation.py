"""Generates text from text, or from images and text, with calls of `generate` for many rows."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.runtimes.answers import Answer, Text, result_of
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.runtimes.text_limits import (
    position_tables,
    positions_of,
    room_for_answer,
)
from batchinference.pipeline.runtimes.transformers.loading import ModelLoader, to_model
from batchinference.pipeline.runtimes.transformers.prompt_inputs import (
    ImagePrompts,
    PromptBatch,
    TextPrompts,
    check_positions,
)
from batchinference.spec.models import TransformersModel
from batchinference.spec.problems import did_you_mean


class GenerationRuntime:
    """Generates a text for each row, or a list of texts if several are requested. With `continues`,
    a last message of the assistant is continued. Without it, the answer is a new message."""

    def __init__(self, model: TransformersModel, device: Device, *, continues: bool = True) -> None:
        loader = ModelLoader(model, device)
        self._spec = model
        self._model = loader.load_model(_auto_class(loader, model.task))
        self._continues_prompt = not self._model.config.is_encoder_decoder
        self._full_text = model.return_full_text
        if self._full_text and not self._continues_prompt:
            raise ModelLoad(
                f"returnFullText: model '{model.source}' has an encoder, and does not continue its "
                "prompt. Remove the field"
            )
        prompts = TextPrompts if model.task == "text-generation" else ImagePrompts
        self._prompts = prompts(loader, model, self._model, continues=continues)
        padding = self._prompts.tokenizer.pad_token_id
        self._sampling = sampling_of(model.sampling, self._model, padding)
        new_tokens = self._sampling.config.max_new_tokens or 0
        if self._sampling.is_default:
            new_tokens = min(new_tokens, room_for_answer(positions_of(self._model) or new_tokens))
        self._prompts.reserve(new_tokens if self._continues_prompt else 0)

    def with_sampling(self, sampling: dict[str, Any], *, chat: bool) -> GenerationRuntime:
        """Return a runtime with the same loaded model and other parameters. Without `chat`, prompts
        are texts. Raises ModelLoad for a parameter that the library does not accept."""
        other = copy.copy(self)
        prompts = other._prompts = copy.copy(self._prompts)
        if isinstance(prompts, TextPrompts):
            prompts.is_chat = chat
        padding = self._prompts.tokenizer.pad_token_id
        other._sampling = sampling_of(sampling, self._model, padding)
        return other

    @property
    def takes_parts(self) -> bool:
        """Whether the chat template accepts messages whose content is a list of parts."""
        return getattr(self._prompts, "takes_parts", True)

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        rows = list(rows_of(inputs))
        results: list[Any] = [None] * len(rows)
        for batch in self._prompts(rows):
            lengths = _lengths_of(batch)
            for row, texts, length in zip(batch.rows, self._generate(batch), lengths, strict=True):
                results[row] = result_of(self._spec, int(row), Answer(texts, length))
        if self._spec.details is not None:
            return results
        text = pa.string()
        return pa.array(results, pa.list_(text) if self._spec.has_several_texts else text)

    def _generate(self, batch: PromptBatch) -> list[list[Text]]:
        """Return the generated texts of each row."""
        check_positions(batch.tensors, self._model.config, self._sampling.config)
        tensors = to_model(batch.tensors, self._model)
        texts: list[list[Text]] = [[] for _ in batch.rows]
        for number in range(self._sampling.calls):
            with computing(), torch.inference_mode():
                output = self._model.generate(
                    **tensors,
                    generation_config=self._sampling.generate_config(),
                    logits_processor=self._sampling.noise(batch.keys, number),
                    tokenizer=self._prompts.tokenizer,
                )
            new = self._new_tokens(output, tensors.get("input_ids"))
            decoded = self._decode(new)
            result_texts = self._full_texts(output, batch) if self._full_text else decoded
            for at, (text, own, tokens) in enumerate(
                zip(result_texts, decoded, new.tolist(), strict=True)
            ):
                result = Text(text, *self._sampling.end_of(tokens, own))
                texts[at * len(texts) // len(decoded)].append(result)
        return texts

    def _decode(self, tokens: torch.Tensor) -> list[str]:
        return list(self._prompts.tokenizer.batch_decode(tokens, skip_special_tokens=True))

    def _full_texts(self, output: torch.Tensor, batch: PromptBatch) -> list[str]:
        """Return each prompt with its new text. The tokens of both are decoded together, because
        some tokenizers drop a space at the beginning of the text that they decode."""
        prompts = self._decode(batch.tensors["input_ids"])
        copies = len(output) // len(prompts)
        return [
            batch.keys[at // copies] + text[len(prompts[at // copies]) :]
            for at, text in enumerate(self._decode(output))
        ]

    def _new_tokens(self, output: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor:
        """Return the output without the prompt, which most models repeat at the beginning."""
        if not self._continues_prompt:
            return output[:, 1:]  # without the start token of the decoder
        if prompt is None:
            return output
        prompt = prompt.repeat_interleave(len(output) // len(prompt), dim=0)
        width = prompt.shape[1]
        repeats_prompt = output.shape[1] >= width and torch.equal(output[:, :width], prompt)
        return output[:, width:] if repeats_prompt else output


def _lengths_of(batch: PromptBatch) -> list[int | None]:
    """Return the number of tokens of each prompt; None if the tensors have no attention mask."""
    mask = batch.tensors.get("attention_mask")
    return [None] * len(batch.rows) if mask is None else mask.sum(dim=1).tolist()


def _auto_class(loader: ModelLoader, task: str) -> Any:
    if task == "image-text-to-text":
        return transformers.AutoModelForImageTextToText
    config = loader.load_processor(transformers.AutoConfig)
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


MAX_NEW_TOKENS, MAX_IN_TABLE = 4096, 256
"""Default maximum numbers of new tokens: in general, and if a model has a table of positions."""
_LENGTHS = ("max_new_tokens", "max_length")
_WITH_PADDING = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
"""Parameters that count the prompt with its padding, and the parameters to use instead."""
_WITHOUT_ROW_SEED = {
    **{"num_beams": 1, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0},
    **{"top_h": None, "prompt_lookup_num_tokens": None},
}
_TOP_K = 50
"""The library's default for `top_k`, used if neither the user nor the model sets it."""


@dataclass(frozen=True)
class Sampling:
    """The parameters of the job, merged with those of the model. With a `seed`, each row has its
    own random numbers, and a call of `generate` makes one text for each prompt."""

    config: Any
    calls: int
    """The number of calls of `generate` for a batch."""
    seed: int | None
    is_default: bool = False
    """Whether neither the user nor the model limits the length of the texts."""

    def end_of(self, tokens: list[int], text: str) -> tuple[int, str]:
        """Return the number of new tokens without padding, and why they end: `stop` or `length`."""
        ends, padding = self.config.eos_token_id, self.config.pad_token_id
        ends = ends if isinstance(ends, list) else [ends]
        stops = self.config.stop_strings or []
        has_stop = any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))
        end = next((at for at, token in enumerate(tokens) if token in ends), None)
        if end is not None:  # after a stop text, this token is padding
            return end if has_stop else end + 1, "stop"
        count = len(tokens)
        while count and tokens[count - 1] == padding:
            count -= 1
        is_short = stops and count < (self.config.max_new_tokens or 0)
        return count, "stop" if has_stop or is_short else "length"

    def noise(self, keys: Sequence[str], number: int) -> LogitsProcessorList:
        """Return processors that add noise to the logits, so that the most likely token is a random
        sample. The list is empty without a seed. `keys` identify the prompts of the rows, and
        `number` is the number of the call."""
        if self.seed is None:
            return LogitsProcessorList()
        seeds = [_seed(self.seed, key, number) for key in keys]
        return LogitsProcessorList([*_warpers(self.config), _RowNoise(seeds)])

    def generate_config(self) -> Any:
        """Return the configuration for `generate`. With a seed, `generate` selects the most likely
        token, because the processors of `noise` do the sampling."""
        if self.seed is None:
            return self.config
        config = copy.deepcopy(self.config)
        for name in ("temperature", "top_k", "top_p", "min_p"):
            setattr(config, name, None)
        config.update(do_sample=False, num_return_sequences=1)
        return config


def sampling_of(requested: dict[str, Any], model: Any, pad_token_id: int | None) -> Sampling:
    """Return the parameters in the files of a model, overridden by the parameters of the user.
    Raises ModelLoad for an unknown, invalid or unsupported parameter."""
    config = copy.deepcopy(model.generation_config)
    if not model.config.is_encoder_decoder:
        _remove_padded_limits(config, requested)
    config.num_return_sequences = None  # only the job says whether a row has several texts
    parameters = {name: value for name, value in requested.items() if name != "seed"}
    try:
        unknown = config.update(**parameters)
    except ValueError as error:
        raise ModelLoad(f"sampling: {error}") from error
    if unknown:
        name = next(iter(unknown))
        hint = did_you_mean(name, vars(config), cutoff=0.5)
        raise ModelLoad(f"sampling: transformers has no parameter '{name}'{hint}")
    is_default = all(getattr(config, name) is None for name in _LENGTHS)
    if is_default:
        config.max_new_tokens = default_max_new_tokens(model)
    if config.pad_token_id is None:
        config.pad_token_id = pad_token_id
    seed = requested.get("seed") if config.do_sample else None
    if seed is not None:
        _check_seed(config)
    calls = 1 if seed is None else config.num_return_sequences or 1
    return Sampling(config, calls, seed, is_default)


def default_max_new_tokens(network: Any) -> int:
    """Return the limit of new tokens if neither the job nor the model sets one. It keeps a batch
    from waiting for a long text. It is lower if prompt and text share a table of positions."""
    if position_tables(network):
        return MAX_IN_TABLE
    return min(MAX_NEW_TOKENS, positions_of(network) or MAX_NEW_TOKENS)


def _remove_padded_limits(config: Any, requested: dict[str, Any]) -> None:
    """Remove from `config` the length limits that count padding. With them, the text of a row would
    depend on the longest row of its batch. Raises ModelLoad if the user sets one of them."""
    for name, instead in _WITH_PADDING.items():
        if name in requested:
            raise ModelLoad(
                f"sampling: '{name}' counts the padding, so that the text of a row would depend on "
                f"its batch. Use '{instead}'"
            )
        setattr(config, name, None)


def _check_seed(config: Any) -> None:
    """Raise ModelLoad for a sampling parameter that is not supported together with a seed."""
    for name, neutral in _WITHOUT_ROW_SEED.items():
        if getattr(config, name, None) not in (None, neutral):
            raise ModelLoad(f"sampling: 'seed' does not work with '{name}'. Set it to {neutral}")


def _warpers(config: Any) -> list[LogitsProcessor]:
    """Return the processors that `generate` would apply before sampling, in the same order."""
    warpers: list[LogitsProcessor] = []
    if config.temperature not in (None, 1.0):
        warpers.append(TemperatureLogitsWarper(config.temperature))
    if (top_k := _TOP_K if config.top_k is None else config.top_k) > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if config.top_p not in (None, 1.0):
        warpers.append(TopPLogitsWarper(config.top_p))
    if config.min_p is not None:
        warpers.append(MinPLogitsWarper(config.min_p))
    return warpers


def _seed(seed: int, key: str, number: int) -> int:
    """Return the seed of a row in a call: the same for equal prompts, in any batch."""
    digest = hashlib.sha256(f"{seed}\0{number}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class _RowNoise(LogitsProcessor):
    """Adds Gumbel noise. The largest value is then a sample from the softmax of the logits.

    By default, `generate` samples all rows from one random stream. The text of a row would then
    depend on the other rows of its batch, which may change. Here each row has its own stream."""

    def __init__(self, seeds: list[int]) -> None:
        self._seeds = seeds
        self._generators: list[torch.Generator] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._generators:
            new = (torch.Generator(scores.device).manual_seed(seed) for seed in self._seeds)
            self._generators = list(new)
        draws = torch.empty_like(scores, dtype=torch.float32)
        for row, generator in zip(draws, self._generators, strict=True):
            row.exponential_(generator=generator)
        return scores - draws.clamp_min(torch.finfo(torch.float32).tiny).log()
