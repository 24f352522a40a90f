"""The command `samewise`: `serve` in one process or several, and what the command line offers beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samewise.cli import commands

if TYPE_CHECKING:
    from samewise.settings import Settings
    from samewise.workers.place import Place

_USAGE = 2
_GENERATIONS = (20_000, 20, 50)


@click.group()
@click.version_option(package_name="samewise")
def main() -> None:
    """A caching deterministic inference proxy for OpenAI-compatible servers."""


for command in commands:
    main.add_command(command)


@main.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file (default: samewise.toml where there is one)."
)
@click.option("--upstream", "upstreams", multiple=True, metavar="URL", help="Base URL of a backend, with its /v1.")
@click.option("--host", help="Address of the data port.")
@click.option("--port", metavar="NUMBER", help="Data port.")
@click.option("--admin-host", help="Address of the admin port.")
@click.option("--admin-port", metavar="NUMBER", help="Admin port.")
@click.option("--store", metavar="URL", help="memory://, sqlite:///PATH, redis://HOST:PORT, ...")
@click.option("--workers", metavar="NUMBER", help="Processes that share the ports.")
@click.option("--log-format", metavar="[text|json]", help="How log lines are written.")
def serve(config: Path | None, upstreams: tuple[str, ...], **flags: Any) -> None:
    """Answer requests until SIGTERM or Ctrl-C."""
    from samewise.settings import SettingsError, load

    names = {
        "host": "server.host",
        "port": "server.port",
        "admin_host": "admin.host",
        "admin_port": "admin.port",
        "store": "store.url",
        "workers": "server.workers",
        "log_format": "telemetry.log_format",
    }
    given: dict[str, Any] = {names[name]: value for name, value in flags.items()}
    if upstreams:
        given["upstreams"] = [{"url": url} for url in upstreams]
    try:
        settings = load(config, given)
        sys.exit(run(settings) if settings.server.workers == 1 else supervise(settings))
    except SettingsError as error:
        click.echo(f"samewise: {error}", err=True)
        sys.exit(_USAGE)


@main.command(hidden=True)
def worker() -> None:
    """One process of several; its supervisor says on stdin what it is to do."""
    from samewise.settings import SettingsError
    from samewise.workers.place import told

    place, settings = told(sys.stdin.buffer)
    try:
        sys.exit(run(settings, place))
    except SettingsError as error:
        click.echo(f"samewise: {error}", err=True)
        sys.exit(_USAGE)


def run(settings: Settings, place: Place | None = None) -> int:
    """Serve in this process until a signal; the exit code. Raises SettingsError. `place`: one of several workers."""
    import uvloop

    from samewise.telemetry import log

    stop_log = log.start(settings.telemetry.log_format, settings.telemetry.log_level)
    try:
        return uvloop.run(_serve(settings) if place is None else _work(settings, place))
    finally:
        stop_log()


def supervise(settings: Settings) -> int:
    """Serve in several processes until a signal; the exit code. Raises SettingsError."""
    from samewise.telemetry import log

    stop_log = log.start(settings.telemetry.log_format, settings.telemetry.log_level)
    try:
        return asyncio.run(_supervise(settings))
    finally:
        stop_log()


async def _supervise(settings: Settings) -> int:
    from samewise.assembly.parts import bind
    from samewise.http import server
    from samewise.settings import flat
    from samewise.telemetry.log import Log
    from samewise.workers.supervisor import Failed, Supervisor, private_folder, shared

    log = Log(logging.getLogger("samewise"))
    host, port = settings.server.host, settings.server.port
    data = [bind(host, port, "[server] port", shared=True)]
    while len(data) < settings.server.workers:
        data.append(bind(host, data[0].getsockname()[1], "[server] port", shared=True))
    admin = bind(settings.admin.host, settings.admin.port, "[admin] port", shared=False)
    url, admin_url = server.url_of(data[0]), server.url_of(admin)
    folder = private_folder()
    supervisor = Supervisor(
        shared(settings, folder),
        command=(sys.executable, "-m", "samewise.main", "worker"),
        data=data,
        admin=admin,
        folder=folder,
        log=log,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)

    def ready() -> None:
        log.info("settings", **flat(settings))
        _tell_ready(url, admin_url)

    try:
        return await supervisor.run(ready)
    except Failed as failed:
        return failed.code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell_ready(url: str, admin_url: str) -> None:
    click.echo(f"samewise: ready on {url} (admin {admin_url})")
    sys.stdout.flush()


async def _serve(settings: Settings) -> int:
    from samewise.assembly.service import running

    stop, hurry = _on_signals()
    async with running(settings) as service:
        _settle()
        _tell_ready(service.url, service.admin_url)
        await stop.wait()
        await service.drain(settings.server.drain, hurry)
    return 0


async def _work(settings: Settings, place: Place) -> int:
    from samewise.assembly.service import running
    from samewise.workers.member import Worker, orphaned, ready

    stop, hurry = _on_signals()
    async with running(settings, Worker(place)) as service:
        _settle()
        ready()
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(orphaned())}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await service.drain(settings.server.drain, hurry)
    return 0


def _settle() -> None:
    """What is there for good is no longer looked through for garbage: a look at all of it stops every request.

    What is new is looked through less often: a request makes hundreds of objects and hardly ever a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GENERATIONS)


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first SIGTERM or SIGINT, and by the next."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop, hurry


if __name__ == "__main__":
    main()
