"""Makes the CUDA build of torchvision importable with a CPU build of PyTorch.

CI has a wheel with a CPU build of PyTorch, but no CPU build of torchvision. This module declares
the operators that the binary of torchvision would define. No test calls them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

NAME = "torchvision"


class _Declare(importlib.abc.MetaPathFinder):
    """Finds torchvision. The operators are declared when it is imported, not when a library only
    asks whether it is installed, because this imports PyTorch."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(NAME, path)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (_declare(), execute(module))
        return spec


def _declare():
    import torch

    library = torch.library.Library(NAME, "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float limit) -> Tensor")
    sys.torchvision_library = library  # a reference keeps it alive


if importlib.util.find_spec("torch") is not None:
    sys.meta_path.insert(0, _Declare())
