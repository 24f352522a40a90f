"""Where a path of the API lies on an upstream."""

from __future__ import annotations

from yarl import URL

_API = "/v1"


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
