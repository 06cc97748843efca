"""The pipeline: runs a plan on Ray.

Importing it removes the Ray settings that let Arrow files run code. If an environment variable
RAY_DATA_AUTOLOAD_... is set, Ray unpickles types and values of the Arrow and Parquet files that it
reads. No job needs this.

It also hides messages of libraries that do not help users. In a notebook, the output of Ray is not
redirected to a file.
"""

import logging
import os
import sys
import warnings
from collections.abc import Container, MutableMapping

PREFIX = "RAY_DATA_AUTOLOAD_"


def without_autoload(environment: MutableMapping[str, str], modules: Container[str]) -> None:
    """Remove the variables from an environment.

    Raises RuntimeError if there are any and Ray Data is already loaded: it reads some of them when
    it is imported."""
    found = sorted(name for name in environment if name.startswith(PREFIX))
    if found and "ray.data" in modules:
        raise RuntimeError(
            f"{found[0]} is set in the environment of this process, and lets Arrow files run code. "
            "Remove it; on a cluster from cluster.env, the profile and the image"
        )
    for name in found:
        del environment[name]


UNHELPFUL = {
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled",
    "ray.data._internal.datasource.sql_datasource": "Sharding is not supported",
    "ray.widgets.util": "Missing packages",
}
"""The beginnings of hidden messages, by the logger."""


def is_helpful(record: logging.LogRecord) -> bool:
    """Return whether users should see a message of a library."""
    return not record.getMessage().startswith(UNHELPFUL.get(record.name, "\0"))


without_autoload(os.environ, sys.modules)
for _name in UNHELPFUL:
    logging.getLogger(_name).addFilter(is_helpful)
warnings.filterwarnings("ignore", "IProgress not found")
