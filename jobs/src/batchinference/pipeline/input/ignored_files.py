"""The files of the listed directories that a job does not read: how many, and why.

They are stored with the input snapshot, so that a resumed job and `verify` know them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from unicodedata import normalize

from pydantic import TypeAdapter

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import base_name
from batchinference.spec.file_extensions import HEIF_PACKAGE, extension_of
from batchinference.spec.warnings import WarningCount, WarningName, WarningPolicy
from batchinference.text import counted, in_one_line

MAX_GROUPS, SHOWN_GROUPS = 50, 8
"""Maximum number of groups that are stored with their extension, and that a message names."""
MAX_EXAMPLE = 512
_REST = "*"
"""The extension of the group that stands for all further groups."""


class Reason(StrEnum):
    """Why a file of a directory is not read. The value is its description for people."""

    EXTENSION = ""
    """Its extension belongs to something else, or is not among `fileExtensions`."""
    CONTENT = "not of this format"
    """Its extension does not tell its format, and its content is not of the format of the job."""
    EMPTY = "empty"
    PACKAGE = f"needs the package {HEIF_PACKAGE} of the extra heic"
    HIDDEN = "hidden"
    """It would be read if no part of its path began with a dot or an underscore."""
    TEMPORARY = "unfinished, or a copy"
    SPECIAL = "no regular file"
    """It is a named pipe, a broken link, or a link to a directory that contains it."""
    UNREADABLE = "unreadable"
    UNEXAMINED = "not examined"
    """Its content would show its format, but there are too many such files."""
    MARKER = "marker"
    """It belongs to the program that wrote the directory, such as _SUCCESS. This is normal."""


@dataclass(frozen=True)
class IgnoredGroup:
    """Ignored files with the same extension and the same reason. `example` is the path of one."""

    extension: str
    reason: Reason
    count: int
    example: str

    def __str__(self) -> str:
        names = {"": "no extension", _REST: "others"}
        reason = f" ({self.reason.value})" if self.reason.value else ""
        return f"{names.get(self.extension, f'.{self.extension}')} {self.count}{reason}"


@dataclass(frozen=True)
class IgnoredFiles:
    """The ignored files by extension and reason, the largest group first.

    `similar` is the number of files that are read and whose name equals that of another one except
    for its Unicode form, and `similar_example` is one of them."""

    groups: tuple[IgnoredGroup, ...] = ()
    similar: int = 0
    similar_example: str = ""

    @classmethod
    def of(cls, reasons: Mapping[str, Reason]) -> IgnoredFiles:
        """Return the groups of ignored files. `reasons` are the reasons by path."""
        counts: Counter[tuple[str, Reason]] = Counter()
        examples: dict[tuple[str, Reason], str] = {}
        for path, reason in reasons.items():
            key = extension_of(base_name(path)), reason
            counts[key] += 1
            examples[key] = min(path, examples.get(key, path))
        groups = [
            IgnoredGroup(extension, reason, count, examples[extension, reason][-MAX_EXAMPLE:])
            for (extension, reason), count in counts.items()
        ]
        groups.sort(key=lambda group: (-group.count, group.extension, group.reason))
        return cls(tuple(_bounded(groups)))

    def with_similar(self, paths: Sequence[str]) -> IgnoredFiles:
        """Return this with the paths of files whose names equal those of others."""
        example = paths[0][-MAX_EXAMPLE:] if paths else ""
        return replace(self, similar=len(paths), similar_example=example)

    @property
    def _alarming(self) -> list[IgnoredGroup]:
        return [group for group in self.groups if group.reason is not Reason.MARKER]

    @property
    def total(self) -> int:
        """The number of ignored files, without markers such as _SUCCESS."""
        return sum(group.count for group in self._alarming)

    @property
    def markers(self) -> int:
        """The number of ignored markers."""
        return sum(group.count for group in self.groups) - self.total

    @property
    def text(self) -> str:
        """The numbers for people, such as `3 files ignored: .heic 2, .txt 1`; empty if no file
        was ignored except for markers."""
        total = self.total
        return f"{total} file{'s'[: total != 1]} ignored: {self._numbers}" if total else ""

    @property
    def _numbers(self) -> str:
        groups = self._alarming
        shown = [str(group) for group in groups[:SHOWN_GROUPS]]
        rest = sum(group.count for group in groups[SHOWN_GROUPS:])
        return ", ".join([*shown, f"others {rest}"] if rest else shown)

    def warnings(self) -> list[WarningCount]:
        """Return the warnings about these files."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[WarningCount]:
        name = WarningName.FILES_IGNORED
        if groups := self._alarming:
            message = f"{name.meaning} ({self._numbers}). {name.fix}"
            yield _warning(name, self.total, groups[0].example, message)
        if self.similar:
            name = WarningName.SIMILAR_NAMES
            yield _warning(name, self.similar, self.similar_example, name.message)

    def check(self, policies: Sequence[WarningPolicy]) -> None:
        """Raise BadInput if a job with these policies does not accept the warnings."""
        counts = {warning.name: warning for warning in self.warnings()}
        for index, policy in enumerate(policies):
            most = 0 if policy.action == "fail" else policy.max_rows
            warning = counts.get(policy.name.value)
            if warning is not None and most is not None and warning.count > most:
                raise BadInput(
                    f"errors.warnings[{index}] allows {counted(most, 'file')}. {warning}"
                )

    def serialized(self) -> bytes:
        return _ADAPTER.dump_json(self)

    @classmethod
    def parse(cls, content: bytes) -> IgnoredFiles:
        """Return the stored form. Raises ValueError if it is not valid."""
        return _ADAPTER.validate_json(content)


NONE_IGNORED = IgnoredFiles()
_ADAPTER = TypeAdapter(IgnoredFiles)


def similar_names(paths: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Return the paths that equal another one of them, or one of `known`, except for their Unicode
    form: `é` is one character, or two on a disk of a Mac."""
    unique = [path for path in dict.fromkeys(paths) if not path.isascii()]
    forms: dict[str, set[str]] = {}
    for path in (*unique, *(path for path in known if not path.isascii())):
        forms.setdefault(normalize("NFC", path), set()).add(path)
    return [path for path in unique if len(forms[normalize("NFC", path)]) > 1]


def _bounded(groups: list[IgnoredGroup]) -> Iterator[IgnoredGroup]:
    """Yield the first groups, and one with the sum of the others for each kind of others."""
    yield from groups[:MAX_GROUPS]
    for markers in (False, True):
        rest = [
            group for group in groups[MAX_GROUPS:] if (group.reason is Reason.MARKER) == markers
        ]
        if rest:
            reason = Reason.MARKER if markers else Reason.EXTENSION
            count = sum(group.count for group in rest)
            yield IgnoredGroup(_REST, reason, count, rest[0].example)


def _warning(name: WarningName, count: int, example: str, message: str) -> WarningCount:
    shown = in_one_line(example)[-MAX_EXAMPLE:]
    return WarningCount(name=name.value, count=count, example=shown, message=message)
