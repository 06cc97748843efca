"""Tokenizes texts into flat arrays. One array has the tokens of all texts, and another array has
the offsets at which the texts begin. Only the library's fast tokenizers can do so.

Flat arrays pass between processes without a conversion, because they hold no Python objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from batchinference.pipeline.arrow import one_array
from batchinference.pipeline.ray_on_first_use import ray_compat
from batchinference.pipeline.runtimes.model_files import files_without_weights, library_tokenizer
from batchinference.spec.models import SentenceTransformersModel, TransformersModel

FEATURES = IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
_OPTIONS = {"add_special_tokens", "return_attention_mask", "return_token_type_ids"}
"""The options of a tokenizer call that this module implements."""
_SAMPLE = "a"
_FINGERPRINT_LENGTH = 16
_REFUSED = "tokens that replicas cannot use: "
_PROMPTS = "config_sentence_transformers.json"
_NOT_FOR_TOKENS = ("backend", "max_length", "padding", "use_fast")
"""Options of a model that do not change the tokens of a text, except by cutting and padding."""
Prepared = Mapping[str, pa.ChunkedArray]
"""The tokens of a batch that another process has prepared. Each feature is a column of lists. The
name of the column is the tokenizer's fingerprint, followed by the name of the feature."""


@dataclass(frozen=True)
class FlatTokens:
    """The tokens of texts. Each feature, such as the ids, has one number for each token."""

    features: Mapping[str, np.ndarray]
    offsets: np.ndarray
    """The index of the first token of each text, and the end of the last text (int64)."""

    @classmethod
    def from_lists(cls, lists: Mapping[str, Sequence[Sequence[int]]]) -> FlatTokens:
        """Return the tokens that the library's tokenizer has returned as lists."""
        offsets = _offsets_of_lists(lists[IDS])
        return cls({name: _flat(rows, offsets) for name, rows in lists.items()}, offsets)

    @classmethod
    def from_columns(cls, columns: Mapping[str, pa.ChunkedArray]) -> FlatTokens:
        """Return the tokens in columns of lists. Columns with one chunk are not copied."""
        lists = {name: one_array(column) for name, column in columns.items()}
        offsets = lists[IDS].offsets.to_numpy().astype(np.int64)
        features = {name: array.flatten().to_numpy() for name, array in lists.items()}
        return cls(features, offsets - offsets[0])

    def to_columns(self) -> dict[str, pa.ListArray]:
        """Return each feature as a column with one list for each text."""
        offsets = pa.array(self.offsets.astype(np.int32))
        return {
            name: pa.ListArray.from_arrays(offsets, pa.array(values))
            for name, values in self.features.items()
        }

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text (int64)."""
        return np.diff(self.offsets)

    def cut(self, limit: int, special: tuple[int, int], *, left: bool) -> FlatTokens:
        """Return the tokens with each text cut to `limit` tokens: at its end, or at its beginning
        if `left`. The special tokens remain: `special` is their number before and after a text."""
        before, behind = special
        position = np.arange(self.offsets[-1] - self.offsets[0])
        position -= np.repeat(self.offsets[:-1] - self.offsets[0], self.lengths)
        excess = np.repeat(self.lengths - limit, self.lengths)
        first = before if left else limit - behind
        mask = (excess <= 0) | (position < first) | (position >= first + excess)
        part = slice(self.offsets[0], self.offsets[-1])
        features = {name: values[part][mask] for name, values in self.features.items()}
        return FlatTokens(features, _offsets_of(np.minimum(self.lengths, limit)))

    def with_rows(self, rows: np.ndarray, others: FlatTokens) -> FlatTokens:
        """Return a copy in which the tokens of `others` replace those of the texts `rows`."""
        begin = self.offsets[:-1].copy()
        begin[rows] = others.offsets[:-1] + len(self.features[IDS])
        lengths = self.lengths.copy()
        lengths[rows] = others.lengths
        source = _indexes_of_tokens(begin, lengths)
        joined = {
            name: np.concatenate([values, others.features[name]])[source]
            for name, values in self.features.items()
        }
        return FlatTokens(joined, _offsets_of(lengths))

    def padded(
        self, rows: np.ndarray, width: int, fill: Mapping[str, int], *, left: bool
    ) -> dict[str, np.ndarray]:
        """Return the features of the texts `rows`, and a mask: arrays of rows x `width` (int64).
        Padding follows a text, or precedes it if `left`. `fill` has the padding values that are not
        0."""
        lengths = self.lengths[rows]
        columns = np.arange(width)
        begin = (width - lengths)[:, None]
        mask = columns >= begin if left else columns < lengths[:, None]
        source = _indexes_of_tokens(self.offsets[rows], lengths)
        arrays = {MASK: mask.astype(np.int64)}
        for name, values in self.features.items():
            arrays[name] = np.full(mask.shape, fill.get(name, 0), dtype=np.int64)
            arrays[name][mask] = values[source]
        return arrays


def tokens_in(tensors: Mapping[str, Any]) -> int:
    """Return the number of tokens of padded texts. Without a mask, padding is counted, too."""
    mask = tensors.get(MASK)
    return tensors[IDS].numel() if mask is None else int(mask.sum())


@dataclass(frozen=True)
class TokenizerFile:
    """A fast tokenizer, loaded from its file without the transformers library. The import of the
    library takes longer than tokenizing many texts. If the library would load another tokenizer for
    the model, replicas `refuse` the tokens of this tokenizer."""

    backend_tokenizer: Tokenizer
    split_special_tokens: bool
    model_input_names: Sequence[str] = FEATURES

    @classmethod
    def of(cls, folder: str) -> TokenizerFile | None:
        """Return the tokenizer of a model; None if there is no tokenizer.json."""
        file, settings = _file(folder, "tokenizer.json"), _settings(folder, "tokenizer_config.json")
        if file is None:
            return None
        return cls(Tokenizer.from_file(file), bool(settings.get("split_special_tokens")))


class FlatTokenizer:
    """Tokenizes texts, each with a `prefix`, or pairs of texts. A call cuts and pads nothing."""

    def __init__(
        self, tokenizer: Any, options: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> None:
        self.tokenizer, self._options, self._prefix = tokenizer, dict(options or {}), prefix
        self._backend = tokenizer.backend_tokenizer

    @classmethod
    def of(
        cls, tokenizer: Any, options: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> FlatTokenizer | None:
        """Return a flat tokenizer that works like calls of `tokenizer` with `options`. Return None
        if `tokenizer` is not a fast one, or if an option is not implemented here."""
        plain = isinstance(tokenizer, TokenizerFile) or is_plain(tokenizer)
        if not plain or set(options or ()) - _OPTIONS:
            return None
        return cls(tokenizer, options, prefix)

    @property
    def has_mask(self) -> bool:
        """Whether a call of the library's tokenizer returns a mask."""
        return self._wants(MASK)

    def __call__(self, *texts: Sequence[str]) -> FlatTokens:
        """Return the tokens of texts. A second list holds the second text of each pair. Token types
        of single texts are left out if they are all 0 for a sample text."""
        self._reset()
        singles = [self._prefix + text for text in texts[0]] if self._prefix else texts[0]
        rows = singles if len(texts) == 1 else list(zip(*texts, strict=True))
        added = self._adds_special
        encodings = self._backend.encode_batch_fast(rows, add_special_tokens=added)
        ids = [encoding.ids for encoding in encodings]
        offsets = _offsets_of_lists(ids)
        features = {IDS: _flat(ids, offsets)}
        if len(texts) > 1 or any(self._sample(special=added).type_ids):
            features[TYPES] = _flat((encoding.type_ids for encoding in encodings), offsets)
        return FlatTokens(features, offsets)

    def tokens(self, prepared: Prepared, *texts: Sequence[str]) -> FlatTokens:
        """Return the tokens of texts: ids, and the types if a call of the library's tokenizer
        returns them. If an equal tokenizer has prepared all texts, return the tokens in `prepared`.
        Tokens of other tokenizers are refused."""
        own = {name for name in prepared if name.startswith(self.fingerprint)}
        refuse(prepared.keys() - own)
        known = {
            name.removeprefix(self.fingerprint): prepared[name]
            for name in own
            if not prepared[name].null_count
        }
        tokens = FlatTokens.from_columns(known) if IDS in known else self(*texts)
        features = {IDS: tokens.features[IDS]}
        if self._wants(TYPES):
            features[TYPES] = tokens.features.get(TYPES, np.zeros_like(features[IDS]))
        return replace(tokens, features=features)

    def prepare(self, *texts: Sequence[str]) -> dict[str, pa.ListArray]:
        """Return the tokens of texts as columns, which are the argument `prepared` of `tokens`."""
        columns = self(*texts).to_columns()
        return {self.fingerprint + name: column for name, column in columns.items()}

    def cut(self, tokens: FlatTokens, limit: int) -> FlatTokens | None:
        """Return the tokens of single texts, cut to `limit` on the side on which the library cuts.
        Return None if the special tokens leave no room for a text. Also return None if a sample
        text does not show how many special tokens are before and after a text."""
        self._reset()
        plain, full = (self._sample(special=added) for added in (False, self._adds_special))
        size, added = len(plain.ids), len(full.ids) - len(plain.ids)
        special = full.special_tokens_mask
        if not size or 0 not in special or added >= limit:
            return None
        before = special.index(0)
        if sum(special) != added or any(special[before : before + size]):
            return None
        left = self.tokenizer.truncation_side == "left"
        return tokens.cut(limit, (before, added - before), left=left)

    @cached_property
    def fingerprint(self) -> str:
        """A hash. Tokenizers with the same hash return the same tokens."""
        self._reset()
        settings = self.tokenizer.split_special_tokens, self._adds_special, self._prefix
        content = f"{settings!r} {self._backend.to_str()}"
        return hashlib.sha256(content.encode()).hexdigest()[:_FINGERPRINT_LENGTH]

    @property
    def is_refused(self) -> bool:
        """Whether a replica has refused the tokens of this tokenizer."""
        with suppress(Exception):
            return bool(ray_compat().has_flag(_REFUSED + self.fingerprint))
        return False

    @property
    def _adds_special(self) -> bool:
        return bool(self._options.get("add_special_tokens", True))

    def _wants(self, name: str) -> bool:
        option = self._options.get(f"return_{name}")
        return name in self.tokenizer.model_input_names if option is None else bool(option)

    def _sample(self, *, special: bool) -> Any:
        return self._backend.encode(_SAMPLE, add_special_tokens=special)

    def _reset(self) -> None:
        """Undo the settings that calls of the library's tokenizer leave behind."""
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = self.tokenizer.split_special_tokens


