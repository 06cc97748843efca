"""Run the job, read its results into pandas, and join them with a CSV file.

Copy this file to read the results of another job.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from batchinference import Job, run

HERE = Path(__file__).resolve().parent


def main() -> None:
    pictures = run(Job.from_yaml(HERE / "job.yaml")).to_pandas()
    photos = pd.read_csv(HERE / "data" / "photos.csv")
    print(bright_pictures(pictures, photos).to_string(index=False))


def bright_pictures(pictures: pd.DataFrame, photos: pd.DataFrame) -> pd.DataFrame:
    """Return the bright pictures with the columns of `photos`, brightest first.

    `pictures` has the path of each picture, and `photos` the name of its file.
    """
    bright = pictures[pictures["brightness"] >= 0.35]
    named = bright.assign(file=bright["path"].map(lambda path: Path(path).name))
    joined = named.merge(photos, on="file", how="left").drop(columns="path")
    return joined.sort_values("brightness", ascending=False)


if __name__ == "__main__":
    main()
