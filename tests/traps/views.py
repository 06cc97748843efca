"""Turns rows of any tool into values that can be compared."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from traps.case import Row


def name(row: Row) -> str:
    """Return the name of the file of a row."""
    return PurePosixPath(str(row["path"])).name


def named(row: Row) -> Row:
    return {**row, "path": name(row)}


def image(row: Row) -> Row:
    """Return the name, shape, first and last pixel of a picture."""
    return {"path": name(row), **corners(row["image"])}


def corners(value: Any) -> Row:
    array = np.asarray(value)
    first, last = array[0, 0], array[-1, -1]
    return {"shape": list(array.shape), "first": first.tolist(), "last": last.tolist()}


def sound(row: Row) -> Row:
    """Return the name, sampling rate, channels, seconds and highest value of a sound."""
    samples = np.atleast_2d(np.asarray(row["amplitude"], dtype="float64"))
    channels, length = samples.shape
    rate = row["sample_rate"]
    return {
        "path": name(row),
        "rate": rate,
        "channels": channels,
        "seconds": round(length / rate, 1),
        "peak": round(float(np.abs(samples).max(initial=0)), 2),
    }


def frame(row: Row) -> Row:
    return {"path": name(row), "index": row["frame_index"], **corners(row["frame"])}


def json_texts(row: Row) -> Row:
    """Return a row whose texts that are JSON objects or lists are their values, at any depth."""
    return {key: _loaded(value) for key, value in row.items()}


def _loaded(value: Any) -> Any:
    if isinstance(value, dict):
        return json_texts(value)
    if isinstance(value, list):
        return [_loaded(each) for each in value]
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def without_nulls(row: Row) -> Row:
    """Return a row without its nulls, at any depth. Some tools add them for missing fields."""
    return _without_nulls(json_texts(row))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
