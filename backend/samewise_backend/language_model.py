"""A causal language model of transformers, one sequence a forward pass.

Alone, a sequence always takes the same kernels with the same shapes; in a batch it would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

Layers = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Keys and values of each layer, of shape [1, heads, tokens, head size]."""


@dataclass
class Context:
    """The keys and values of one sequence; `length` tokens of it are in there."""

    cache: Any = None
    length: int = 0
    tokens: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Sequence[Layers], tokens: Sequence[int]) -> Context:
        """A context of pieces that follow each other; it shares no memory with them."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for at in range(len(pieces[0])):
            keys, values = (torch.cat([piece[at][side] for piece in pieces], dim=-2) for side in (0, 1))
            cache.update(keys, values, at)
        return cls(cache, len(tokens), list(tokens))

    def cut(self, start: int, stop: int) -> Layers:
        """Copies of the keys and values of these tokens."""
        return tuple(
            (layer.keys[..., start:stop, :].clone(), layer.values[..., start:stop, :].clone())
            for layer in self.cache.layers
        )


def size_of(layers: Layers) -> int:
    """Bytes."""
    return sum(side.numel() * side.element_size() for layer in layers for side in layer)


class PrefixReuse(Protocol):
    """Keys and values of prompts computed before. `salt` separates requests that must not share.

    What is found must end where the engine would have ended a piece of the prompt, so that it goes on with the same
    shapes.
    """

    def find(self, tokens: Sequence[int], salt: str | None) -> Context | None:
        """A context whose tokens are a proper prefix of these; the caller owns it."""
        ...

    def keep(self, context: Context, salt: str | None) -> None:
        """A prompt was computed, and nothing after it; what is kept must not change with the caller's context."""
        ...


class NoReuse:
    """Every prompt is computed."""

    def find(self, tokens: Sequence[int], salt: str | None) -> Context | None:
        return None

    def keep(self, context: Context, salt: str | None) -> None:
        return None


class LanguageModel:
    """Weights and tokenizer of one folder. Only one thread may call `forward`."""

    def __init__(self, directory: Path, *, dtype: torch.dtype, device: str, attention: str = "sdpa") -> None:
        """Read everything from the folder. Raises OSError or ValueError where it is no such model."""
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.directory = directory
        self.device = device
        self.dtype = dtype
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
        if not hasattr(self.tokenizer, "backend_tokenizer"):
            raise ValueError(f"{directory} has no fast tokenizer (tokenizer.json)")
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(directory), dtype=dtype, attn_implementation=attention, local_files_only=True
        )
        self._model: Any = model.to(device).eval()
        config = self._model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.positions = int(getattr(config, "max_position_embeddings", 0) or 2048)
        self.attention = str(self._model.config._attn_implementation)

    @property
    def fast(self) -> Any:
        """The `tokenizers.Tokenizer` below."""
        return self.tokenizer.backend_tokenizer

    @torch.no_grad()
    def forward(self, context: Context, tokens: Sequence[int], *, every: bool = False) -> torch.Tensor:
        """Append tokens to a context; logits in float32 on the CPU, of shape [vocabulary] after the last token,
        or [len(tokens), vocabulary] after each with `every`."""
        from transformers import DynamicCache

        if context.cache is None:
            context.cache = DynamicCache()
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.device)
        result = self._model(
            input_ids=ids,
            past_key_values=context.cache,
            use_cache=True,
            logits_to_keep=0 if every else 1,
        )
        context.length += len(tokens)
        context.tokens.extend(tokens)
        logits: torch.Tensor = result.logits[0].to(device="cpu", dtype=torch.float32, copy=True)
        return logits if every else logits[-1]
