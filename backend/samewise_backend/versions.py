"""Versions of what computes, for the manifest."""

from __future__ import annotations

import importlib.metadata
from typing import Any


def distribution(name: str) -> str | None:
    """The installed version, None where it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numeric_versions(driver: str | None) -> dict[str, Any]:
    """torch and the libraries under it, as torch itself reports them; None where there are none."""
    import torch

    cuda = torch.cuda.is_available()
    nccl: Any = torch.cuda.nccl.version() if cuda and torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    cudnn: Any = torch.backends.cudnn.version() if cuda else None  # type: ignore[no-untyped-call]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "driver": driver,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "transformers": distribution("transformers"),
        "tokenizers": distribution("tokenizers"),
    }
