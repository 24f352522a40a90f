"""From a request's body to what the engine runs, with vLLM's rules for values (sampling_params.py, protocol.py)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from samewise_backend.sampler import Sampling

Endpoint = Literal["chat", "completions"]

MAX_CANDIDATES = 20
MAX_CHOICES = 16384
_INT64 = 2**63
_UNSUPPORTED = ("suffix", "use_beam_search", "structured_outputs", "prompt_logprobs", "prompt_embeds", "bad_words")


class Refused(Exception):
    """The request can't be answered: an HTTP status, and a message for `{"error": ...}`."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status

    def body(self) -> bytes:
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(self.status, "InternalServerError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True)
class Limits:
    """What the model allows. `special` says which of the tokenizer's ids end an answer."""

    model: str
    length: int
    vocabulary: int
    eos: frozenset[int]
    defaults: Mapping[str, Any]
    encode: Callable[[str], list[int]]
    template: Callable[[list[dict[str, Any]], Mapping[str, Any]], list[int]]


@dataclass(frozen=True)
class Request:
    """A request, understood: for each prompt, `samplings` has one entry a choice. `logprobs` counts candidates."""

    endpoint: Endpoint
    prompts: tuple[tuple[int, ...], ...]
    samplings: tuple[Sampling, ...]
    max_tokens: tuple[int, ...]
    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
    include_stop: bool
    ignore_eos: bool
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool
    return_ids: bool
    ids_as_tokens: bool
    skip_special: bool
    salt: str | None


def decode(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises Refused."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def parse(endpoint: Endpoint, body: Mapping[str, Any], limits: Limits, entropy: Callable[[], int]) -> Request:
    """Raises Refused with the name of the member at fault. `entropy` gives a seed to a request without one."""
    check_model(body.get("model"), limits)
    read = _Reader(body)
    for name in _UNSUPPORTED:
        if body.get(name):
            raise Refused(f"{name} is not supported by the reference engine", name)
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") != "text":
        raise Refused("response_format is not supported by the reference engine", "response_format")
    stream = read.flag("stream")
    options = body.get("stream_options")
    if options is not None and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.", "stream_options")
    echo = endpoint == "completions" and read.flag("echo")
    prompts = _chat_prompt(body, limits) if endpoint == "chat" else _prompts(body, limits)
    include_stop = read.flag("include_stop_str_in_output")
    ignore_eos = read.flag("ignore_eos")
    stop_tokens = frozenset(read.tokens("stop_token_ids", limits.vocabulary))
    sampling = _sampling(read, limits, entropy, limits.eos | stop_tokens)
    most = tuple(_max_tokens(endpoint, read, len(prompt), limits, echo) for prompt in prompts)
    for one in most:
        if sampling.min_tokens > one:
            raise Refused(f"min_tokens must be less than or equal to max_tokens={one}", "min_tokens")
    return Request(
        endpoint=endpoint,
        prompts=prompts,
        samplings=_choices(read, sampling),
        max_tokens=most,
        stops=_stops(body.get("stop")),
        stop_tokens=stop_tokens,
        include_stop=include_stop,
        ignore_eos=ignore_eos,
        logprobs=_logprobs(endpoint, read),
        echo=echo,
        stream=stream,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        return_ids=read.flag("return_token_ids"),
        ids_as_tokens=read.flag("return_tokens_as_token_ids"),
        skip_special=read.flag("skip_special_tokens", True),
        salt=body.get("cache_salt") if isinstance(body.get("cache_salt"), str) else None,
    )


def check_model(name: Any, limits: Limits) -> None:
    """Raises Refused (404) for a model that isn't served; no name means the one that is."""
    if name is not None and name != limits.model:
        raise Refused(f"The model `{name}` does not exist. Valid aliases: {limits.model}.", "model", 404)


class _Reader:
    """Members of a body by type; null is absent. Raises Refused."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Refused(f"{name} must be true or false", name)
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused(f"{name} must be an integer", name)
        return value

    def number(self, name: str, default: float, allowed: Callable[[float], bool], range_text: str) -> float:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Refused(f"{name} must be a number", name)
        if not math.isfinite(value) or not allowed(value):
            raise Refused(f"{name} must be {range_text}, got {value}.", name)
        return float(value)

    def tokens(self, name: str, vocabulary: int) -> list[int]:
        value = self._body.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            raise Refused(f"{name} must be a list of token ids", name)
        if any(not 0 <= one < vocabulary for one in value):
            raise Refused(f"{name} holds a token id outside of the vocabulary of {vocabulary}", name)
        return value

    def biases(self, vocabulary: int) -> tuple[tuple[int, float], ...]:
        value = self._body.get("logit_bias")
        if value is None:
            return ()
        try:
            pairs = {int(token): min(100.0, max(-100.0, float(bias))) for token, bias in value.items()}
        except (AttributeError, TypeError, ValueError):
            raise Refused("logit_bias must map token ids to numbers", "logit_bias") from None
        if any(not 0 <= token < vocabulary for token in pairs):
            raise Refused(f"logit_bias holds a token id outside of the vocabulary of {vocabulary}", "logit_bias")
        return tuple(sorted(pairs.items()))


def _sampling(read: _Reader, limits: Limits, entropy: Callable[[], int], hold_back: frozenset[int]) -> Sampling:
    defaults = limits.defaults
    seed = read.integer("seed")
    if seed is not None and not -_INT64 <= seed < _INT64:
        raise Refused("seed must fit into 64 bits", "seed")
    top_k = read.integer("top_k", int(defaults["top_k"]))
    if top_k is None or top_k < -1:
        raise Refused(f"top_k must be 0 (disable), or at least 1, got {top_k}.", "top_k")
    min_tokens = read.integer("min_tokens", 0) or 0
    if min_tokens < 0:
        raise Refused(f"min_tokens must be greater than or equal to 0, got {min_tokens}.", "min_tokens")

    def penalty(name: str) -> float:
        return read.number(name, float(defaults[name]), lambda value: -2 <= value <= 2, "in [-2, 2]")

    return Sampling(
        seed=entropy() if seed is None or seed == -1 else seed,
        temperature=read.number(
            "temperature", float(defaults["temperature"]), lambda value: 0 <= value <= 2, "in [0, 2]"
        ),
        top_p=read.number("top_p", float(defaults["top_p"]), lambda value: 0 < value <= 1, "in (0, 1]"),
        top_k=max(top_k, 0),
        min_p=read.number("min_p", float(defaults["min_p"]), lambda value: 0 <= value <= 1, "in [0, 1]"),
        presence_penalty=penalty("presence_penalty"),
        frequency_penalty=penalty("frequency_penalty"),
        repetition_penalty=read.number(
            "repetition_penalty", float(defaults["repetition_penalty"]), lambda value: value > 0, "greater than zero"
        ),
        logit_bias=read.biases(limits.vocabulary),
        allowed=tuple(read.tokens("allowed_token_ids", limits.vocabulary)),
        min_tokens=min_tokens,
        hold_back=tuple(sorted(hold_back)),
    )


def _choices(read: _Reader, sampling: Sampling) -> tuple[Sampling, ...]:
    """Choice i is what n = 1 with seed + i gives, as in vLLM."""
    count = read.integer("n", 1) or 0
    if not 1 <= count <= MAX_CHOICES:
        raise Refused(f"n must be between 1 and {MAX_CHOICES}, got {count}.", "n")
    if count > 1 and sampling.greedy:
        raise Refused(f"n must be 1 when using greedy sampling, got {count}.", "n")
    return tuple(replace(sampling, seed=sampling.seed + index) for index in range(count))


def _max_tokens(endpoint: Endpoint, read: _Reader, prompt: int, limits: Limits, echo: bool) -> int:
    room = limits.length - prompt
    if room < 0 or (room < 1 and not echo):
        raise Refused(f"the prompt has {prompt} tokens, the model's length is {limits.length}", "prompt")
    default = limits.defaults.get("max_tokens")
    if endpoint == "chat":
        wanted = read.integer("max_completion_tokens")
        if wanted is None:
            wanted = read.integer("max_tokens", default)
    else:
        wanted = read.integer("max_tokens", 16)
    if wanted is None:
        return room
    if wanted < (0 if echo else 1):
        raise Refused(f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
    if wanted > room:
        raise Refused(
            f"max_tokens={wanted} is too large: the prompt has {prompt} tokens, the model's length is {limits.length}",
            "max_tokens",
        )
    return wanted


def _logprobs(endpoint: Endpoint, read: _Reader) -> int | None:
    if endpoint == "completions":
        wanted, name = read.integer("logprobs"), "logprobs"
    else:
        wanted, name = read.integer("top_logprobs"), "top_logprobs"
        if not read.flag("logprobs"):
            if wanted:
                raise Refused("when using `top_logprobs`, `logprobs` must be set to true.", name)
            return None
        wanted = wanted or 0
    if wanted is not None and not 0 <= wanted <= MAX_CANDIDATES:
        raise Refused(f"{name} must be between 0 and {MAX_CANDIDATES}, got {wanted}", name)
    return wanted


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise Refused("stop must be a string or a list of strings", "stop")
    if any(not one for one in stops):
        raise Refused("stop cannot contain an empty string.", "stop")
    return tuple(stops)


def _prompts(body: Mapping[str, Any], limits: Limits) -> tuple[tuple[int, ...], ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise Refused("prompt must be a text, a list of token ids, or a list of either", "prompt")
    if all(isinstance(one, int) and not isinstance(one, bool) for one in prompt):
        prompt = [prompt]
    return tuple(_tokens(one, limits) for one in prompt)


def _tokens(prompt: Any, limits: Limits) -> tuple[int, ...]:
    if isinstance(prompt, str):
        tokens = limits.encode(prompt)
    elif isinstance(prompt, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in prompt):
        tokens = prompt
    else:
        raise Refused("prompt must be a text, a list of token ids, or a list of either", "prompt")
    if not tokens:
        raise Refused("prompt must not be empty", "prompt")
    if any(not 0 <= one < limits.vocabulary for one in tokens):
        raise Refused(f"prompt holds a token id outside of the vocabulary of {limits.vocabulary}", "prompt")
    return tuple(tokens)


def _chat_prompt(body: Mapping[str, Any], limits: Limits) -> tuple[tuple[int, ...], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list that is not empty", "messages")
    choice = body.get("tool_choice")
    if choice not in {None, "none", "auto"} if isinstance(choice, str | None) else True:
        raise Refused("tool_choice is not supported by the reference engine beyond none and auto", "tool_choice")
    return (tuple(limits.template([_message(one) for one in messages], body)),)


def _message(message: Any) -> dict[str, Any]:
    """A message whose content is one text. Raises Refused for anything that isn't text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refused("every message needs a role", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(one) for one in content)
    elif content is not None and not isinstance(content, str):
        raise Refused("content must be a text or a list of text parts", "messages")
    return {**message, "content": content}


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") in {"text", "input_text"} and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Refused("only text parts are supported by the reference engine", "messages")


def prompt_of(body: Mapping[str, Any], limits: Limits) -> Sequence[int]:
    """The tokens of a `/tokenize` body: `prompt` or `messages`. Raises Refused."""
    return _chat_prompt(body, limits)[0] if "messages" in body else _prompts(body, limits)[0]
