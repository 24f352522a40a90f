"""What the engine's steps look like on the wire, in vLLM's shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from samewise_backend.engine import Candidate, Chosen, Scored, Step
from samewise_backend.protocol import Request

TokenText = Callable[[int], str]


@dataclass
class Choice:
    """One choice as it grows. `offset` counts characters of the tokens seen so far, as completions report them."""

    index: int
    prompt: tuple[int, ...]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    chosen: list[Chosen | None] = field(default_factory=list)
    finish: str | None = None
    stop: int | str | None = None
    offset: int = 0
    cached: int = 0

    def add(self, step: Step) -> None:
        self.cached = step.cached
        self.text += step.text
        if step.token >= 0:
            self.tokens.append(step.token)
            self.chosen.append(step.chosen)
        self.finish, self.stop = step.finish, step.stop


class Renderer:
    """Bodies of one response. `head` has id, created and model; `decode` turns prompt tokens into text."""

    def __init__(
        self,
        request: Request,
        head: Mapping[str, Any],
        token_text: TokenText,
        decode: Callable[[tuple[int, ...]], str],
        fingerprint: str,
    ) -> None:
        self._request = request
        self._head = dict(head)
        self._fingerprint = fingerprint
        self._decode = decode
        self._text: TokenText = (lambda token: f"token_id:{token}") if request.ids_as_tokens else token_text

    def whole(self, choices: list[Choice], scored: Mapping[int, Scored]) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        chat = self._request.endpoint == "chat"
        body = {
            "id": self._head["id"],
            "object": "chat.completion" if chat else "text_completion",
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": [self._choice(one, scored.get(one.index)) for one in choices],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": self.usage(choices),
            "kv_transfer_params": None,
        }
        if chat:
            body["prompt_logprobs"] = None
            body["prompt_token_ids"] = list(choices[0].prompt) if self._request.return_ids else None
        return body

    def _choice(self, choice: Choice, scored: Scored | None) -> dict[str, Any]:
        request = self._request
        ids = list(choice.tokens) if request.return_ids else None
        ending = {"finish_reason": choice.finish, "stop_reason": choice.stop, "token_ids": ids}
        if request.endpoint == "chat":
            message = {"role": "assistant", "content": choice.text, "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            return {"index": choice.index, "message": message, "logprobs": self._chat_logprobs(choice.chosen), **ending}
        text, chosen, tokens = choice.text, list(choice.chosen), list(choice.tokens)
        if request.echo:
            text = self._decode(choice.prompt) + text
            tokens = [*choice.prompt, *tokens]
            chosen = [*(scored.prompt if scored else [None] * len(choice.prompt)), *chosen]
        choice.offset = 0
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._completion_logprobs(choice, tokens, chosen),
            **ending,
            "prompt_logprobs": None,
            "prompt_token_ids": list(choice.prompt) if request.return_ids else None,
        }

    def first(self, choice: Choice, scored: Scored | None) -> dict[str, Any] | None:
        """The event before any token: the role (chat), the echoed prompt (completions), None where there is neither."""
        request = self._request
        if request.endpoint == "chat":
            one = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            event = self._event([{**one, "finish_reason": None}])
            return event | {"prompt_token_ids": list(choice.prompt)} if request.return_ids else event
        if not request.echo:
            return None
        chosen: list[Chosen | None] = [*(scored.prompt if scored else [None] * len(choice.prompt))]
        one = {
            "index": choice.index,
            "text": self._decode(choice.prompt),
            "logprobs": self._completion_logprobs(choice, list(choice.prompt), chosen),
            "finish_reason": None,
            "stop_reason": None,
        }
        return self._event([one])

    def step(self, choice: Choice, step: Step) -> dict[str, Any]:
        """The event of one token."""
        request = self._request
        ids = {"token_ids": [step.token] if step.token >= 0 else []} if request.return_ids else {}
        if request.endpoint == "chat":
            one: dict[str, Any] = {"index": choice.index, "delta": {"content": step.text}}
            one |= {"logprobs": self._chat_logprobs([step.chosen]), "finish_reason": step.finish}
            one |= {"stop_reason": step.stop} if step.finish is not None else {}
            return self._event([one | ids])
        one = {"index": choice.index, "text": step.text}
        one["logprobs"] = self._completion_logprobs(choice, [step.token], [step.chosen]) if step.token >= 0 else None
        one |= {"finish_reason": step.finish, "stop_reason": step.stop}
        if request.return_ids:
            one["prompt_token_ids"] = list(choice.prompt) if len(choice.tokens) == 1 else None
        return self._event([one | ids])

    def last(self, choices: list[Choice]) -> dict[str, Any]:
        """The event with the usage, which has no choices."""
        return self._event([]) | {"usage": self.usage(choices), "system_fingerprint": self._fingerprint}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._request.endpoint == "chat" else "text_completion"
        head = self._head
        return {
            "id": head["id"],
            "object": kind,
            "created": head["created"],
            "model": head["model"],
            "choices": choices,
        }

    def usage(self, choices: list[Choice]) -> dict[str, Any]:
        """Each prompt counts once, whatever n is, and its cached tokens as its first choice found them."""
        request = self._request
        prompt = sum(map(len, request.prompts))
        cached = sum(one.cached for one in choices[:: len(request.samplings)])
        generated = sum(len(one.tokens) for one in choices)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _chat_logprobs(self, chosen: list[Chosen | None]) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        return {
            "content": [
                {
                    **self._entry(Candidate(one.token, one.logprob)),
                    "top_logprobs": [self._entry(candidate) for candidate in one.top],
                }
                for one in chosen
                if one is not None
            ]
        }

    def _entry(self, candidate: Candidate) -> dict[str, Any]:
        text = self._text(candidate.token)
        return {"token": text, "logprob": candidate.logprob, "bytes": list(text.encode())}

    def _completion_logprobs(
        self, choice: Choice, tokens: list[int], chosen: list[Chosen | None]
    ) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        texts = [self._text(token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(choice.offset)
            choice.offset += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [None if one is None else one.logprob for one in chosen],
            "tokens": texts,
            "top_logprobs": [None if one is None else self._candidates(one) for one in chosen],
        }

    def _candidates(self, chosen: Chosen) -> dict[str, float]:
        own = {self._text(chosen.token): chosen.logprob}
        return own | {self._text(one.token): one.logprob for one in chosen.top}
