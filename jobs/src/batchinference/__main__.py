"""Entry point of `python -m batchinference`."""

from __future__ import annotations

from batchinference.start import main

if __name__ == "__main__":
    main()
