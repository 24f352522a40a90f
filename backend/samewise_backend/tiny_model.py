"""A small random Llama with a tokenizer of its own, made on the spot: a real model for machines without one.

The same arguments give the same bytes, on every machine with the same library versions.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BOS = "<|bos|>"
EOS = "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>tools: {{ tools | tojson }}" + EOS + "{% endif %}"
    "{% for message in messages %}"
    "<|{{ message['role'] if message['role'] in ['system', 'user', 'assistant', 'tool'] else 'system' }}|>"
    "{% if message['name'] %}{{ message['name'] }}: {% endif %}"
    "{{ message['content'] or '' }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}" + EOS + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_WORDS = (
    "the cat|a river|my sister|the old clock|every student|the engineer|a small bird|the market|our friend",
    "watches|remembers|follows|builds|describes|counts|repairs|paints|answers|carries|questions|measures",
    "the moon|a letter|the bridge|two numbers|the garden|a story|the engine|some bread|the answer|a map",
    "in the morning|by the sea|after the rain|near the station|without a word|for the third time|at night",
)


@dataclass(frozen=True)
class Shape:
    """What the model is like. `sharpness` is the standard deviation of its logits: the larger, the wider the gaps."""

    seed: int = 0
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 688
    vocabulary: int = 1024
    positions: int = 2048
    sharpness: float = 4.0

    def wider(self, hidden: int) -> Shape:
        """The same with another width, the feed-forward part in proportion. Raises ValueError where heads don't fit."""
        unit = 4 * self.heads
        if hidden % unit:
            raise ValueError(f"the width should be a multiple of {unit}, not {hidden}")
        return replace(self, hidden=hidden, intermediate=hidden * self.intermediate // self.hidden)


def write(directory: Path, shape: Shape | None = None) -> Path:
    """Write config, weights in float32, tokenizer, chat template and generation defaults. Returns the directory.

    About 3.5 million parameters in the default shape. An existing model there is replaced, file by file.
    """
    from safetensors.torch import save_file

    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(shape.vocabulary)
    tokenizer.save(str(directory / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in (BOS, EOS)}
    _json(directory / "tokenizer_config.json", _tokenizer_config(shape))
    _json(directory / "config.json", _config(shape, ids))
    _json(
        directory / "generation_config.json",
        {"_from_model_config": True, "bos_token_id": ids[BOS], "eos_token_id": ids[EOS]},
    )
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    temporary = directory / "model.safetensors.partial"
    save_file(_weights(shape), str(temporary), metadata={"format": "pt"})
    temporary.rename(directory / "model.safetensors")
    return directory


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _config(shape: Shape, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
        "torch_dtype": "float32",
    }


def _tokenizer_config(shape: Shape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": shape.positions,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }


def _corpus() -> list[str]:
    """A few thousand plain sentences, always the same."""
    choose = random.Random(20240229)
    lines = []
    for _ in range(4000):
        words = [choose.choice(part.split("|")) for part in _WORDS]
        sentence = " ".join(words)
        lines.append(f"{sentence[0].upper()}{sentence[1:]}, {choose.randrange(1000)} times.")
    return lines


def _tokenizer(vocabulary: int) -> Any:
    """Byte-level BPE without a normaliser: every text comes back as it went in."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _weights(shape: Shape) -> dict[str, Any]:
    """Tensors by their name in transformers. Deviations keep the residual stream near 1 through all layers."""
    import torch

    generator = torch.Generator().manual_seed(shape.seed)
    head = shape.hidden // shape.heads

    def normal(rows: int, columns: int, deviation: float) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.float32).normal_(0.0, deviation, generator=generator)

    wide = 1.0 / math.sqrt(shape.hidden)
    weights: dict[str, Any] = {"model.embed_tokens.weight": normal(shape.vocabulary, shape.hidden, 1.0)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        weights[f"{name}.input_layernorm.weight"] = torch.ones(shape.hidden)
        weights[f"{name}.self_attn.q_proj.weight"] = normal(shape.heads * head, shape.hidden, 1.5 * wide)
        weights[f"{name}.self_attn.k_proj.weight"] = normal(shape.kv_heads * head, shape.hidden, 1.5 * wide)
        weights[f"{name}.self_attn.v_proj.weight"] = normal(shape.kv_heads * head, shape.hidden, wide)
        weights[f"{name}.self_attn.o_proj.weight"] = normal(shape.hidden, shape.heads * head, wide)
        weights[f"{name}.post_attention_layernorm.weight"] = torch.ones(shape.hidden)
        weights[f"{name}.mlp.gate_proj.weight"] = normal(shape.intermediate, shape.hidden, wide)
        weights[f"{name}.mlp.up_proj.weight"] = normal(shape.intermediate, shape.hidden, wide)
        weights[f"{name}.mlp.down_proj.weight"] = normal(
            shape.hidden, shape.intermediate, 1.0 / math.sqrt(shape.intermediate)
        )
    weights["model.norm.weight"] = torch.ones(shape.hidden)
    weights["lm_head.weight"] = normal(shape.vocabulary, shape.hidden, shape.sharpness * wide)
    return weights
