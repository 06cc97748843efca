"""Tokens of texts in flat arrays: one array of numbers for all texts, and where each text begins.

Only the library's fast tokenizers give such arrays. There are no objects for single rows, so that
tokens travel between processes as they are.
"""

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

from batchinference.pipeline.runtimes.model_files import files_without_weights
from batchinference.spec.models import SentenceTransformersModel, TransformersModel

FEATURES = IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
_OPTIONS = {"add_special_tokens", "return_attention_mask", "return_token_type_ids"}
"""The options of a call of a tokenizer that this module implements."""
_SAMPLE = "a"
_FINGERPRINT = 16
_REFUSED = "tokens that replicas cannot use: "
_PROMPTS = "config_sentence_transformers.json"
_NOT_FOR_TOKENS = ("backend", "max_length", "padding", "use_fast")
"""The options of a model that do not change the tokens of its texts before they are cut."""
Prepared = Mapping[str, pa.ChunkedArray]
"""The tokens of the texts of a batch that another process has prepared, as lists."""


@dataclass(frozen=True)
class FlatTokens:
    """The tokens of texts. All features, such as the ids, have one number for each token."""

    features: Mapping[str, np.ndarray]
    offsets: np.ndarray
    """Where the tokens of each text begin, and where those of the last text end (int64)."""

    @classmethod
    def of_lists(cls, lists: Mapping[str, Sequence[Sequence[int]]]) -> FlatTokens:
        """Return the tokens that a tokenizer of the library has returned as lists."""
        offsets = _offsets(lists[IDS])
        return cls({name: _flat(rows, offsets) for name, rows in lists.items()}, offsets)

    @classmethod
    def of_columns(cls, columns: Mapping[str, pa.ChunkedArray]) -> FlatTokens:
        """Return the tokens in lists of Arrow, without a copy if these are not in several parts."""
        lists = {name: column.combine_chunks() for name, column in columns.items()}
        offsets = lists[IDS].offsets.to_numpy().astype(np.int64)
        features = {name: array.flatten().to_numpy() for name, array in lists.items()}
        return cls(features, offsets - offsets[0])

    def columns(self) -> dict[str, pa.ListArray]:
        """Return each feature as lists of Arrow, one for each text."""
        offsets = pa.array(self.offsets.astype(np.int32))
        return {
            name: pa.ListArray.from_arrays(offsets, pa.array(values))
            for name, values in self.features.items()
        }

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text (int64)."""
        return np.diff(self.offsets)

    def cut(self, limit: int, ends: tuple[int, int], *, left: bool) -> FlatTokens:
        """Return the first `limit` tokens of each text, or the last ones. The numbers of tokens in
        `ends`, before and behind a text, are of special tokens, which are kept."""
        before, behind = ends
        place = np.arange(self.offsets[-1] - self.offsets[0])
        place -= np.repeat(self.offsets[:-1] - self.offsets[0], self.lengths)
        excess = np.repeat(self.lengths - limit, self.lengths)
        first = before if left else limit - behind
        kept = (excess <= 0) | (place < first) | (place >= first + excess)
        part = slice(self.offsets[0], self.offsets[-1])
        features = {name: values[part][kept] for name, values in self.features.items()}
        return FlatTokens(features, _ends_of(np.minimum(self.lengths, limit)))

    def with_rows(self, rows: np.ndarray, others: FlatTokens) -> FlatTokens:
        """Return the tokens, where those of some texts are replaced by those of `others`."""
        begin = self.offsets[:-1].copy()
        begin[rows] = others.offsets[:-1] + len(self.features[IDS])
        lengths = self.lengths.copy()
        lengths[rows] = others.lengths
        source = _places(begin, lengths)
        joined = {
            name: np.concatenate([values, others.features[name]])[source]
            for name, values in self.features.items()
        }
        return FlatTokens(joined, _ends_of(lengths))

    def padded(
        self, rows: np.ndarray, width: int, fill: Mapping[str, int], *, left: bool
    ) -> dict[str, np.ndarray]:
        """Return the features of some texts as arrays of rows x `width` (int64). Texts are padded
        behind or to the left with the number in `fill`, or 0. The mask is 1 where tokens are."""
        lengths = self.lengths[rows]
        columns = np.arange(width)
        begin = (width - lengths)[:, None]
        mask = columns >= begin if left else columns < lengths[:, None]
        source = _places(self.offsets[rows], lengths)
        arrays = {MASK: mask.astype(np.int64)}
        for name, values in self.features.items():
            arrays[name] = np.full(mask.shape, fill.get(name, 0), dtype=np.int64)
            arrays[name][mask] = values[source]
        return arrays


def tokens_in(tensors: Mapping[str, Any]) -> int:
    """Return the number of tokens of padded texts. Without a mask, the model reads the padding."""
    mask = tensors.get(MASK)
    return tensors[IDS].numel() if mask is None else int(mask.sum())


@dataclass(frozen=True)
class TokenizerFile:
    """A fast tokenizer that is loaded from its file, without the library. The import of the library
    takes longer than the conversion of many texts. If the library loads another tokenizer for the
    model, replicas `refuse` this one."""

    backend_tokenizer: Tokenizer
    split_special_tokens: bool
    model_input_names: Sequence[str] = FEATURES

    @classmethod
    def of(cls, folder: str) -> TokenizerFile | None:
        """Return the tokenizer in a model's folder; None if it has no such file."""
        file, settings = _file(folder, "tokenizer.json"), _settings(folder, "tokenizer_config.json")
        if file is None:
            return None
        return cls(Tokenizer.from_file(file), bool(settings.get("split_special_tokens")))


