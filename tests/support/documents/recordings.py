"""Pages of docs/ that are recordings of commands, and what they have in common with a new run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from support.documents.pages import blocks


@dataclass(frozen=True)
class Shown:
    """A command and what it shows."""

    command: str
    text: str
    exit_code: int = field(default=0, compare=False)

    @classmethod
    def of(cls, block: str) -> Self:
        """Parse a block of a page."""
        command, text = block.removeprefix("$ ").split("\n", 1)
        return cls(command, text)

    @property
    def block(self) -> str:
        """The block of a page."""
        return f"```console\n$ {self.command}\n{self.text.rstrip()}\n```\n"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def thinned(lines: Sequence[str], states: Sequence[str]) -> str:
    """Keep the first line of each state, and the last line."""
    kept = [
        line
        for at, line in enumerate(lines)
        if at in (0, len(lines) - 1) or states[at] != states[at - 1]
    ]
    return "\n".join(kept) + "\n"


def masked(lines: Iterable[str]) -> list[str]:
    """Return the lines with N in place of each number."""
    return [re.sub(r"\d+", "N", line) for line in lines]


def page_of(head: str, sections: Mapping[str, Sequence[Shown]]) -> str:
    """Return a page with a heading for each section that has a title."""
    parts = [head]
    for title, commands in sections.items():
        parts += [f"## {title}\n"] if title else []
        parts += [shown.block for shown in commands]
    return "\n".join(parts)


def compare_with_page(
    page: str,
    sections: Mapping[str, Sequence[Shown]],
    shape: Callable[[Shown], list[str]],
    recorder: str,
) -> None:
    """Fail if commands, or the shape of their output, differ from those that `recorder` wrote."""
    advice = f"{page} differs. Record it with `{recorder}`"
    recorded = [Shown.of(block) for block in blocks(page, "console")]
    result = [shown for commands in sections.values() for shown in commands]
    assert masked(one.command for one in recorded) == masked(one.command for one in result), advice
    for before, now in zip(recorded, result, strict=True):
        difference = "\n".join(difflib.ndiff(shape(before), shape(now)))
        assert shape(now) == shape(before), f"{now.command}: {advice}\n{difference}"
