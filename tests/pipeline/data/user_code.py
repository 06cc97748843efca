"""A user's module, which jobs name as `user_code:NAME`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Batch = dict[str, np.ndarray]
NOT_CALLABLE = 5


def lengths(batch: Batch) -> dict[str, Any]:
    return {**batch, "length": [len(text) for text in batch["text"]]}


def add(batch: Batch, amount: float = 1, column: str = "n") -> Batch:
    return {**batch, column: batch[column] + amount}


def untouched(batch: Batch) -> Batch:
    return batch


def picky(batch: Batch) -> Batch:
    """Raise ValueError for a batch that has a text with the word bad."""
    for text in batch["text"]:
        if "bad" in text:
            raise ValueError(f"cannot take {text}")
    return {**batch, "upper": np.array([text.upper() for text in batch["text"]], dtype=object)}


def letters(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each letter, none for an empty text. Raise ValueError for a bad text."""
    if "bad" in (row["text"] or ""):
        raise ValueError(f"cannot take {row['text']}")
    return [{**row, "letter": letter} for letter in row["text"] or ""]


class Scaler:
    """Multiplies a column, and counts its instances."""

    made = 0

    def __init__(self, factor: float, column: str = "n") -> None:
        Scaler.made += 1
        self.factor = factor
        self.column = column

    def __call__(self, batch: Batch, offset: float = 0) -> Batch:
        return {self.column: batch[self.column] * self.factor + offset}


class Outer:
    """Has a function that jobs name as `user_code:Outer.double`."""

    @staticmethod
    def double(batch: Batch) -> Batch:
        return {"n": batch["n"] * 2}


class Fragile:
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("the file of weights is missing")


class NotCallable:
    """Has no __call__."""


class Affine(torch.nn.Module):
    """A linear layer from `features` numbers to two, with dropout, multiplied by `scale`."""

    def __init__(self, features: int = 3, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, 2)
        self.dropout = torch.nn.Dropout(0.5)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x)) * self.scale


class Two(torch.nn.Module):
    """Takes two inputs by name."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.float().flatten(1) @ right.float().flatten(1).T


class Squeezing(torch.nn.Module):
    """Removes all axes of length one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(1).squeeze()


class Cast(torch.nn.Module):
    """Casts its input."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = getattr(torch, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


class Tuple(torch.nn.Module):
    """Returns a tuple of tensors."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x * 2


class Dict(torch.nn.Module):
    """Returns several tensors by name."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"once": x, "twice": x * 2}


class Words(torch.nn.Module):
    """Returns a string instead of a tensor."""

    def forward(self, x: torch.Tensor) -> str:
        return "a tensor"


class Shorter(torch.nn.Module):
    """Returns one row fewer than its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:]


class Static(torch.nn.Module):
    """Writes each output into the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.output = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.output[:] = 2 * x
        return self.output


class InPlace(torch.nn.Module):
    """Modifies its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def no_module() -> int:
    return 5
