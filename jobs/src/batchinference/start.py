"""Entry point of the program `batchinference`."""

import os

from batchinference.shadowing_files import check_start


def main() -> None:
    """Check the directories in PYTHONPATH, then run the command of the command line."""
    check_start()  # before the imports that a file in PYTHONPATH could break
    # pydantic would search all installed packages for plugins, which takes time and memory
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from batchinference.cli.main import app

    app()
