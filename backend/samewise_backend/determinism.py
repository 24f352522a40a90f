"""The settings that make an engine answer the same question the same way: each with its reason and its cost.

One table that documentation, launch and manifest are made from.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from samewise_backend.device import Device

Kind = Literal["variable", "flag", "torch"]
Where = Literal["any", "cpu", "cuda"]


@dataclass(frozen=True)
class Setting:
    """`variable`: of the environment; `flag`: of vLLM's command line, None for one without a value; `torch`: a call.

    `where`: the devices on which it is set. `measured` values are computed from options and device by `launch`.
    """

    kind: Kind
    name: str
    value: str | None
    why: str
    cost: str
    where: Where = "any"


SETTINGS: tuple[Setting, ...] = (
    Setting("variable", "PYTHONHASHSEED", "0", "sets iterate, and prefix blocks hash, alike in every process", "none"),
    Setting(
        "variable",
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        "cuBLAS picks the same algorithm on every stream",
        "8 MiB for each stream; a few percent of matrix throughput",
        "cuda",
    ),
    Setting(
        "variable",
        "NVIDIA_TF32_OVERRIDE",
        "0",
        "float32 matrices are multiplied in float32, not TF32",
        "float32 models lose the tensor cores; 16-bit models lose nothing",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_BATCH_INVARIANT",
        "1",
        "kernels reduce in an order that batch size and neighbours don't change",
        "10 to 40 % of throughput",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "highest",
        "PyTorch multiplies float32 in full precision",
        "as for TF32",
    ),
    Setting(
        "variable",
        "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE",
        "0",
        "no kernel is chosen by a race that timing decides",
        "some compiled kernels are slower; start is faster",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING",
        "0",
        "no tile size is chosen by a race that timing decides",
        "some compiled kernels are slower; start is faster",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_TRITON_FORCE_FIRST_CONFIG",
        "1",
        "Triton takes the first configuration in place of the fastest one of the day",
        "some Triton kernels are slower",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "0",
        "seeded sampling is done by PyTorch with a generator for each request",
        "sampling takes longer at large batches",
        "cuda",
    ),
    Setting(
        "variable",
        "VLLM_CPU_OMP_THREADS_BIND",
        "nobind",
        "threads are counted, not pinned: the count decides the bits, and two servers can share a machine",
        "a few percent on machines with several memory nodes",
        "cpu",
    ),
    Setting(
        "variable",
        "OMP_NUM_THREADS",
        "(cores - 1, at least 1)",
        "the number of threads decides the order of float32 sums, so it is fixed and said",
        "one core is left to the server",
        "cpu",
    ),
    Setting("flag", "--seed", "0", "seeds Python, NumPy and torch in every process of vLLM", "none"),
    Setting(
        "flag",
        "--generation-config",
        "vllm",
        "the checkpoint's sampling defaults can't slip in behind a request",
        "a request that names no temperature runs at 1.0, whatever the model's authors advise",
    ),
    Setting("flag", "--dtype", "float32", "batching moves no token in float32 on a CPU", "twice the memory", "cpu"),
    Setting("flag", "--max-num-seqs", "64", "the largest batch is fixed, not derived from free memory", "none"),
    Setting(
        "flag",
        "--max-num-batched-tokens",
        "(at least the model length on a CPU, else 8192)",
        "the largest step is fixed, not derived from the device; on a CPU a prompt fits into one step",
        "memory for activations of that many tokens",
    ),
    Setting(
        "flag",
        "--no-enable-chunked-prefill",
        None,
        "a prompt is always computed in one piece; a seeded request in pieces ends vLLM's CPU engine",
        "a long prompt delays its neighbours' next token",
        "cpu",
    ),
    Setting("flag", "--enforce-eager", None, "nothing is compiled, so nothing is tuned", "slower steps", "cpu"),
    Setting(
        "flag",
        "--prefix-caching-hash-algo",
        "sha256_cbor",
        "prefix blocks have the same hash in every process",
        "a microsecond for each block",
    ),
    Setting(
        "flag",
        "--kernel-config",
        '{"enable_flashinfer_autotune": false}',
        "FlashInfer chooses no kernel by a race that timing decides",
        "some kernels are slower; start is faster",
        "cuda",
    ),
    Setting(
        "torch",
        "use_deterministic_algorithms",
        "True",
        "operations with a deterministic form use it, others warn",
        "scatter and index operations are slower",
    ),
    Setting(
        "torch", "backends.cudnn.benchmark", "False", "cuDNN chooses no algorithm by a race", "slower convolutions"
    ),
    Setting(
        "torch", "backends.cudnn.deterministic", "True", "cuDNN uses deterministic algorithms", "slower convolutions"
    ),
    Setting("torch", "backends.cuda.matmul.allow_tf32", "False", "no TF32 in matrix products", "as for TF32"),
    Setting("torch", "backends.cudnn.allow_tf32", "False", "no TF32 in convolutions", "as for TF32"),
)


def settings_for(device: Device, *kinds: Kind) -> tuple[Setting, ...]:
    """The rows that hold on a device, in the table's order."""
    return tuple(one for one in SETTINGS if one.kind in kinds and one.where in {"any", device.kind})


def apply_to_torch() -> None:
    """Set the table's torch rows in this process. Memory isn't filled: NaN in unused cache would spread.

    Must run before the first CUDA call; safe to repeat.
    """
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy (where installed) and torch. Requests with a seed have generators of their own."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def torch_state() -> dict[str, Any]:
    """What the torch rows are in this process now."""
    import torch

    return {
        "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "num_threads": torch.get_num_threads(),
    }


_NUMERIC = (
    "VLLM_",
    "OMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "CUBLAS",
    "CUDNN_",
    "NCCL_",
    "NVIDIA_TF32",
    "TORCH_",
    "PYTORCH_",
)
_NUMERIC_NAMES = frozenset({"PYTHONHASHSEED", "CUDA_LAUNCH_BLOCKING", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA"})
_HARMLESS = (
    "VLLM_LOGGING",
    "VLLM_LOG_",
    "VLLM_NO_USAGE",
    "VLLM_DO_NOT_TRACK",
    "VLLM_USAGE",
    "VLLM_HOST",
    "VLLM_PORT",
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "VLLM_CONFIGURE",
    "VLLM_ASSETS",
    "VLLM_SERVER_DEV",
    "VLLM_VENV",
    "VLLM_RPC",
    "VLLM_HTTP",
    "VLLM_PROCESS_NAME",
    "VLLM_ENGINE_READY",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE",
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def numeric_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that may decide a bit of an answer. Never one whose name looks like a secret."""
    environment = os.environ if environment is None else environment
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(_NUMERIC) or name in _NUMERIC_NAMES)
        and not name.startswith(_HARMLESS)
        and not any(word in name for word in _SECRET)
    }
