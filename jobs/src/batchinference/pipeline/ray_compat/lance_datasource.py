"""Ray Data's datasource LanceDatasource."""

from ray.data._internal.datasource.lance_datasource import LanceDatasource

__all__ = ["LanceDatasource"]
