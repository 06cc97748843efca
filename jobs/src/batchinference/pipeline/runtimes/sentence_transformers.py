"""Embeds texts and images with the sentence-transformers library."""

from typing import Any, Literal

import numpy as np
import torch
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.runtimes.device import Device, torch_device
from batchinference.pipeline.runtimes.flat_tokens import (
    FEATURES,
    IDS,
    FlatTokenizer,
    FlatTokens,
    Prepared,
    pad,
    refuse,
    tokens_in,
)
from batchinference.pipeline.runtimes.model_files import resolve
from batchinference.pipeline.runtimes.model_io import check_image
from batchinference.pipeline.runtimes.text_limits import (
    NO_LIMIT,
    TextLimit,
    max_tokens,
    position_tables,
    set_padding_token,
    set_text_limit,
)
from batchinference.spec.models import SentenceTransformersModel
from batchinference.spec.warnings import WarningName

_SAMPLE_WORDS = 1000
"""Number of words of a long sample text, if the model has no limit."""
_MAX_WORDS = 1_000_000
"""The library's default limit for models that divide texts into words. No text is so long."""


class SentenceTransformersRuntime:
    def __init__(self, model: SentenceTransformersModel, device: Device) -> None:
        transformers.logging.disable_progress_bar()
        self._spec = model
        self._kind: Literal["text", "image"] = "text" if "text" in model.inputs else "image"
        self._model = SentenceTransformer(
            resolve(model.source, model.revision, model.storage),
            device=str(torch_device(device)),
            revision=model.revision,
            truncate_dim=model.truncate_dim,
            model_kwargs={"dtype": getattr(torch, model.dtype)} if model.dtype else None,
        )
        if not self._model.supports(self._kind):
            takes = ", ".join(map(str, self._model.modalities))
            raise ModelLoad(f"inputs: '{model.source}' takes {takes}, not {self._kind}")
        if model.prompt_name is not None and model.prompt_name not in self._model.prompts:
            prompts = ", ".join(self._model.prompts) or "none"
            raise ModelLoad(
                f"promptName: '{model.source}' has no prompt '{model.prompt_name}', only {prompts}"
            )

        self._model.eval()
        self._prompt = _prompt(model, self._model)
        if model.too_long == "truncateLeft" and self._prompt:
            raise ModelLoad("tooLong: truncateLeft would cut the prompt. Use truncate or windows")
        self._limit = _limit(model, self._model) if self._kind == "text" else None
        self._flat, self._settings = self._flat_tokenizer()
        if self._flat is None and self._limit is not None:
            self._model[0].register_forward_pre_hook(_count_tokens)

    def __call__(
        self, inputs: dict[str, np.ndarray], prepared: Prepared | None = None
    ) -> np.ndarray:
        """Return embeddings (rows x width, float32). `prepared` may have the tokens of texts."""
        (values,) = inputs.values()
        prepare = self._text if self._kind == "text" else _image
        rows: list[Any] = [prepare(value) for value in values]
        if self._flat is not None and self._limit is not None:
            tokens = self._flat.tokens(prepared or {}, rows)
            tokens = self._cut(self._flat, tokens, self._limit)
            count_tokens(read=int(tokens.lengths.sum()))
            return self._computed(self._flat, tokens)
        refuse(prepared or {})
        with computing():  # also for tokenizing, because threads cannot share a tokenizer
            return self._embeddings(values, rows)

    def _embeddings(self, values: np.ndarray, rows: list[Any]) -> np.ndarray:
        if self._limit is None:
            return self._embedded(rows, len(rows))
        if self._limit.divides:
            return self._in_windows(values.tolist(), self._limit)
        self._limit.warn_of_cuts(values.tolist(), self._prompt)
        return self._embedded(rows, len(rows))

    def _in_windows(self, texts: list[str], limit: TextLimit) -> np.ndarray:
        special = limit.tokenizer.num_special_tokens_to_add(pair=False)
        reserved = special + (limit.length(self._prompt) if self._prompt else 0)
        windows = limit.windows(texts, [reserved] * len(texts))
        rows = [self._text(text) for text in windows.texts]
        means = windows.averages(self._embedded(rows, len(texts)))
        if not (self._spec.normalize or isinstance(self._model[-1], Normalize)):
            return means
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return np.asarray(means / np.maximum(lengths, np.finfo(np.float32).tiny))

    def _embedded(self, rows: list[Any], at_once: int) -> np.ndarray:
        embeddings = self._model.encode(
            rows,
            batch_size=at_once,
            prompt=self._spec.prompt,
            prompt_name=self._spec.prompt_name,
            normalize_embeddings=bool(self._spec.normalize),
            show_progress_bar=False,
        )
        return np.asarray(embeddings, dtype=np.float32)

    def _flat_tokenizer(self) -> tuple[FlatTokenizer | None, dict[str, Any]]:
        """Return a FlatTokenizer for the texts, and the arguments that the library passes to the
        model with the tokens. The tokenizer is None for windows and for models of images. It is
        also None if the library tokenizes sample texts differently."""
        limit, prompt = self._limit, self._prompt
        if limit is None or limit.divides or self._model.modalities != ["text"]:
            return None, {}
        samples = ["a", "a b c", "a " * (limit.tokens or _SAMPLE_WORDS)]
        flat = FlatTokenizer.of(limit.tokenizer, prefix=prompt)
        cut = flat.cut(flat.tokens({}, samples), limit.tokens or NO_LIMIT) if flat else None
        if flat is None or cut is None:
            return None, {}
        expected = self._model.preprocess(samples, prompt=prompt or None)
        settings = {name: expected.pop(name) for name in list(expected) if name not in FEATURES}
        padded = _padded(flat, cut)
        same = padded.keys() == expected.keys() and all(
            torch.equal(padded[name], expected[name]) for name in padded
        )
        return (flat, settings) if same else (None, {})

    def _cut(self, flat: FlatTokenizer, tokens: FlatTokens, limit: TextLimit) -> FlatTokens:
        """Return the tokens of the texts. Cut texts that are too long, and report a warning for
        each of them. Raises TextTooLong for a text that must not be cut."""
        long = limit.find_too_long(tokens.lengths.tolist())
        cut = flat.cut(tokens, limit.tokens) if long and limit.tokens else None
        if cut is None:
            return tokens
        for row in long:
            warn(WarningName.TEXT_CUT, row=row, amount=int((tokens.lengths - cut.lengths)[row]))
        return cut

    def _computed(self, flat: FlatTokenizer, tokens: FlatTokens) -> np.ndarray:
        """Return the embeddings of texts (rows x width, float32), like the library's `encode`."""
        features = {name: x.to(self._model.device) for name, x in _padded(flat, tokens).items()}
        with computing(), torch.inference_mode():
            vectors = self._model({**features, **self._settings})["sentence_embedding"]
            vectors = vectors[..., : self._model.truncate_dim]
            if self._spec.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            return np.asarray(vectors.float().cpu().numpy())

    def _text(self, value: Any) -> str | dict[str, str]:
        if not isinstance(value, str):
            raise TypeError(f"expected text, got {type(value).__name__}")
        # a multimodal model would download a text that looks like an image URL; a dict prevents it
        return value if self._model.modalities == ["text"] else {"text": value}


