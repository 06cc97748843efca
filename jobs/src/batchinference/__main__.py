"""Entry point of `python -m batchinference`."""

from batchinference.start import main

if __name__ == "__main__":
    main()
