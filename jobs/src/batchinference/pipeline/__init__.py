"""Runs, previews and verifies jobs.

Importing this package removes the environment variables that begin with RAY_DATA_AUTOLOAD_. They
make Ray unpickle values in Arrow and Parquet files, and so run code from these files. No job needs
them. The import also hides library messages that do not help users. It registers the functions that
import Ray, for modules that begin without Ray (`ray_on_first_use`)."""

import logging
import os
import sys
import warnings
from collections.abc import Container, MutableMapping
from types import ModuleType

from batchinference.pipeline import ray_on_first_use

PREFIX = "RAY_DATA_AUTOLOAD_"


def remove_autoload(environment: MutableMapping[str, str], modules: Container[str]) -> None:
    """Remove the RAY_DATA_AUTOLOAD_... variables from an environment. Raises RuntimeError if there
    are any and `modules` has Ray Data, which reads some of them at import."""
    names = sorted(name for name in environment if name.startswith(PREFIX))
    if names and "ray.data" in modules:
        raise RuntimeError(
            f"{names[0]} is set in the environment of this process, and lets Arrow files run code. "
            "Remove it; on a cluster from cluster.env, the profile and the image"
        )
    for name in names:
        del environment[name]


UNHELPFUL = {
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled",
    "ray.widgets.util": "Missing packages",
}
"""The beginning of the hidden message of a logger, by the name of the logger."""


def is_helpful(record: logging.LogRecord) -> bool:
    """Return whether users see this message of a library."""
    return not record.getMessage().startswith(UNHELPFUL.get(record.name, "\0"))


def _import_ray() -> ModuleType:
    from batchinference.pipeline import ray_compat

    return ray_compat


def _import_ray_data() -> ModuleType:
    from batchinference.pipeline import ray_data_compat

    return ray_data_compat


ray_on_first_use.register(ray_on_first_use.RayImports(_import_ray, _import_ray_data))
remove_autoload(os.environ, sys.modules)
for _name in UNHELPFUL:
    logging.getLogger(_name).addFilter(is_helpful)
warnings.filterwarnings("ignore", "IProgress not found")
