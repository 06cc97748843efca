"""Starts Ray, runs an empty task and ends: what a job on Ray takes at the least."""

import sys

import ray
import ray.data


@ray.remote
def nothing() -> None:
    return


def main(cpus: str) -> None:
    ray.init(num_cpus=int(cpus))
    ray.get(nothing.remote())
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[3])
