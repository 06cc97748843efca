"""Functions for URIs and local paths as plain strings. Workers import them without pydantic."""

import os
import re
from pathlib import Path
from typing import Any

SCHEMES = ("file", "s3", "gs", "az")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_VARIABLE = re.compile(r"(?:^|/)(\$[A-Za-z_]\w*)(?=/|$)|(\$\{[A-Za-z_]\w*\})")
_REFERENCE = re.compile(
    r"\$?\{\{? *(?:\w*\.)*[A-Za-z_]\w* *\}\}?|\$\([A-Za-z_]\w*\)|\$[A-Za-z_]\w*|%[A-Za-z]\w*%"
)
"""Matches a reference to a variable in the syntax of a shell, of Windows or of a template."""
_WINDOWS = re.compile(r"(^|/)[A-Za-z]:[\\/](?!/)")
"""Matches the drive of a Windows path, even after a directory, as in `/jobs/C:\\data`."""


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI; `file` for a plain path."""
    match = _SCHEME.match(uri)
    return match.group(1).lower() if match else "file"


def is_local(uri: str) -> bool:
    """Return whether a URI is a path or has the scheme `file`."""
    return scheme_of(uri) == "file"


def local_path(uri: str) -> str:
    """Return the path of a local URI, without its scheme."""
    return _SCHEME.sub("", uri)


def expanded(uri: str) -> Path:
    """Return the path of a local URI, with `~` or `~USER` at its beginning replaced by a home
    directory. If there is no such user, the path is not changed."""
    return Path(os.path.expanduser(local_path(uri)))


def unexpanded_variable(path: str) -> str:
    """Return the first `${NAME}` or path part `$NAME` in a path; empty if there is none."""
    match = _VARIABLE.search(path)
    return match[1] or match[2] if match else ""


def reference_in(path: str) -> str:
    """Return the first reference to a variable in a path, such as `$(day)`, `%day%` or `{{ day }}`;
    empty if there is none. If the path does not exist, the reference is the likely reason."""
    match = _REFERENCE.search(path)
    return match[0] if match else ""


def fix_of_variable(variable: str) -> str:
    """Return what to write instead of a reference to a variable."""
    name = re.sub(r"[^\w.]", "", variable).rpartition(".")[2].lower()
    if name in ("home", "userprofile"):
        return f"Write ~ instead of {variable}"
    return (
        f"Write {{{{ params.{name} }}}} instead of {variable}, put the path in quotes, and add "
        f"parameters: [{{name: {name}, value: TEXT}}]"
    )


def is_windows_path(path: str) -> bool:
    """Return whether a path has a Windows drive, at its beginning or after a directory."""
    return _WINDOWS.search(path) is not None


def is_relative_path(value: Any) -> bool:
    """Return whether a value is a string that is clearly a relative path."""
    return isinstance(value, str) and value.startswith(("./", "../"))
