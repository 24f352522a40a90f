"""What a running vLLM says of itself, read from its server's state. Attributes that a version lacks are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise_backend.device import Device

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""vLLM's defaults where neither request nor generation defaults say otherwise (completion/protocol.py)."""

_RESOLVED: Mapping[str, tuple[str, ...]] = {
    "model_config": (
        "max_model_len",
        "enforce_eager",
        "tokenizer_mode",
        "logprobs_mode",
        "generation_config",
        "runner",
    ),
    "cache_config": (
        "cache_dtype",
        "block_size",
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "sliding_window",
    ),
    "scheduler_config": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "policy",
        "async_scheduling",
        "long_prefill_token_threshold",
    ),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "disable_custom_all_reduce",
    ),
    "lora_config": ("max_lora_rank", "max_loras", "lora_dtype"),
    "compilation_config": ("mode", "cudagraph_mode", "custom_ops"),
    "structured_outputs_config": ("backend",),
}


def identity(config: Any, device: Device, worker: Mapping[str, Any]) -> dict[str, Any]:
    """The members that vLLM itself resolved. `config` is its VllmConfig; `worker` is a worker's report."""
    model = config.model_config
    resolved = {section: _section(getattr(config, section, None), names) for section, names in _RESOLVED.items()}
    cache, scheduler, parallel = (resolved[name] for name in ("cache_config", "scheduler_config", "parallel_config"))
    length = resolved["model_config"].pop("max_model_len", None)
    return {
        "generation_defaults": {**NEUTRAL, **model.get_diff_sampling_param()},
        "dtype": _plain(model.dtype),
        "quantization": model.quantization,
        "kv_cache_dtype": cache.pop("cache_dtype", "auto"),
        "parallelism": {
            "tensor": parallel.pop("tensor_parallel_size", 1),
            "pipeline": parallel.pop("pipeline_parallel_size", 1),
            "data": parallel.pop("data_parallel_size", 1),
            "expert": parallel.pop("enable_expert_parallel", False),
        },
        "attention_backend": worker.get("attention") or _attention(config),
        "speculative": _plain(getattr(config, "speculative_config", None)),
        "seed": model.seed,
        "max_model_len": length,
        "max_num_seqs": scheduler.pop("max_num_seqs", None),
        "max_num_batched_tokens": scheduler.pop("max_num_batched_tokens", None),
        "resolved": {section: values for section, values in resolved.items() if values},
        "device": device.manifest(),
    }


def _section(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _plain(getattr(config, name)) for name in names if hasattr(config, name)}


def _attention(config: Any) -> Any:
    return _plain(getattr(getattr(config, "attention_config", None), "backend", None)) or "auto"


def _plain(value: Any) -> Any:
    """A value that JSON can hold; enums by name, torch types by their own name, other objects by their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "name") and hasattr(value, "value"):
        return str(value.name)
    return str(value).removeprefix("torch.")
