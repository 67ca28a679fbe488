"""Nacre for PyTorch: training data read ahead into GPU memory, and storage for torch.distributed.checkpoint.

    from nacre.torch import Loader, RecordDataset, StorageReader, StorageWriter

This module can be imported without PyTorch. RecordDataset and Loader then work with framework="numpy" on the host; what
needs PyTorch raises an ImportError that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from .data import Loader, RecordDataset

if TYPE_CHECKING:
    from .checkpoint import StorageReader, StorageWriter

__all__ = ["Loader", "RecordDataset", "StorageReader", "StorageWriter"]


def __getattr__(name: str) -> Any:
    if name not in ("StorageReader", "StorageWriter"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .._frameworks import torch_module

    torch_module(f"nacre.torch.{name}")  # before the many lines that import it
    from . import checkpoint

    return getattr(checkpoint, name)


def __dir__() -> List[str]:
    return __all__