def pad(
    tokenizer: Any, tokens: FlatTokens, rows: np.ndarray, width: int, *, has_mask: bool
) -> dict[str, np.ndarray]:
    """Return `FlatTokens.padded` (rows x `width`, int64) with the padding tokens of `tokenizer`, on
    its padding side. The mask is left out if `has_mask` is False."""
    fill = {
        IDS: tokenizer.pad_token_id,
        TYPES: tokenizer.pad_token_type_id,
        "special_tokens_mask": 1,
    }
    arrays = tokens.padded(rows, width, fill, left=tokenizer.padding_side == "left")
    return arrays if has_mask else {n: array for n, array in arrays.items() if n != MASK}


def is_plain(tokenizer: Any) -> bool:
    """Return whether a tokenizer is a fast one, and its class does not override its calls."""
    from transformers import PreTrainedTokenizerFast

    base, kind = PreTrainedTokenizerFast, type(tokenizer)
    return (
        issubclass(kind, base)
        and kind.__call__ is base.__call__
        and kind._encode_plus is base._encode_plus
    )


def _offsets_of_lists(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return _offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))


def _offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the offsets of texts with these lengths: 0, and the sum up to the end of each text."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _indexes_of_tokens(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indexes of all tokens of texts that begin at `begin` and have these lengths."""
    offsets = _offsets_of(lengths)
    return np.asarray(np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], lengths))


