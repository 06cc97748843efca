"""Generates text from text, or from images and text, with calls of `generate` for many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.runtimes.transformers.loading import Source, to_model
from batchinference.pipeline.runtimes.transformers.prompts import (
    ImagePrompts,
    PromptBatch,
    TextPrompts,
    check_room,
)
from batchinference.pipeline.runtimes.transformers.sampling import sampling_of
from batchinference.pipeline.runtimes.transformers.tokens import fit
from batchinference.spec.models import TransformersModel


class GenerationRuntime:
    """Generates a text for each row, or a list of texts if several are requested."""

    def __init__(self, model: TransformersModel, device: Device) -> None:
        source = Source(model, device)
        self._model = source.model(_kind(source, model.task))
        self._continues = not self._model.config.is_encoder_decoder
        self._full_text = model.return_full_text
        if self._full_text and not self._continues:
            raise ModelLoad(
                f"'returnFullText': model '{model.source}' has an encoder, and does not continue "
                "its prompt. Remove the field"
            )
        side = "left" if self._continues else "right"
        prompts = TextPrompts if model.task == "text-generation" else ImagePrompts
        self._prompts = prompts(source, model, side)
        tokenizer = self._prompts.tokenizer
        fit(tokenizer, self._model, model.source)
        self._sampling = sampling_of(model.sampling, self._model, tokenizer.pad_token_id)

    def __call__(self, inputs: dict[str, np.ndarray]) -> pa.Array:
        rows = list(rows_of(inputs))
        texts: list[list[str]] = [[]] * len(rows)
        for asked in self._prompts(rows):
            for row, answers in zip(asked.rows, self._generate(asked), strict=True):
                texts[row] = answers
        if self._sampling.copies > 1:
            return pa.array(texts, pa.list_(pa.string()))
        return pa.array([text for (text,) in texts], pa.string())

    def _generate(self, asked: PromptBatch) -> list[list[str]]:
        """Return the new texts of each row."""
        check_room(asked.tensors, self._model.config, self._sampling.config)
        tensors = to_model(asked.tensors, self._model)
        texts: list[list[str]] = [[] for _ in asked.rows]
        for number in range(self._sampling.passes):
            with torch.inference_mode():
                output = self._model.generate(
                    **tensors,
                    generation_config=self._sampling.generate_config(),
                    logits_processor=self._sampling.noise(asked.keys, number),
                    tokenizer=self._prompts.tokenizer,
                )
            if self._full_text:
                found = self._full_texts(output, asked)
            else:
                found = self._decode(self._new_tokens(output, tensors.get("input_ids")))
            for at, text in enumerate(found):
                texts[at * len(texts) // len(found)].append(text)
        return texts

    def _decode(self, tokens: torch.Tensor) -> list[str]:
        texts: list[str] = self._prompts.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts

    def _full_texts(self, output: torch.Tensor, asked: PromptBatch) -> list[str]:
        """Return the prompts with what was added to them. Both are decoded together, because some
        tokenizers drop the space at the beginning of a text."""
        prompts = self._decode(asked.tensors["input_ids"])
        each = len(output) // len(prompts)
        return [
            asked.keys[at // each] + text[len(prompts[at // each]) :]
            for at, text in enumerate(self._decode(output))
        ]

    def _new_tokens(self, output: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor:
        """Return the output without the prompt, which most models repeat at the beginning."""
        if prompt is None or not self._continues:
            return output
        prompt = prompt.repeat_interleave(len(output) // len(prompt), dim=0)
        width = prompt.shape[1]
        begins = output.shape[1] >= width and torch.equal(output[:, :width], prompt)
        return output[:, width:] if begins else output


def _kind(source: Source, task: str) -> Any:
    if task == "image-text-to-text":
        return transformers.AutoModelForImageTextToText
    if task == "any-to-any":
        return transformers.AutoModelForMultimodalLM
    config = source.processor(transformers.AutoConfig)
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM
