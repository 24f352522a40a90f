"""A LoRA adapter for the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 8


def write(directory: Path, seed: int) -> Path:
    """Of rank 8, for the query projections of the default shape. What is there is replaced. Returns the directory."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(4):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, 256, generator=generator)
        tensors[f"{name}.lora_B.weight"] = torch.randn(256, RANK, generator=generator)
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (directory / "adapter_config.json").write_text(json.dumps(config | {"bias": "none", "lora_dropout": 0.0}))
    return directory