class FlatTokenizer:
    """Tokenizes texts, or pairs of texts, into flat arrays. Nothing is cut or padded. A `prefix`
    precedes each text."""

    def __init__(
        self, tokenizer: Any, options: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> None:
        self.tokenizer, self._options, self._prefix = tokenizer, dict(options or {}), prefix
        self._backend = tokenizer.backend_tokenizer

    @classmethod
    def of(
        cls, tokenizer: Any, options: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> FlatTokenizer | None:
        """Return the tokenizer for a tokenizer of the library and the options of its calls; None if
        it is not a fast one, or if an option is not implemented here."""
        plain = isinstance(tokenizer, TokenizerFile) or is_plain(tokenizer)
        if not plain or set(options or ()) - _OPTIONS:
            return None
        return cls(tokenizer, options, prefix)

    @property
    def has_mask(self) -> bool:
        """Return whether a call of the library's tokenizer returns a mask."""
        return self._wants(MASK)

    def __call__(self, *texts: Sequence[str]) -> FlatTokens:
        """Return the tokens of texts. A second list holds the second text of each pair. The types
        of tokens are left out if all are 0."""
        self._reset()
        singles = [self._prefix + text for text in texts[0]] if self._prefix else texts[0]
        rows = singles if len(texts) == 1 else list(zip(*texts, strict=True))
        added = self._adds_special
        encodings = self._backend.encode_batch_fast(rows, add_special_tokens=added)
        ids = [encoding.ids for encoding in encodings]
        offsets = _offsets(ids)
        features = {IDS: _flat(ids, offsets)}
        if len(texts) > 1 or any(self._sample(special=added).type_ids):
            features[TYPES] = _flat((encoding.type_ids for encoding in encodings), offsets)
        return FlatTokens(features, offsets)

    def tokens(self, prepared: Prepared, *texts: Sequence[str]) -> FlatTokens:
        """Return the tokens of texts with the features of the tokenizer. Those in `prepared` are
        used if they are of this tokenizer and none is absent. Otherwise the texts are converted."""
        own = {name for name in prepared if name.startswith(self.fingerprint)}
        refuse(prepared.keys() - own)
        known = {
            name.removeprefix(self.fingerprint): prepared[name]
            for name in own
            if not prepared[name].null_count
        }
        tokens = FlatTokens.of_columns(known) if IDS in known else self(*texts)
        features = {IDS: tokens.features[IDS]}
        if self._wants(TYPES):
            features[TYPES] = tokens.features.get(TYPES, np.zeros_like(features[IDS]))
        return replace(tokens, features=features)

    def prepare(self, *texts: Sequence[str]) -> dict[str, pa.ListArray]:
        """Return the tokens of texts as columns for `tokens`."""
        columns = self(*texts).columns()
        return {self.fingerprint + name: column for name, column in columns.items()}

    def cut(self, tokens: FlatTokens, limit: int) -> FlatTokens | None:
        """Return the tokens of single texts, of which at most `limit` are left on the side that the
        library's tokenizer keeps. None if special tokens are in the middle of a text or leave no
        room, or if the sample has no tokens that show their places."""
        self._reset()
        plain, whole = (self._sample(special=added) for added in (False, self._adds_special))
        size, added = len(plain.ids), len(whole.ids) - len(plain.ids)
        special = whole.special_tokens_mask
        if not size or 0 not in special or added >= limit:
            return None
        before = special.index(0)
        if sum(special) != added or any(special[before : before + size]):
            return None
        left = self.tokenizer.truncation_side == "left"
        return tokens.cut(limit, (before, added - before), left=left)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that differs if another tokenizer may give other tokens."""
        self._reset()
        settings = self.tokenizer.split_special_tokens, self._adds_special, self._prefix
        content = f"{settings!r} {self._backend.to_str()}"
        return hashlib.sha256(content.encode()).hexdigest()[:_FINGERPRINT]

    @property
    def is_refused(self) -> bool:
        """Whether a replica has other tokens than those of `prepare`."""
        from batchinference.pipeline.ray_compat import has_flag

        with suppress(Exception):
            return has_flag(_REFUSED + self.fingerprint)
        return False

    @property
    def _adds_special(self) -> bool:
        return bool(self._options.get("add_special_tokens", True))

    def _wants(self, name: str) -> bool:
        given = self._options.get(f"return_{name}")
        return name in self.tokenizer.model_input_names if given is None else bool(given)

    def _sample(self, *, special: bool) -> Any:
        return self._backend.encode(_SAMPLE, add_special_tokens=special)

    def _reset(self) -> None:
        """Undo what calls of the library's tokenizer have set."""
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = self.tokenizer.split_special_tokens


def pad(
    tokenizer: Any, tokens: FlatTokens, rows: np.ndarray, width: int, *, has_mask: bool
) -> dict[str, np.ndarray]:
    """Return the features of some texts, rows x `width` (int64), padded as by the tokenizer."""
    fill = {
        IDS: tokenizer.pad_token_id,
        TYPES: tokenizer.pad_token_type_id,
        "special_tokens_mask": 1,
    }
    arrays = tokens.padded(rows, width, fill, left=tokenizer.padding_side == "left")
    return arrays if has_mask else {n: array for n, array in arrays.items() if n != MASK}


def is_plain(tokenizer: Any) -> bool:
    """Return whether a tokenizer is a fast one whose calls its class has not changed."""
    from transformers import PreTrainedTokenizerFast

    base, kind = PreTrainedTokenizerFast, type(tokenizer)
    return (
        issubclass(kind, base)
        and kind.__call__ is base.__call__
        and kind._encode_plus is base._encode_plus
    )


def _offsets(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return _ends_of(np.fromiter(map(len, rows), np.int64, len(rows)))


def _ends_of(lengths: np.ndarray) -> np.ndarray:
    """Return 0 and the sum of the lengths up to each one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _places(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places of the tokens of texts that begin there and have these lengths."""
    ends = _ends_of(lengths)
    places: np.ndarray = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], lengths)
    return places


def _flat(rows: Iterable[Sequence[int]], offsets: np.ndarray) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1]))


