"""Prints the fields of vLLM's request classes as JSON; run by an interpreter that has vLLM, with nothing of ours.

`{family: {field: [default, ...]}}`: a default for each class that has the field, the word `required` where there is
none, and what can't be written as JSON as its `repr`. Names of classes are those of vLLM's own routes.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, get_args, get_origin

CLASSES = {
    "chat": ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    "completions": ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    "responses": ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
    "messages": ("vllm.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
    "embeddings": ("vllm.entrypoints.pooling.embed.protocol", "EmbeddingRequest"),
    "rerank": ("vllm.entrypoints.pooling.scoring.protocol", "RerankRequest"),
    "score": ("vllm.entrypoints.pooling.scoring.protocol", "ScoreRequest"),
}


def models(kind: Any) -> list[Any]:
    """The pydantic models in a class, a union or an annotated union."""
    if hasattr(kind, "model_fields"):
        return [kind]
    inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return [found for each in inner for found in models(each)]


def default(field: Any) -> Any:
    """What a field is where nobody names it."""
    if field.is_required():
        return "required"
    value = field.default_factory() if field.default_factory is not None else field.default
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


def fields(kind: Any) -> dict[str, list[Any]]:
    """Every field by the name that a client sends, with its defaults."""
    found: dict[str, list[Any]] = {}
    for model in models(kind):
        for name, field in model.model_fields.items():
            told = found.setdefault(field.alias or name, [])
            value = default(field)
            if name != "request_id" and value not in told:
                told.append(value)
    return found


def main() -> None:
    """One JSON object on stdout."""
    told: dict[str, Any] = {}
    for family, (module, name) in CLASSES.items():
        told[family] = fields(getattr(import_module(module), name))
    sampling = {}
    for family in ("chat", "completions", "responses"):
        module, name = CLASSES[family]
        told_privately = getattr(import_module(module), name).__private_attributes__.get("_DEFAULT_SAMPLING_PARAMS")
        sampling[family] = None if told_privately is None else told_privately.default
    json.dump({"version": version("vllm"), "fields": told, "sampling": sampling}, sys.stdout)


if __name__ == "__main__":
    main()
