"""The pipeline: runs a plan on Ray.

Importing it removes the Ray settings that let Arrow files run code. If an environment variable
RAY_DATA_AUTOLOAD_... is set, Ray unpickles types and values of the Arrow and Parquet files that it
reads. No job needs this.
"""

import os
import sys
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


without_autoload(os.environ, sys.modules)
