"""Lets torchvision's build for CUDA be imported above a PyTorch without CUDA.

The folder of wheels that CI installs from has such a PyTorch, and no torchvision of the same kind.
What the wheel's binary would define is declared here; no test calls it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

NAME = "torchvision"


class _Declare(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library(NAME, "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float limit) -> Tensor")
        sys.torchvision_library = library  # it lasts as long as it is referred to
        return importlib.util.find_spec(NAME)


if importlib.util.find_spec("torch") is not None:
    sys.meta_path.insert(0, _Declare())
