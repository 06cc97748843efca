"""Which addresses in an output may be read as pictures."""

from __future__ import annotations

import pytest

from batchinference.ui.pictures import is_image_below


@pytest.mark.parametrize(
    ("address", "inputs"),
    [
        ("/data/a.jpg", ["/data"]),
        ("/data/deep/a.PNG", ["/other", "/data/"]),
        ("/data/a.jpg", ["/data/a.jpg"]),
        ("/data/x/a.jpg", ["/data/*/a.jpg"]),
        ("s3://bucket/data/a.webp", ["s3://bucket/data"]),
    ],
)
def test_image_of_the_input_is_shown(address: str, inputs: list[str]) -> None:
    assert is_image_below(address, inputs)


@pytest.mark.parametrize(
    ("address", "inputs"),
    [
        ("/data/a.jpg", []),
        ("/data/a.txt", ["/data"]),
        ("/database/a.jpg", ["/data"]),
        ("/data/../etc/a.jpg", ["/data"]),
        ("/etc/a.jpg", ["/data"]),
        ("/a.jpg", ["*.jpg"]),
        ("s3://other/data/a.jpg", ["s3://bucket/data"]),
        ("http://169.254.169.254/a.jpg", ["/data"]),
    ],
)
def test_any_other_address_is_not_read(address: str, inputs: list[str]) -> None:
    assert not is_image_below(address, inputs)
