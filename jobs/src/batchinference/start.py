"""Entry point of the program `batchinference`."""

from __future__ import annotations

from batchinference.shadows import check_start


def main() -> None:
    """Run the command line after a check of the Python that starts it."""
    check_start()  # before the imports that a file in PYTHONPATH could break
    from batchinference.cli.main import app

    app()
