"""Commands by name and help alone, so that none pays for what another needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class Lazy(click.Command):
    """Stands for a command (or group) of a module until it is called or asked for help."""

    def __init__(self, name: str, module: str, help_line: str, *, attribute: str = "command") -> None:
        super().__init__(name, short_help=help_line, help=help_line, add_help_option=False)
        self._module = module
        self._attribute = attribute

    def load(self) -> click.Command:
        """The command itself."""
        command: click.Command = getattr(import_module(self._module), self._attribute)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.command.invoke(ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return self.load().get_params(ctx)


def _of(module: str, name: str, help_line: str) -> Lazy:
    return Lazy(name, f"samewise.cli.{module}", help_line, attribute=name)


commands: tuple[click.Command, ...] = (
    _of("demo", "demo", "A small local model, the reference backend and the proxy, ready to use."),
    _of("keys", "explain", "Every part of a request's key, and why it is (not) cacheable."),
    _of("keys", "diff", "The parts in which the keys of two requests differ."),
    _of("acceptance", "verify", "Repeat prompts past the cache; whether all answers agree."),
    _of("doctor", "doctor", "What is wrong with the settings, the store, the upstreams; what to do about it."),
    _of("entries", "invalidate", "Forget answers: all, or those of a model, environment, tenant, profile, tag or key."),
    _of("entries", "entry", "Show or delete one recorded answer."),
    _of("profiles", "profiles", "Sampling profiles: list, show, set, canary, promote, roll back."),
    _of("backends", "environments", "What each upstream is, and which environment is active."),
    _of("backends", "upstreams", "The backends behind the proxy."),
    _of("tenants", "keys", "Clients' API keys: list, new, revoke."),
    _of("divergences", "divergences", "Recomputations that did not agree with what was served."),
    _of("receipts", "receipts", "What was answered, that the log is whole, and whether the backend still gives it."),
    _of("live", "stats", "Hit rate, savings and health, once or live."),
    _of("live", "tail", "Requests as they happen, with outcome and reason."),
    _of("transfer", "export", "Recorded answers into a file, for another proxy or for later."),
    Lazy("import", "samewise.cli.transfer", "Take the recorded answers of a file.", attribute="import_"),
    _of("live", "config", "The settings in effect, secrets masked."),
)
"""What `samewise` offers beside `serve`."""
