"""Copies results of the user's code, which may use their memory again in its next call."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes, np.str_, np.bytes_})


def own(values: Any) -> Any:
    """Return a copy of values that the user's code may change in its next call, such as an array
    that it uses again for each batch. Values in lists, dicts and object arrays are copied, too."""
    if isinstance(values, np.ndarray):
        return _own_array(values)
    if isinstance(values, list):
        return _own_items(values)
    if isinstance(values, tuple):  # stays one, because the keys of a map are in tuples
        return tuple(_own_items(values))
    if isinstance(values, dict):
        return dict(zip(values, _own_items(values.values()), strict=True))
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _own_arrow(values)
    if isinstance(values, memoryview):
        return bytes(values)
    if hasattr(values, "detach"):  # a tensor of torch
        return _own_tensor(values)
    is_series = hasattr(values, "iloc")  # of pandas
    return values.copy() if is_series or isinstance(values, bytearray) else values


def _own_items(values: Iterable[Any]) -> list[Any]:
    items = list(values)
    if _IMMUTABLE.issuperset(map(type, items)):  # much faster than a call for each of them
        return items
    return [own(item) for item in items]


def _own_tensor(tensor: Any) -> Any:
    """Return a tensor on any device as a NumPy array or number. bfloat16 becomes float32."""
    tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    return tensor.detach().to("cpu", copy=True).numpy()[()]


def _own_array(values: np.ndarray) -> np.ndarray:
    copied = copy(values)
    if values.dtype == object and values.ndim:
        items = np.asarray(copied)  # not a subclass, which might convert the items
        for index, item in zip(np.ndindex(items.shape), _own_items(items.flat), strict=True):
            items[index] = item
    return copied


def _own_arrow(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a copy of Arrow data, which may share its memory with a NumPy array."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array(map(_own_arrow, values.chunks), values.type)
    return pa.concat_arrays([values, values[:0]])  # a single array would not be copied
