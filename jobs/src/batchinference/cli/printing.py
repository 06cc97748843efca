"""Prints lines without the control characters that data and messages may contain."""

from __future__ import annotations

import typer

from batchinference.text import without_controls


def echo(text: str, *, err: bool = False) -> None:
    """Print a line to stdout, or to stderr."""
    typer.echo(without_controls(text), err=err)
