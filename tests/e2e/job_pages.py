"""Fetches pages of `batchinference ui` for jobs on the cluster, and writes images of them to
docs/images."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.request import urlopen

from e2e.transcripts import COMMAND_SECONDS, CommandLine
from support.timeouts import scaled


def fetched_page(command_line: CommandLine, name: str) -> str:
    """Return the HTML of the page of a job."""
    with (
        command_line.serving(name) as address,
        urlopen(f"{address}jobs/0", timeout=scaled(COMMAND_SECONDS)) as answer,
    ):
        content: bytes = answer.read()
        return content.decode()


def write_images(pages: Mapping[str, str]) -> None:
    """Write an image of each page, given its HTML by the name of the image."""
    from support.browser import DESKTOP, chromium, save_image  # imports the pipeline

    with chromium() as browser:
        for name, html in pages.items():
            page = browser.new_page(viewport=DESKTOP)
            page.set_content(html)
            save_image(page.locator("body").screenshot(), name)
