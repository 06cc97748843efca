"""Executes notebooks with the kernel of Jupyter, and shows their outputs as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.engines import missing


def executed(cells: Sequence[str], directory: Path) -> list[list[Any]]:
    """Return the outputs of each cell, or skip if Jupyter is not installed."""
    try:
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError as error:
        missing(str(error.name), "run `pip install ipykernel nbclient`")
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    metadata = {"metadata": {"path": str(directory)}}
    nbclient.NotebookClient(notebook, resources=metadata, allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def page_of(outputs: Sequence[Any]) -> str:
    """Return a page with the HTML of outputs, as a notebook shows them."""
    shown = [each.data.get("text/html", "") for each in outputs if "data" in each]
    head = '<!doctype html><html lang="en"><title>Notebook</title>'
    return f"{head}<main><h1>Notebook</h1>{''.join(shown)}</main></html>"
