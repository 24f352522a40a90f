"""Sizes, times and shares as people write them, and addresses as the product takes them."""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

_SIZES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SIZES[f"{_letter}b"] = 1000**_power
    _SIZES[f"{_letter}ib"] = 1024**_power
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

_NUMBER = r"\d+(?:\.\d+)?"
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_TIME = re.compile(rf"(?:{_NUMBER}\s*(?:us|ms|s|m|h|d|w)\s*)+", re.IGNORECASE | re.ASCII)
_TIME_PART = re.compile(rf"({_NUMBER})\s*(us|ms|s|m|h|d|w)", re.IGNORECASE | re.ASCII)
_SHARE = re.compile(rf"({_NUMBER})\s*%", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

MAX_SIZE = 2**50
LEAST_SEGMENT = 64 << 10
MAX_TIME = 3650 * 86400.0

STORE_SCHEMES = (
    "memory",
    "sqlite",
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)


def size(value: object) -> int:
    """Bytes: `"32MiB"` (1024s), `"32MB"` (1000s), `"4096"` or a whole number. ValueError says what it should be."""
    wanted = 'should be a size, such as "32MiB", "500KB" or a number of bytes'
    number: float
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2].lower() not in _SIZES:
            raise ValueError(wanted)
        number = float(match[1]) * _SIZES[match[2].lower()]
    else:
        number = _number(value, wanted)
    if not 0 <= number <= MAX_SIZE:
        raise ValueError(f"{wanted}, between 0 and 1024TiB")
    if number != int(number) and not isinstance(value, str):
        raise ValueError(wanted)
    return int(number)


def seconds(value: object) -> float:
    """Seconds: `"100ms"`, `"10m"`, `"1h30m"`, `"600"` or a number. ValueError says what it should be."""
    wanted = 'should be a time, such as "100ms", "30s", "10m", "1h", "30d" or a number of seconds'
    number: float
    if isinstance(value, str):
        text = value.strip()
        if _TIME.fullmatch(text):
            number = sum(float(part) * _TIMES[unit.lower()] for part, unit in _TIME_PART.findall(text))
        else:
            number = _number(text, wanted)
    else:
        number = _number(value, wanted)
    if not 0 <= number <= MAX_TIME:
        raise ValueError(f"{wanted}, between 0 and 3650d")
    return number


def memory(value: object) -> int:
    """Bytes, or `"20%"`: a share of the memory that this machine or container has."""
    match = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        try:
            return size(value)
        except ValueError as error:
            raise ValueError(str(error).replace("a size, such as", 'a size, such as "20%" of memory,')) from None
    share = float(match[1])
    if not 0 <= share <= 100:
        raise ValueError('should be a share of memory between "0%" and "100%"')
    return int(total_memory() * share / 100)


def segment(size: int) -> int:
    """Bytes of a segment: none, or so many that a value has few of them. Raises ValueError."""
    if 0 < size < LEAST_SEGMENT:
        raise ValueError(f"should be 0 or at least {LEAST_SEGMENT // 1024}KiB")
    return size


def spelt(time: float) -> str:
    """Seconds as a person would write them: `30d`, `90s`, `100ms`."""
    for unit in ("d", "h", "m", "s"):
        if time and time % _TIMES[unit] == 0:
            return f"{int(time / _TIMES[unit])}{unit}"
    return f"{time * 1000:g}ms" if 0 < time < 1 else f"{time:g}s"


def name(value: str) -> str:
    """A word that fits into a path and a store's keys."""
    if not _NAME.fullmatch(value):
        raise ValueError('should be 1 to 64 letters, digits, ".", "_" or "-"')
    return value


def name_or_empty(value: str) -> str:
    return name(value) if value else value


def digest(value: str) -> str:
    """64 hex digits in lower case."""
    if not _DIGEST.fullmatch(value):
        raise ValueError("should be the 64 hex digits of the SHA-256 of the key")
    return value.lower()


def total_memory() -> int:
    """Bytes of memory that this process may use: the container's limit, else what the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return min(machine, int(text))
    return machine


def http_url(value: str) -> str:
    """An http or https URL, or nothing."""
    if value:
        wanted = 'should be empty or a URL, such as "http://127.0.0.1:4318"'
        parts = _split(value, wanted)
        if parts.scheme not in ("http", "https"):
            raise ValueError(wanted)
        _host_and_port(parts, wanted)
    return value


def hook(value: str) -> str:
    """Whom to tell: an http or https URL, a command line as a shell would split it, or nothing."""
    wanted = 'should be empty, a URL, such as "http://127.0.0.1:9000/alert", or a command line'
    if "://" in value.partition(" ")[0]:
        try:
            return http_url(value)
        except ValueError:
            raise ValueError(wanted) from None
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if value and not words:
        raise ValueError(wanted)
    return value


def store_url(value: str) -> str:
    """Where entries are kept; the scheme names the kind of store."""
    wanted = f"should begin with one of {', '.join(f'{scheme}://' for scheme in STORE_SCHEMES)}"
    scheme, separator, rest = value.strip().partition("://")
    if not separator or scheme not in STORE_SCHEMES:
        raise ValueError(wanted)
    location = rest.partition("?")[0]
    netloc, _, path = location.partition("/")
    if scheme == "sqlite":
        if netloc or not path:
            raise ValueError('should be "sqlite:///PATH", with three slashes (four for an absolute path)')
    elif scheme != "memory":
        for host in netloc.rpartition("@")[2].split(","):
            _redis_host(host)
        if scheme.endswith("+sentinel") and not path.partition("/")[0]:
            raise ValueError('should name the service, such as "redis+sentinel://host:26379,host:26379/mymaster"')
    return value.strip()


def _redis_host(host: str) -> None:
    name, port = host, ""
    if not host.endswith("]"):
        head, separator, tail = host.rpartition(":")
        if separator:
            name, port = head, tail
            if not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError('should name hosts and ports, such as "redis://127.0.0.1:6379/0"')
    if not name:
        raise ValueError('should name a host, such as "redis://127.0.0.1:6379/0"')


def _number(value: object, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(wanted)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(wanted) from None
    if math.isnan(number):
        raise ValueError(wanted)
    return number


def _split(value: str, wanted: str) -> SplitResult:
    try:
        return urlsplit(value.strip())
    except ValueError:
        raise ValueError(wanted) from None


def _host_and_port(parts: SplitResult, wanted: str) -> None:
    try:
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named = False
    if not named or any(character.isspace() for character in parts.geturl()):
        raise ValueError(wanted)
