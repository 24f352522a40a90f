"""Starts the workers, starts those that die again, and ends when all have ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from samewise.settings import Settings, SettingsError
from samewise.telemetry.log import Log
from samewise.workers.leases import Desk
from samewise.workers.place import Place, desk, tell

READY = b"ready\n"
"""What a worker writes on its stdout when it accepts requests."""
_LINGER = 5.0
_SOON = 1.0
_LONGEST = 5.0
_SHORT_PATH = 80


class Failed(Exception):
    """A worker ended before it was ready for the first time. `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Supervisor:
    """`data` are listening sockets of one port, one a worker; `admin` goes to the first.

    They stay open here: what connects while a worker is away waits for its successor.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        command: Sequence[str],
        data: Sequence[socket.socket],
        admin: socket.socket,
        folder: Path,
        log: Log,
        output: TextIO = sys.stdout,
    ) -> None:
        self._settings = settings
        self._command = command
        self._data = data
        self._admin = admin
        self._folder = folder
        self._log = log
        self._output = output
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._codes: dict[int, int] = {}
        self._stopping = asyncio.Event()

    async def run(self, ready: Callable[[], None]) -> int:
        """Serve until `stop`; the exit code. `ready` is called when all workers are. Raises Failed."""
        leases = Desk()
        await leases.open(desk(self._folder))
        tasks: list[asyncio.Task[None]] = []
        try:
            for indices in ([0], range(1, len(self._data))):
                starts = [asyncio.get_running_loop().create_future() for _ in indices]
                tasks += [
                    asyncio.create_task(self._keep(index, start)) for index, start in zip(indices, starts, strict=True)
                ]
                codes = await asyncio.gather(*starts)
                if any(code is not None for code in codes) and not self._stopping.is_set():
                    raise Failed(next(code for code in codes if code is not None))
            if not self._stopping.is_set():
                ready()
            await self._stopping.wait()
        finally:
            if not self._stopping.is_set():
                self.stop()
            await self._end(tasks)
            leases.close()
        return max(self._codes.values(), default=0)

    def stop(self) -> None:
        """Let the workers drain; the second time, at once."""
        self._stopping.set()
        for each in (*self._data, self._admin):
            each.close()
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)

    async def _keep(self, index: int, started: asyncio.Future[int | None]) -> None:
        delay = 0.0
        while not self._stopping.is_set():
            began = time.monotonic()
            process = await self._start(index)
            code = await self._follow(process, started)
            if self._stopping.is_set():
                self._codes[index] = code
                break
            if not started.done():
                started.set_result(code)
                return
            self._log.error("a worker ended; another takes its place", worker=index, code=code)
            delay = min(max(2 * delay, 0.1), _LONGEST) if time.monotonic() - began < _SOON else 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
        if not started.done():
            started.set_result(None)

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        data, admin = self._data[index], self._admin if index == 0 else None
        place = Place(
            index=index,
            count=len(self._data),
            folder=self._folder,
            data=data.fileno(),
            admin=None if admin is None else admin.fileno(),
        )
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[each.fileno() for each in (data, admin) if each is not None],
            start_new_session=True,
        )
        self._processes[index] = process
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(tell(place, self._settings))
            await process.stdin.drain()
        if self._stopping.is_set():
            _signal(process, signal.SIGTERM)
        return process

    async def _follow(self, process: asyncio.subprocess.Process, started: asyncio.Future[int | None]) -> int:
        assert process.stdout is not None
        async for line in process.stdout:
            if line != READY:
                self._output.write(line.decode("utf-8", "replace"))
                self._output.flush()
            elif not started.done():
                started.set_result(None)
        return await process.wait()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._settings.server.drain + _LINGER)
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
        if late:
            await asyncio.wait(late)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                self._log.error("a worker could not be started", error=str(task.exception()))


def shared(settings: Settings, folder: Path) -> Settings:
    """The settings of each worker: what `memory://` keeps in one process, a file of the folder keeps for several."""
    if not settings.store.url.startswith("memory:"):
        return settings
    if settings.store.memory <= 0:
        raise SettingsError("[store] memory", "should be above 0 with memory://: it is all there is")
    url = f"sqlite:///{folder}/shared.db?max_bytes={settings.store.memory}"
    return settings.model_copy(update={"store": settings.store.model_copy(update={"url": url})})


def private_folder() -> Path:
    """A folder for sockets and shared files, this user's alone, with a path that is short enough for a socket."""
    made = tempfile.mkdtemp(prefix="samewise-")
    if len(made) > _SHORT_PATH and os.access("/tmp", os.W_OK):
        shutil.rmtree(made)
        made = tempfile.mkdtemp(prefix="samewise-", dir="/tmp")
    return Path(made)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
