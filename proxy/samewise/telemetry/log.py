"""Log lines on stderr, as text or JSON; written by a thread of their own, so that a stuck pipe holds up nobody."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from time import monotonic
from typing import Any, Literal, TextIO

Level = Literal["debug", "info", "warning", "error"]
INTERVAL = 30.0
_GRACE = 2.0


class Repeats:
    """Says each thing once an interval. Remembers at most `remember` things."""

    def __init__(
        self, interval: float = INTERVAL, *, clock: Callable[[], float] = monotonic, remember: int = 256
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._remember = remember
        self._last: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def say(self, what: str) -> int | None:
        """None where it was said within the interval, else how often it happened unsaid since."""
        now = self._clock()
        last = self._last.get(what)
        if last is not None and now - last[0] < self._interval:
            self._last[what] = (last[0], last[1] + 1)
            return None
        self._last[what] = (now, 0)
        self._last.move_to_end(what)
        if len(self._last) > self._remember:
            self._last.popitem(last=False)
        return last[1] if last is not None else 0


class Log:
    """A logger with fields: `log.info("the store is back", tier="store")`."""

    def __init__(self, logger: logging.Logger, repeats: Repeats | None = None) -> None:
        self._logger = logger
        self._repeats = repeats or Repeats()

    def debug(self, message: str, /, **fields: Any) -> None:
        self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, /, **fields: Any) -> None:
        self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, /, **fields: Any) -> None:
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, /, **fields: Any) -> None:
        self._logger.error(message, extra={"fields": fields})

    def seldom(self, what: str, message: str, /, **fields: Any) -> None:
        """A warning, once an interval for each `what`; it tells how many were left out."""
        unsaid = self._repeats.say(what)
        if unsaid is not None:
            self.warning(message, **({**fields, "repeated": unsaid} if unsaid else fields))

    @property
    def verbose(self) -> bool:
        return self._logger.isEnabledFor(logging.DEBUG)


def start(
    form: Literal["text", "json"] = "text", level: Level = "info", stream: TextIO | None = None
) -> Callable[[], None]:
    """Send all log lines of this process to `stream` (stderr). Returns what ends it.

    The end waits for the last line to be out, but for no more than two seconds.
    """
    output = _Quiet(stream or sys.stderr)
    output.setFormatter(_Json() if form == "json" else _Text())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(10_000)
    listener = QueueListener(waiting, output)
    handler = _Dropping(waiting)
    handler.addFilter(_Libraries(Repeats()))
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    listener.start()

    def end() -> None:
        with contextlib.suppress(queue.Full):
            listener.stop()

    def stop() -> None:
        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        ending.join(_GRACE)
        root.setLevel(before[0])
        root.handlers[:] = before[1]

    return stop


class _Quiet(logging.StreamHandler[TextIO]):
    """Where the reader is gone there is nobody to tell that the reader is gone."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Dropping(QueueHandler):
    """Lines that find no room are lost."""

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            return

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Put the message together here, where its arguments are still what they were."""
        record.message = record.getMessage()
        record.msg, record.args = record.message, None
        return record


class _Libraries(logging.Filter):
    """A library that repeats itself (an exporter whose collector is down) is heard once an interval."""

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("opentelemetry"):
            return True
        if record.levelno < logging.WARNING:
            return False
        unsaid = self._repeats.say("opentelemetry")
        if unsaid is None:
            return False
        record.msg = f"telemetry can't be exported: {record.getMessage()}"
        record.args = None
        record.exc_info = None
        return True


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower()} {record.name}: {_line(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return {name: value for name, value in fields.items() if value is not None} if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = text and all(character.isprintable() and character not in ' "=' for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _line(text: str) -> str:
    """One line, whatever it was made of."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