def _flat(rows: Iterable[Sequence[int]], offsets: np.ndarray) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1]))


def refuse(prepared: Iterable[str]) -> None:
    """Make tasks stop preparing these columns, because this replica tokenizes differently."""
    for fingerprint in {name[:_FINGERPRINT_LENGTH] for name in prepared}:
        with suppress(Exception):  # the row must not fail if the head of Ray does not answer
            ray_compat().set_flag(_REFUSED + fingerprint)


def preparing_tokenizers(
    model: TransformersModel | SentenceTransformersModel,
) -> Iterator[FlatTokenizer]:
    """Yield the tokenizers that tasks may use to prepare the texts of a model. The first one loads
    faster. The second is needed if replicas refuse the first. Yield nothing if only replicas can
    tokenize, or if no tokenizer can be loaded: then the replicas report the reason."""
    for load in (TokenizerFile.of, library_tokenizer):
        with suppress(Exception):  # libraries raise any error
            folder = files_without_weights(model)
            tokenizer = FlatTokenizer.of(load(folder), *_arguments(model, folder))
            yield from [tokenizer] if tokenizer else []


def _arguments(
    model: TransformersModel | SentenceTransformersModel, folder: str
) -> tuple[dict[str, Any], str]:
    """Return the options of the calls of a model's tokenizer, and the prefix of each text."""
    if isinstance(model, SentenceTransformersModel):
        return {}, _prompt(model, folder)
    return {name: x for name, x in model.options.items() if name not in _NOT_FOR_TOKENS}, ""


def _prompt(model: SentenceTransformersModel, folder: str) -> str:
    """Return the text that the library adds before each text."""
    if model.prompt is not None:
        return model.prompt
    settings = _settings(folder, _PROMPTS)
    name = model.prompt_name or settings.get("default_prompt_name")
    return str((settings.get("prompts") or {}).get(name) or "")


def _settings(folder: str, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of a model; an empty dict if it does not exist."""
    file = _file(folder, name)
    return dict(json.loads(Path(file).read_text())) if file else {}


def _file(folder: str, name: str) -> str | None:
    """Return the local path of a file of a model. `folder` may also be a model id of the Hub.
    Return None if the file does not exist."""
    if Path(folder).is_dir():
        path = Path(folder, name)
        return str(path) if path.exists() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return str(hf_hub_download(folder, name))
    except EntryNotFoundError:
        return None
