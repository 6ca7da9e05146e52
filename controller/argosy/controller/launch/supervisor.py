"""Starts children, notices the first that dies, and drains them in reverse order."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Coroutine
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from argosy.controller.launch import watchdog as watchdog_module
from argosy.controller.launch.errors import ChildDiedError, describe_exit
from argosy.controller.launch.process import ChildProcess, ChildSpec

_LOG = logging.getLogger(__name__)
FAILURE_FILE = "failure.txt"


class Supervisor:
    """A set of child processes that live and die together.

        async with Supervisor(log_dir, grace_s=10) as supervisor:
            await supervisor.start(ChildSpec("rollout-0", [...]))
            error = await supervisor.failed   # the first child that ended by itself

    Leaving the block stops everything: higher stages first, each with SIGTERM, then SIGKILL after the grace.
    """

    def __init__(self, log_dir: Path, *, grace_s: float) -> None:
        self.failed: asyncio.Future[ChildDiedError] = asyncio.get_running_loop().create_future()
        """Gets the first cause as its *result* when a child ends by itself; never an exception."""
        self.lost: set[str] = set()
        """Children that died while the rest of their group was left to go on."""
        self._spare_groups: dict[str, int] = {}
        self._log_dir = log_dir
        self._grace_s = grace_s
        self._token = secrets.token_hex(16)
        self._children: list[ChildProcess] = []
        self._waiters: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._watchdog: asyncio.subprocess.Process | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        (self._log_dir / FAILURE_FILE).unlink(missing_ok=True)
        self._watchdog = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(watchdog_module.__file__), self._token,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        """In the order of their start."""
        return tuple(self._children)

    async def start(self, spec: ChildSpec, *, expendable: bool = False) -> ChildProcess:
        """Start one child and watch over it. Its death, exit code 0 included, resolves `failed`.

        An `expendable` child may die until it is `expect`ed to live.
        """
        if expendable:
            self._stopping.add(spec.name)
        child = await ChildProcess.start(spec, log_dir=self._log_dir, token=self._token)
        self._children.append(child)
        self._tell_watchdog(f"watch {child.pid}")
        self._waiters[spec.name] = asyncio.create_task(self._watch(child), name=f"watch {spec.name}")
        _LOG.info("started %s, pid %d, log %s", spec.name, child.pid, child.log_path)
        return child

    def expect(self, child: ChildProcess) -> None:
        """From now on, this child's death is a failure."""
        self._stopping.discard(child.spec.name)

    def allow_losses(self, group: str, *, others: int = 0) -> None:
        """From now on, a death in this group is a failure only when nobody of it is left.

        `others`: Members of it that are not children of this supervisor.
        """
        self._spare_groups[group] = others

    async def forget(self, child: ChildProcess) -> None:
        """Stop one child whose end is not a failure, and drop it (etcd on a port that was just taken)."""
        self._stopping.add(child.spec.name)
        await child.stop(self._grace_s)
        await self._waiters.pop(child.spec.name)
        self._children.remove(child)
        self._tell_watchdog(f"forget {child.pid}")
        self._stopping.discard(child.spec.name)

    async def stop(self) -> None:
        """Drain everything, highest stage first. Safe to call twice; finishes even when its caller is cancelled."""
        if not self._stopped:
            self._stopped = True
            await _uncancelled(self._stop())

    def kill(self) -> None:
        """SIGKILL to everything at once, grandchildren included: for a second Ctrl-C. Blocks for milliseconds."""
        self._stopping.update(child.spec.name for child in self._children)
        for child in self._children:
            child.kill()
        watchdog_module.sweep(self._token, timeout_s=2.0)

    async def _stop(self) -> None:
        self._stopping.update(child.spec.name for child in self._children)
        ordered = sorted(self._children, key=lambda child: -child.spec.stage)
        for _, stage in groupby(ordered, key=lambda child: child.spec.stage):
            await asyncio.gather(*(child.stop(self._grace_s) for child in stage))
        await asyncio.gather(*self._waiters.values())
        left = await asyncio.to_thread(watchdog_module.sweep, self._token)
        if left:
            _LOG.error("these processes of the run could not be killed: %s", left)
        self._tell_watchdog("done")
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            await self._watchdog.wait()

    async def _watch(self, child: ChildProcess) -> None:
        error = await child.death()
        name = child.spec.name
        if name in self._stopping:
            _LOG.info("stopped %s: %s", name, describe_exit(error.returncode))
            return
        _LOG.error("%s died: %s", name, describe_exit(error.returncode))
        if self._is_spare(child):
            self.lost.add(name)
            _LOG.error("the run goes on without %s; its last lines:\n%s", name, "\n".join(error.tail))
            return
        if not self.failed.done():
            self.failed.set_result(error)
            _write_failure(self._log_dir / FAILURE_FILE, error)

    def _is_spare(self, child: ChildProcess) -> bool:
        """Whether others of its group are left and may stand in for it."""
        group = child.spec.group
        if group not in self._spare_groups:
            return False
        left = [each for each in self._children if each.spec.group == group and each.returncode is None]
        return bool(left) or self._spare_groups[group] > 0

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None and self._watchdog.returncode is None:
            self._watchdog.stdin.write(f"{line}\n".encode())


def _write_failure(path: Path, error: ChildDiedError) -> None:
    try:
        path.write_text(f"{error}\n", encoding="utf-8")
    except OSError as problem:  # a full disk must not hide the cause, which is shown as well
        _LOG.error("could not write %s: %s", path, problem)


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end even if the awaiting task is cancelled meanwhile, then let the cancellation through."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                break
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
