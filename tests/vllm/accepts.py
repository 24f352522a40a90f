"""Which sampling values vLLM accepts; run by an interpreter that has vLLM, with nothing of ours.

Reads a JSON list of objects from stdin, prints a list of true and false. A value has to pass the request class as
well as the sampling parameters, as it would on its way through the server.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # type: ignore[import-not-found]


def accepts(values: dict[str, Any]) -> bool:
    """Whether a completion with these values would be answered."""
    try:
        request = CompletionRequest(model="m", prompt="x", **{"temperature": 0.5, "max_tokens": 16, **values})
        request.to_sampling_params(request.max_tokens, {})
    except Exception:  # pydantic, vLLM and Python have an error each for a wrong value
        return False
    return True


if __name__ == "__main__":
    json.dump([accepts(values) for values in json.load(sys.stdin)], sys.stdout)
