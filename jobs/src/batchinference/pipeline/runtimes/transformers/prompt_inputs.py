"""Builds the prompt of each row, as text or as chat messages, and its tensors for `generate`."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import transformers
from PIL import Image

from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.row_warnings import warn, warnings_of_row
from batchinference.pipeline.runtimes.prompts import (
    Message,
    Part,
    chat_content_of,
    chat_of,
    check_chat,
    content_of,
    content_parts,
    describes_images,
    template_options,
    with_messages,
    with_repair,
    without_empty_answer,
)
from batchinference.pipeline.runtimes.text_limits import PromptLimit, position_tables
from batchinference.pipeline.runtimes.transformers.loading import (
    ModelLoader,
    check_options,
    pop_loading_options,
    processor_options,
)
from batchinference.pipeline.runtimes.transformers.media_inputs import pillow_images
from batchinference.pipeline.runtimes.transformers.text_inputs import (
    BatchTokenizer,
    match_tokenizer,
)
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.prompts import placeholders
from batchinference.spec.warnings import WarningName

Row = dict[str, Any]
_PROBE = "a text in a part"
_SAMPLE = Image.new("RGB", (1, 1))


def prompt_of(
    model: TransformersModel, row: Row, images: Mapping[str, Any], *, chat: bool
) -> str | list[Message]:
    """Return the prompt of a row: messages if the model has a chat template (`chat`), else text. If
    the job has no `prompt`, `system`, `messages` and images, the input is the prompt. It is then a
    text, which the model continues, or a list of messages, which needs a chat template."""
    if not chat or not (model.prompt or model.images or model.system or model.messages):
        content = chat_content_of(model, row) if chat else content_of(model, row)
        if isinstance(content, str):
            return with_repair(content, row)
    return chat_of(model, row, {n: {"type": "image", "image": i} for n, i in images.items()})


def images_of(model: TransformersModel, row: Row) -> dict[str, Any]:
    """Return the images of a row as Pillow images in RGB, by input."""
    images = pillow_images([row[name] for name in model.images])
    return dict(zip(model.images, images, strict=True))


def order_of_images(model: TransformersModel) -> list[str]:
    """Return the names of images in their order in the prompt. A name may occur twice."""
    in_prompt = [name for name in placeholders(model.prompt or "") if name in model.images]
    return [*(name for name in model.images if name not in in_prompt), *in_prompt]


def split_content(messages: list[Message]) -> list[Message]:
    """Return the messages with their content split into parts, as processors require."""
    return [
        {**turn, "content": [_part(part) for part in content_parts(turn.get("content"))]}
        for turn in messages
    ]


def _part(part: Part) -> Part:
    # the library would fetch an image or video if a column has its address
    if part.get("type") != "text" and not isinstance(part.get("image"), Image.Image):
        raise TypeError(f"messages from a column may only contain text, not '{part.get('type')}'")
    return part


@dataclass(frozen=True)
class PromptBatch:
    """Rows that are computed together: their indexes (int64), and the tensors for `generate`. A key
    identifies the prompt of a row: it is the text or, with images, a digest of text and images."""

    rows: np.ndarray
    tensors: Any
    keys: list[str]


def _grouped(flags: list[bool]) -> Iterator[tuple[bool, np.ndarray]]:
    """Yield each different flag with the indexes (int64) of the rows that have it."""
    for flag in dict.fromkeys(flags):
        yield flag, np.flatnonzero(np.array(flags) == flag)


class TextPrompts:
    """Converts prompts without images to tensors. ChatTemplate explains `continues`."""

    def __init__(
        self, loader: ModelLoader, model: TransformersModel, network: Any, *, continues: bool
    ) -> None:
        side = "right" if network.config.is_encoder_decoder else "left"
        self.tokenizer = loader.load_processor(transformers.AutoTokenizer, padding_side=side)
        match_tokenizer(self.tokenizer, network, model.source)
        self._model = model
        self._template = ChatTemplate(self.tokenizer, model, continues=continues)
        self._template.check(model)
        self.is_chat, self.takes_parts = self._template.exists, self._template.takes_parts
        # a truncated prompt would be a different request
        self._tokens = BatchTokenizer(self.tokenizer, model, network, "fail")
        has_encoder = network.config.is_encoder_decoder
        self._encoder_is_limited = has_encoder and bool(position_tables(network))
        self.limit: PromptLimit | None = None

    def reserve(self, new_tokens: int) -> None:
        """Limit prompts if the job sets `tooLong`. The limit is `options.max_length`, or else
        leaves room for `new_tokens` generated tokens. Raises ModelLoad if no room is left."""
        limit = self._tokens.limit
        if self._model.too_long is None:
            if not self._encoder_is_limited:
                # `check_positions` checks the length of each batch instead
                self._tokens.limit = replace(limit, tokens=None)
            return
        if limit.tokens is None:
            return
        room = self._model.options.get("max_length") or limit.tokens - new_tokens
        if room < 1:
            raise ModelLoad(
                f"sampling.max_new_tokens: {new_tokens} tokens leave no room for a prompt, because "
                f"'{self._model.source}' takes {limit.tokens}. Use a smaller number"
            )
        self._tokens.limit = replace(limit, tokens=room, policy="fail")
        if self._model.too_long != "fail":
            left = self._model.too_long == "truncateLeft"
            self.limit = PromptLimit(self.tokenizer, room, left)

    def __call__(self, rows: list[Row]) -> Iterator[PromptBatch]:
        chats = [isinstance(self._prompt(row), list) for row in rows]
        for chat, group in _grouped(chats):
            texts = [self._text(row, rows[row], special=not chat) for row in group.tolist()]
            # a chat template adds the special tokens itself
            special: dict[str, Any] = {"add_special_tokens": False} if chat else {}
            batches = self._tokens.batches(texts, row_numbers=group.tolist(), **special)
            for numbers, tensors in batches:
                yield PromptBatch(group[numbers], tensors, [texts[number] for number in numbers])

    def _prompt(self, row: Row) -> str | list[Message]:
        return prompt_of(self._model, row, {}, chat=self.is_chat)

    def _text(self, number: int, row: Row, *, special: bool) -> str:
        """Return the prompt of a row as text, and report a warning if it was cut."""
        if self.limit is None:
            return self._template(self._prompt(row))
        values = row if special else with_messages(self._model, row)
        _, text, cut = self.limit.fitted(
            values, lambda part: self._template(self._prompt(part)), special=special
        )
        if cut:
            warn(WarningName.TEXT_CUT, row=number, amount=cut)
        return text


class ImagePrompts:
    """Converts prompts with images to tensors. ChatTemplate explains `continues`."""

    def __init__(
        self, loader: ModelLoader, model: TransformersModel, network: Any, *, continues: bool
    ) -> None:
        self._options = dict(model.options)
        loading = pop_loading_options(self._options)
        self._processor = loader.load_processor(transformers.AutoProcessor, **loading)
        check_options(self._options, processor_options(self._processor))
        self.tokenizer = self._processor.tokenizer
        self.tokenizer.padding_side = "right" if network.config.is_encoder_decoder else "left"
        match_tokenizer(self.tokenizer, network, model.source)
        self._model = model
        self._template = ChatTemplate(self._processor, model, continues=continues)
        self._template.check(model)
        self._order = order_of_images(model)
        # a captioner such as BLIP has no chat template, and needs no text
        self._no_text = describes_images(model) and not self._template.exists

    def reserve(self, new_tokens: int) -> None:
        """Do nothing: prompts with images are not cut."""

    def __call__(self, rows: list[Row]) -> Iterator[PromptBatch]:
        by_name = []
        for number, row in enumerate(rows):
            with warnings_of_row(number):
                by_name.append(images_of(self._model, row))
        images = [[named_images[name] for name in self._order] for named_images in by_name]
        if self._no_text:
            texts = [""] * len(rows)
        else:
            texts = [self._text(*pair) for pair in zip(rows, by_name, strict=True)]
        start = self.tokenizer.bos_token
        starts = [bool(start) and text.startswith(start) for text in texts]
        for has_start, group in _grouped(starts):
            options: dict[str, Any] = {}
            if self._order:
                options["images"] = [images[row] for row in group]
            if not self._no_text:
                options |= {"text": [texts[row] for row in group], "padding": True}
            options |= {**self._options, **({"add_special_tokens": False} if has_start else {})}
            tensors = self._processor(return_tensors="pt", **options)
            yield PromptBatch(group, tensors, [_key(texts[row], images[row]) for row in group])

    def _text(self, row: Row, images: Mapping[str, Any]) -> str:
        prompt = prompt_of(self._model, row, images, chat=self._template.exists)
        return self._template(split_content(prompt) if isinstance(prompt, list) else prompt)


class ChatTemplate:
    """The chat template of a tokenizer or processor, if there is one. The constructor raises
    ModelLoad if a field of the step needs a chat template, and there is none. With `continues`, the
    model continues a last message of the assistant. Without it, the model answers in a new turn."""

    def __init__(self, processor: Any, model: TransformersModel, *, continues: bool = True) -> None:
        self._processor = processor
        self._continues = continues
        self._source = model.source
        self.exists = getattr(processor, "chat_template", None) is not None
        for field in ("system", "messages"):
            if getattr(model, field) and not self.exists:
                raise ModelLoad(f"{field}: {self._missing()}. Put all text into 'prompt'")
        if set(model.images) & set(placeholders(model.prompt or "")) and not self.exists:
            raise ModelLoad(
                f"prompt: {self._missing()}, so `prompt` cannot place images. Write the image "
                "token of the model there, such as <image>"
            )

    def check(self, model: TransformersModel) -> None:
        """Raise ModelLoad if the template exists and does not accept the messages of the job."""
        if not self.exists or not (model.system or model.messages or model.prompt or model.images):
            return
        images = {name: {"type": "image", "image": _SAMPLE} for name in model.images}
        parts = model.task != "text-generation"
        check_chat(
            model,
            model.source,
            lambda messages: self(split_content(messages) if parts else messages),
            images,
        )

    def __call__(self, prompt: str | list[Message]) -> str:
        """Return the text of a prompt. A prompt that is a text is returned unchanged. Raises
        JobFailure if messages have no chat template, and ValueError like `template_options`."""
        if isinstance(prompt, str):
            return prompt
        if not self.exists:
            raise JobFailure(f"a list of messages was given, but {self._missing()}")
        options = {"add_generation_prompt": True}
        if self._continues:
            prompt = without_empty_answer(prompt)
            options = template_options(prompt)
        return str(self._processor.apply_chat_template(prompt, tokenize=False, **options))

    @property
    def takes_parts(self) -> bool:
        """Whether the template accepts messages whose content is a list of parts."""
        with suppress(Exception):
            text = self([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
            return _PROBE in text and "'text'" not in text
        return False

    def _missing(self) -> str:
        return f"model '{self._source}' has no chat template"


def check_positions(tensors: Any, config: Any, sampling: Any) -> None:
    """Raise ValueError if a prompt and its new tokens need more positions than the model has. On a
    GPU, a lookup beyond the last position would end the whole process. Models that compute
    positions instead of looking them up may exceed the limit."""
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    has_rope = any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta"))
    if config.is_encoder_decoder or has_rope or not positions or "attention_mask" not in tensors:
        return
    longest = int(tensors["attention_mask"].sum(dim=1).max())
    new = sampling.max_new_tokens or 0
    if longest + new > positions:
        raise ValueError(
            f"the prompt has {longest} tokens and sampling.max_new_tokens is {new}, but the model "
            f"has {positions} positions for both. Shorten the prompt, or lower "
            "sampling.max_new_tokens"
        )


def _key(text: str, images: list[Any]) -> str:
    digest = hashlib.sha256(text.encode())
    for image in images:
        digest.update(image.tobytes())
    return digest.hexdigest()
