"""What was asked and answered, for observers that are to be told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samewise.core.answer import Answer
from samewise.core.families.contract import Output
from samewise.pipeline.ask import Ask
from samewise.pipeline.source import Given, Source
from samewise.ports import Content


def content_of(ask: Ask, sources: Sequence[Source] = ()) -> Content:
    """The question, and of its answer what is whole by the time that somebody looks."""

    def outputs() -> list[Output]:
        return [output for answer in _answers(sources) for output in ask.family.outputs(answer)]

    return Content(ask.value, outputs)


def _answers(sources: Sequence[Source]) -> Iterator[Answer]:
    for source in sources:
        answer = source.entry.answer if isinstance(source, Given) else source.recording.answer
        if answer is not None and answer.status == 200:
            yield answer
