"""Options that many commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from samewise.cli.client import Admin

DEFAULT_ADMIN = "http://127.0.0.1:8081"


def admin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command an `Admin` first, from `--admin`, SAMEWISE_ADMIN_URL and SAMEWISE_ADMIN_TOKEN."""

    @click.option(
        "--admin",
        "admin_url",
        metavar="URL",
        envvar="SAMEWISE_ADMIN_URL",
        default=DEFAULT_ADMIN,
        show_default=True,
        show_envvar=True,
        help="Admin port of the proxy; its token is read from SAMEWISE_ADMIN_TOKEN.",
    )
    @click.option("--admin-token", envvar="SAMEWISE_ADMIN_TOKEN", default="", hidden=True)
    @functools.wraps(function)
    def wrapped(*args: Any, admin_url: str, admin_token: str, **options: Any) -> Any:
        return function(Admin(admin_url or DEFAULT_ADMIN, admin_token), *args, **options)

    return wrapped


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
