"""A user's Keras models, which jobs name as `user_keras:NAME`."""

from __future__ import annotations

from typing import Any

import keras


def dense(units: int = 2, dropout: float = 0.0, dtype: str = "float32") -> Any:
    """Return a model with a dense layer of random weights over three numbers."""
    layers = [keras.layers.Dense(units, dtype=dtype), keras.layers.Dropout(dropout, dtype=dtype)]
    return keras.Sequential([keras.Input((3,)), *layers])


def difference() -> Any:
    left, right = keras.Input((1,), name="left"), keras.Input((1,), name="right")
    return keras.Model([left, right], keras.layers.Subtract()([left, right]))


def two_outputs() -> Any:
    x = keras.Input((1,), name="x")
    outputs = [
        keras.layers.Rescaling(2.0, name="double"),
        keras.layers.Rescaling(3.0, name="triple"),
    ]
    return keras.Model(x, [layer(x) for layer in outputs])


def dict_of_outputs() -> Any:
    x = keras.Input((1,), name="x")
    return keras.Model(
        x, {"a": keras.layers.Rescaling(2.0)(x), "b": keras.layers.Rescaling(3.0)(x)}
    )


def nothing() -> int:
    return 5
