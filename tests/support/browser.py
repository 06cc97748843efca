"""Opens pages in the Chromium of this machine."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from PIL import Image

from batchinference.ui.server import address_of, serving
from batchinference.ui.site import Site
from support.engines import missing, program

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests/browser/node_modules/axe-core/axe.min.js"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a running browser of Playwright, or skip."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright", "run `make browser`")
    path = program("chromium", "install it, for example with `apt-get install chromium`")
    # the sandbox of Chromium refuses to run as root
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, scheme: str, size: dict[str, int]) -> Iterator[Any]:
    """Yield a page that shows a file, with this color scheme and window size."""
    context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
    page = context.new_page()
    page.requested = []
    page.on("request", lambda request: page.requested.append(request.url))
    page.goto(file.as_uri())
    yield page
    context.close()


@contextmanager
def served_ui(site: Any) -> Iterator[str]:
    """Serve the pages of a site, or of an object with the same `answer`, and yield the address."""
    with serving([0], "token", cast("Site", site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address_of(server)
        finally:
            server.shutdown()
            thread.join()


def save_image(content: bytes, name: str) -> None:
    """Write an image to docs/images with few colors, so that it is small."""
    image = Image.open(io.BytesIO(content)).convert("RGB")  # one that the tests have made
    image.quantize(128).save(ROOT / f"docs/images/{name}.png", optimize=True)