def refuse(prepared: Iterable[str]) -> None:
    """Make tasks stop using the tokenizers of these columns: a replica cannot use their tokens."""
    for fingerprint in {name[:_FINGERPRINT] for name in prepared}:
        from batchinference.pipeline.ray_compat import put_note  # without a pool, nobody needs Ray

        with suppress(Exception):  # the head of Ray may not answer, which is not about a row
            put_note(_REFUSED + fingerprint, "")


def preparations(model: TransformersModel | SentenceTransformersModel) -> Iterator[FlatTokenizer]:
    """Yield the tokenizers that may give the tokens of a model's texts. The first one is loaded the
    fastest, and the others are needed if it is refused. There are none if the replicas must
    tokenize. The replicas also report what is wrong with a model."""
    for load in (TokenizerFile.of, _of_library):
        with suppress(Exception):  # libraries raise any error
            folder = files_without_weights(model)
            tokenizer = FlatTokenizer.of(load(folder), *_arguments(model, folder))
            yield from [tokenizer] if tokenizer else []


def _of_library(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _arguments(
    model: TransformersModel | SentenceTransformersModel, folder: str
) -> tuple[dict[str, Any], str]:
    """Return the options of the calls of a model's tokenizer, and what precedes each text."""
    if isinstance(model, SentenceTransformersModel):
        return {}, _prompt(model, folder)
    return {name: x for name, x in model.options.items() if name not in _NOT_FOR_TOKENS}, ""


def _prompt(model: SentenceTransformersModel, folder: str) -> str:
    """Return the text that the library adds before each text."""
    if model.prompt is not None:
        return model.prompt
    settings = _settings(folder, _PROMPTS)
    name = model.prompt_name or settings.get("default_prompt_name")
    prompt: str | None = (settings.get("prompts") or {}).get(name)
    return prompt or ""


def _settings(folder: str, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of a model; nothing if it does not exist."""
    file = _file(folder, name)
    settings: dict[str, Any] = json.loads(Path(file).read_text()) if file else {}
    return settings


def _file(folder: str, name: str) -> str | None:
    """Return the path of a file in a model's folder, or of a model of the Hub; None if it does not
    exist."""
    if Path(folder).is_dir():
        path = Path(folder, name)
        return str(path) if path.exists() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return str(hf_hub_download(folder, name))
    except EntryNotFoundError:
        return None