def _count_tokens(_module: Any, inputs: tuple[Any, ...]) -> None:
    """Report the tokens that the library's tokenizer gives to the model. This is a PyTorch hook."""
    if IDS in inputs[0]:
        count_tokens(read=tokens_in(inputs[0]))


def _padded(flat: FlatTokenizer, tokens: FlatTokens) -> dict[str, torch.Tensor]:
    """Return the features of texts, padded to the longest one."""
    rows, width = np.arange(len(tokens.lengths)), int(tokens.lengths.max())
    arrays = pad(flat.tokenizer, tokens, rows, width, has_mask=flat.has_mask)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _image(value: Any) -> Image.Image:
    check_image(value)
    return Image.fromarray(value)


def _prompt(model: SentenceTransformersModel, loaded: Any) -> str:
    """Return the text that the library adds before each text."""
    name = model.prompt_name or loaded.default_prompt_name
    return str(model.prompt or loaded.prompts.get(name) or "")


def _limit(model: SentenceTransformersModel, loaded: Any) -> TextLimit | None:
    """Return the limit of the texts of a model, and set it in the library. Return None if the model
    has no tokenizer of the transformers library. Raises ModelLoad if the library would cut texts
    without notice, or if `tooLong` cannot be applied."""
    reader = loaded[0]
    if isinstance(reader, Router):
        raise ModelLoad(f"source: '{model.source}' has routes, whose limits are not checked")
    network, tokenizer = getattr(reader, "auto_model", None), getattr(reader, "tokenizer", None)
    longest = getattr(reader, "max_seq_length", None)
    if network is None or not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        if longest is not None and longest < _MAX_WORDS:
            raise ModelLoad(
                f"source: '{model.source}' cuts texts after {longest} tokens, and its tokenizer "
                "does not say so. Use a model with a tokenizer of the transformers library"
            )
        if model.too_long is None:
            return None
        raise ModelLoad(
            f"tooLong: '{model.source}' has no tokenizer with a limit. Remove the field"
        )
    set_padding_token(tokenizer)
    if position_tables(network):  # padding before a text would move the positions of its tokens
        tokenizer.padding_side = "right"
    limits = [longest, max_tokens(tokenizer, network)]
    tokens = min((limit for limit in limits if limit and limit < NO_LIMIT), default=None)
    if tokens is not None:
        reader.max_seq_length = tokens
    return set_text_limit(tokenizer, model, tokens)
