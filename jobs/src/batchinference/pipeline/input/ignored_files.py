"""Counts the files in input directories that a job does not read, by extension and reason.

The counts are stored with the input snapshot, for a resumed job and for `verify`."""

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
"""Maximum numbers of groups that are stored, and that a message names. Others are summed up."""
MAX_EXAMPLE = 512
"""Maximum characters of an example. Of a longer path, only the end is stored."""
_REST = "*"
"""The extension of the group that sums up all further groups."""


class Reason(StrEnum):
    """Why a file of a directory is not read. The value is its description for people."""

    EXTENSION = ""
    """Its extension is not of the format of the job, or not in `fileExtensions`."""
    CONTENT = "not of this format"
    """Its extension is unknown, and its content is not of the format of the job."""
    EMPTY = "empty"
    PACKAGE = f"needs the package {HEIF_PACKAGE} of the extra heic"
    HIDDEN = "hidden"
    """Part of its path begins with a dot or an underscore. If renamed, the file could be read."""
    TEMPORARY = "unfinished, or a copy"
    SPECIAL = "no regular file"
    """It is a named pipe, a broken link, or a link to a directory that contains it."""
    UNREADABLE = "unreadable"
    UNEXAMINED = "not examined"
    """Its content would decide, but too many files would have to be opened."""
    MARKER = "marker"
    """A program has added the file to its data, such as _SUCCESS. A marker causes no warning."""


@dataclass(frozen=True)
class IgnoredGroup:
    """Ignored files with the same extension and reason. `example` is the path of one of them."""

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
    """Groups of ignored files, the largest group first, and the sums of further groups last.

    `similar` is the number of input files that `similar_names` returns. `similar_example` is the
    path of one of these files."""

    groups: tuple[IgnoredGroup, ...] = ()
    similar: int = 0
    similar_example: str = ""

    @classmethod
    def of(cls, reasons: Mapping[str, Reason]) -> IgnoredFiles:
        """Return the groups of ignored files. `reasons` maps the path of each file to a reason."""
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
        return cls(tuple(_first_groups(groups)))

    def with_similar(self, paths: Sequence[str]) -> IgnoredFiles:
        """Return a copy that counts `paths`, the result of `similar_names`, as similar files."""
        example = paths[0][-MAX_EXAMPLE:] if paths else ""
        return replace(self, similar=len(paths), similar_example=example)

    @property
    def _unexpected(self) -> list[IgnoredGroup]:
        """The groups without markers."""
        return [group for group in self.groups if group.reason is not Reason.MARKER]

    @property
    def total(self) -> int:
        """The number of ignored files, without markers such as _SUCCESS."""
        return sum(group.count for group in self._unexpected)

    @property
    def markers(self) -> int:
        """The number of ignored markers."""
        return sum(group.count for group in self.groups) - self.total

    @property
    def text(self) -> str:
        """A text such as `3 files ignored: .heic 2, .txt 1`; empty if `total` is 0."""
        total = self.total
        return f"{total} file{'s'[: total != 1]} ignored: {self._numbers}" if total else ""

    @property
    def _numbers(self) -> str:
        groups = self._unexpected
        shown = [str(group) for group in groups[:SHOWN_GROUPS]]
        rest = sum(group.count for group in groups[SHOWN_GROUPS:])
        return ", ".join([*shown, f"others {rest}"] if rest else shown)

    def warnings(self) -> list[WarningCount]:
        """Return the warnings about these files."""
        ignored, similar = WarningName.FILES_IGNORED, WarningName.SIMILAR_NAMES
        warnings = []
        if groups := self._unexpected:
            message = f"{ignored.meaning} ({self._numbers}). {ignored.fix}"
            warnings.append(_warning(ignored, self.total, groups[0].example, message))
        if self.similar:
            example = self.similar_example
            warnings.append(_warning(similar, self.similar, example, similar.message))
        return warnings

    def check(self, policies: Sequence[WarningPolicy]) -> None:
        """Raise BadInput if a policy in `errors.warnings` allows fewer warnings than there are."""
        counts = {warning.name: warning for warning in self.warnings()}
        for index, policy in enumerate(policies):
            limit = 0 if policy.action == "fail" else policy.max_rows
            warning = counts.get(policy.name.value)
            if warning is not None and limit is not None and warning.count > limit:
                raise BadInput(
                    f"errors.warnings[{index}] allows {counted(limit, 'file')}. {warning}"
                )

    def serialized(self) -> bytes:
        """Return the stored form, which is JSON."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def parse(cls, content: bytes) -> IgnoredFiles:
        """Parse the stored form. Raises ValueError if it is invalid."""
        return _ADAPTER.validate_json(content)


NONE_IGNORED = IgnoredFiles()
_ADAPTER = TypeAdapter(IgnoredFiles)


def similar_names(paths: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Return the paths that differ from another path in `paths` or `known` only in their Unicode
    form. For example, macOS stores `é` as two characters."""
    unique = [path for path in dict.fromkeys(paths) if not path.isascii()]
    forms: dict[str, set[str]] = {}
    for path in (*unique, *(path for path in known if not path.isascii())):
        forms.setdefault(normalize("NFC", path), set()).add(path)
    return [path for path in unique if len(forms[normalize("NFC", path)]) > 1]


def _first_groups(groups: list[IgnoredGroup]) -> Iterator[IgnoredGroup]:
    """Yield the first MAX_GROUPS groups, then a group of other files and one of other markers."""
    yield from groups[:MAX_GROUPS]
    for markers in (False, True):
        rest = [one for one in groups[MAX_GROUPS:] if (one.reason is Reason.MARKER) == markers]
        if rest:
            reason = Reason.MARKER if markers else Reason.EXTENSION
            count = sum(group.count for group in rest)
            yield IgnoredGroup(_REST, reason, count, rest[0].example)


def _warning(name: WarningName, count: int, example: str, message: str) -> WarningCount:
    shown = in_one_line(example)[-MAX_EXAMPLE:]
    return WarningCount(name=name.value, count=count, example=shown, message=message)
