"""`verify`: whether a backend says the same each time it is asked the same."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from samewise.cli import progress, show
from samewise.cli.client import NO, UNREACHABLE, USAGE, Admin, Fail
from samewise.cli.options import admin, as_json

if TYPE_CHECKING:
    from samewise.core.acceptance import Report
    from samewise.core.prompts import Prompt
    from samewise.pipeline.acceptance import Target
    from samewise.upstream.pool import Pool

DEFAULT_URL = "http://127.0.0.1:8080/v1"
_SHOWN = 20


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in value.split(",") if part.strip().isdecimal())
    if len(numbers) != len(value.split(",")) or not all(0 < number <= 1024 for number in numbers):
        raise click.BadParameter("should be numbers from 1 to 1024 with commas between them, such as 1,8,32")
    return numbers


@click.command()
@click.option(
    "--url",
    metavar="BASE",
    envvar="SAMEWISE_URL",
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="A backend, or the proxy, which is told not to store anything.",
)
@click.option("--model", metavar="M", help="Default: the first that the server lists.")
@click.option("--prompts", "file", metavar="F", help="JSON list of texts or request bodies, instead of ours.")
@click.option("--repeat", type=click.IntRange(2, 10_000), default=50, show_default=True, help="Times for each prompt.")
@click.option("--concurrency", callback=_numbers, default="1,8,32", show_default=True, help="Requests at once.")
@click.option(
    "--each-upstream", is_flag=True, help="Every upstream of the proxy, past it: one environment, one answer."
)
@click.option("--api-key", envvar="OPENAI_API_KEY", default="", show_envvar=True, help="Sent as the bearer token.")
@as_json
@admin
def verify(
    proxy: Admin,
    *,
    url: str,
    model: str | None,
    file: str | None,
    repeat: int,
    concurrency: tuple[int, ...],
    each_upstream: bool,
    api_key: str,
    as_json: bool,
) -> None:
    """Repeat each prompt past the cache; exit code 0 only if all answers to it agree."""
    prompts = _prompts(file)
    urls = _upstreams(proxy) if each_upstream else [url]
    with progress.bar("answers", hidden=as_json) as advance:
        work = _run(urls, api_key, model, prompts, repeat=repeat, concurrency=concurrency, progress=advance)
        report = asyncio.run(work)
    if as_json:
        import msgspec

        show.as_json(msgspec.to_builtins(report))
    else:
        _table(report)
    sys.exit(0 if report.agreed else NO)


async def _run(
    urls: Sequence[str],
    api_key: str,
    model: str | None,
    prompts: Sequence[Prompt],
    *,
    repeat: int,
    concurrency: Sequence[int],
    progress: Callable[[int, int], None],
) -> Report:
    from samewise.pipeline.acceptance import Runner, Target, Unreachable

    engine = _engine(urls, api_key)
    try:
        members = [member.url for member in engine.members()]
        name = model or await _first_model(engine, members[0])
        fields = (("cache-control", "no-store"),)
        targets: list[Target] = [Target(model=name, member=member, headers=fields) for member in members]
        runner = Runner(engine, salt=lambda: secrets.token_hex(16), progress=progress)
        return await runner.run(targets, prompts, repeat=repeat, concurrencies=concurrency)
    except Unreachable as error:
        raise Fail(f"{error}; start it, or name another with --url", UNREACHABLE) from None
    finally:
        await engine.close()


def _engine(urls: Sequence[str], api_key: str) -> Pool:
    from samewise.upstream.factory import open_upstreams
    from samewise.upstream.options import Timeouts, UpstreamOptions

    options = [UpstreamOptions(url=url, api_key=api_key, probe=0) for url in dict.fromkeys(urls)]
    try:
        return open_upstreams(options, Timeouts(), 60.0, _Clock())
    except ValueError as error:
        raise Fail(f"--url: {error}", USAGE) from None


class _Clock:
    """The real time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


async def _first_model(engine: Pool, member: str) -> str:
    from samewise.ports import Call, UpstreamFailed

    try:
        exchange = await engine.open(Call(method="GET", path="/v1/models", member=member, purpose="probe"))
        try:
            listing = json.loads(await exchange.read())
        finally:
            await exchange.close()
        return str(listing["data"][0]["id"])
    except UpstreamFailed as error:
        raise Fail(f"{error}; start it, or name another with --url", UNREACHABLE) from None
    except (ValueError, LookupError, TypeError):
        raise Fail(f"{member} lists no model; name one with --model", USAGE) from None


def _upstreams(proxy: Admin) -> list[str]:
    found = [str(row["url"]) for row in show.items(proxy.get("upstreams")) if row.get("url")]
    if not found:
        raise Fail("the proxy has no upstream", NO)
    return found


def _prompts(file: str | None) -> Sequence[Prompt]:
    from samewise.core import prompts

    if file is None:
        return prompts.shipped()
    try:
        return prompts.read(json.loads(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise Fail(f"{file} can't be read: {error.strerror}", USAGE) from None
    except ValueError as error:
        raise Fail(f"{file}: {error}", USAGE) from None


def _table(report: Report) -> None:
    several = len({row.environment for row in report.rows}) > 1
    rows = [
        (
            row.prompt,
            *((row.environment,) if several else ()),
            row.answers,
            len(row.hashes),
            row.disagreements,
            row.failures,
            "-" if row.closest is None else f"{row.closest:.4f}",
            max(row.hashes, key=lambda name: row.hashes[name], default="-"),
        )
        for row in report.rows
    ]
    columns = ("prompt", *(("environment",) if several else ()), "answers", "hashes", "disagree", "failed", "closest")
    show.table((*columns, "hash"), rows)
    if report.disagreements:
        show.table(
            ("prompt", "differs at", "gap (nats)", "tokens", "at once", "stream", "prefix", "cached tokens", "hash"),
            [
                (
                    each.prompt,
                    each.part if each.position is None else f"{each.unit} {each.position}",
                    "-" if each.gap is None else f"{each.gap:.4f}",
                    " / ".join(repr(token) for token in each.tokens) or "-",
                    each.concurrency,
                    each.stream,
                    "warm" if each.warm else "cold",
                    each.cached_tokens,
                    each.hash,
                )
                for each in report.disagreements[:_SHOWN]
            ],
        )
        if report.disagreed > _SHOWN:
            click.echo(f"and {report.disagreed - _SHOWN} more; --json tells of {len(report.disagreements)}")
    for line in (*report.errors, *report.notes):
        click.echo(show.cell(line))
    click.echo(_verdict(report))


def _verdict(report: Report) -> str:
    prompts = len({row.prompt for row in report.rows})
    what = f"{report.answers} answers to {prompts} prompts of {show.cell(report.model)}"
    if report.agreed:
        return f"{what}: all agree"
    return f"{what}: {report.disagreed} disagree, {report.failures} failed"
