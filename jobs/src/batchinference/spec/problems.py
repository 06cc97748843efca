"""Problems of a document, the error that lists them, and parts of their messages.

A message contains the problem, the value and the fix. `validation_messages` makes the messages
about errors of pydantic.
"""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from batchinference.credentials import without_credentials
from batchinference.text import cut

MAX_SHOWN = 60
"""Maximum number of characters of a value in a message."""
MAX_MASKED = 4096
"""Only this many characters of a text are searched for credentials, and may be shown."""
MAX_PROBLEMS = 20
"""Maximum number of problems that are described. A document may have thousands, and the operator
parses the documents of all tenants."""
MAX_COMPARED = 50_000
"""Maximum number of character pairs to compare for a similar name. This takes up to 10 ms."""
_TYPE_NAMES = {
    dict: "a mapping",
    list: "a list",
    str: "a text",
    bool: "a boolean",
    int | float: "a number",
    type(None): "null",
}


@dataclass(frozen=True)
class Problem:
    """A problem of a document: the path of the field, and a message with the fix."""

    path: str
    message: str

    def __post_init__(self) -> None:
        """Mask credentials, because a value may be an address with a password or a signature."""
        object.__setattr__(self, "path", without_credentials(self.path))
        object.__setattr__(self, "message", without_credentials(self.message))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(Exception):
    """An error about an invalid document, with its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Store the first MAX_PROBLEMS problems. If there are more, another problem says so."""
        self.problems = list(islice(problems, MAX_PROBLEMS + 1))
        if len(self.problems) > MAX_PROBLEMS:
            self.problems[-1] = Problem("", "there are more problems. Correct these first")
        assert self.problems, "an error without problems"  # noqa: S101 - a user would see nothing
        super().__init__("\n".join(map(str, self.problems)))


def raise_for_problems(problems: Iterable[Problem]) -> None:
    """Raise SpecError if there are problems. At most MAX_PROBLEMS + 1 problems are computed."""
    if first := list(islice(problems, MAX_PROBLEMS + 1)):
        raise SpecError(first)


def type_name(value: object) -> str:
    """Return the name of the type of a YAML value, with an article."""
    for kind, name in _TYPE_NAMES.items():
        if isinstance(value, kind):
            return name
    return f"a value of type {type(value).__name__}"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of a message that suggests a similar known word; empty if there is none."""
    nearest = closest(word, list(known), cutoff)
    return f"; did you mean '{nearest}'?" if nearest else ""


def closest(word: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar known word; None if no word is similar, or words are too long."""
    if len(word) * sum(map(len, known)) > MAX_COMPARED:
        return None
    same = (name for name in known if name.lower() == word.lower() and name != word)
    return next(same, None) or next(
        iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None
    )


def path_of(location: list[str | int]) -> str:
    """Return the path of a field for messages, such as `spec.read.paths[0]`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{shortened(part if part.isprintable() else repr(part))}"
    return text.removeprefix(".")


def shortened(text: str) -> str:
    """Return the first MAX_SHOWN characters of a text, in which credentials are masked."""
    return cut(without_credentials(text[:MAX_MASKED]), MAX_SHOWN)
