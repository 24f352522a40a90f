"""Where a path of the API lies on an upstream."""

from __future__ import annotations

from yarl import URL

_API = "/v1"


def base_url(url: str) -> str:
    """The base URL in one spelling: no slash at its end. Raises ValueError where it isn't one."""
    text = url.strip().rstrip("/")
    parsed = URL(text)
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"an upstream is a URL like http://127.0.0.1:8000/v1, not {url!r}")
    if parsed.query_string or parsed.fragment:
        raise ValueError(f"an upstream's URL has no query and no fragment: {url!r}")
    return text


def root_url(base: str) -> str:
    """The server's root: the base without its `/v1`."""
    return base.removesuffix(_API)


def locate(base: str, path: str) -> URL:
    """The URL of `path` (with its leading slash, `/v1` included, query allowed), spelled as it came.

    A base that doesn't end in `/v1` stands where `/v1` would, as it does for an OpenAI client.
    """
    versioned = base.endswith(_API)
    if not versioned and (path == _API or path.startswith((_API + "/", _API + "?"))):
        path = path[len(_API) :]
    return URL(root_url(base) + path, encoded=True)
