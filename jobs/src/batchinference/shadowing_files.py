"""Finds user files that shadow a Python module or a package that Ray needs.

Python searches the job's directory and PYTHONPATH first. If one of these directories contains a
`random.py`, every Ray process fails at startup with an error that does not name the file.

`start` imports this module first. Files must not shadow the imports of this module and of
`__init__`, so both import only modules that Python has already loaded at startup.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_HARMLESS = {"antigravity", "chunk", "idlelib", "lib2to3", "mailbox", "sched", "test", "this"}
_HARMLESS |= {"turtle", "turtledemo"}
"""Modules of the standard library that files may shadow, because no library imports them."""
PACKAGES = frozenset(
    "aiohttp aiosignal annotated_doc annotated_types attr attrs batchinference certifi "  # noqa: SIM905
    "charset_normalizer click cloudpickle colorama dateutil filelock frozenlist fsspec google grpc "
    "idna jsonpointer jsonschema jsonschema_specifications markdown_it mdurl msgpack multidict "
    "numpy packaging pandas PIL propcache psutil pyarrow pydantic pydantic_core pygments pytz ray "
    "referencing requests rich rpds setproctitle shellingham six tqdm typer typing_extensions "
    "typing_inspection urllib3 yaml yarl zstandard".split()
)
"""Packages that Ray or this program imports. Packages that only models need are not listed."""


def shadowing(directories: "Iterable[str]") -> list[str]:
    """Return a message for each file or package in these directories that shadows a module."""
    return [
        f"'{os.path.join(directory, entry)}' hides {hidden}, and Ray cannot start. Rename {entry}"
        for directory in directories
        for entry in _entries(directory)
        if (hidden := _hidden_by(directory, entry))
    ]


def check_start() -> None:
    """Exit this process with a message if a file in a PYTHONPATH directory shadows a module."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if problems := shadowing(path for path in paths if path):
        os.write(2, "".join(f"PYTHONPATH: {problem}\n" for problem in problems).encode())
        os._exit(1)


def _entries(directory: str) -> list[str]:
    """Return the names in a directory; none if it is unreadable, or part of an installation."""
    python = os.path.dirname(os.path.realpath(os.__file__))
    if os.path.commonpath([python, os.path.realpath(directory)]) == python:
        return []
    try:
        entries = sorted(os.listdir(directory))
    except OSError:
        return []
    installed = any(entry.endswith((".dist-info", ".egg-info")) for entry in entries)
    return [] if installed else entries


def _hidden_by(directory: str, entry: str) -> str | None:
    name = _module_of(directory, entry)
    if name in sys.stdlib_module_names and name not in _HARMLESS:
        return f"the module '{name}' of Python"
    is_this_package = os.path.realpath(os.path.join(directory, entry)) == os.path.dirname(_HERE)
    return f"the package '{name}'" if name in PACKAGES and not is_this_package else None


_HERE = os.path.realpath(__file__)


def _module_of(directory: str, entry: str) -> str | None:
    """Return the name of the module or package that an entry contains; None if it has none."""
    if entry.endswith((".py", ".so", ".pyd")):
        return entry.partition(".")[0]
    return entry if os.path.isfile(os.path.join(directory, entry, "__init__.py")) else None
