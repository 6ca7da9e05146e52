"""Starts children, starts those again that die, and drains them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Callable, Coroutine
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from argosy.controller.launch import watchdog as watchdog_module
from argosy.controller.launch.errors import ChildDiedError, SetbackError, describe_exit
from argosy.controller.launch.process import ChildProcess, ChildSpec
from argosy.controller.launch.restarts import RestartBook, RestartPolicy

_LOG = logging.getLogger(__name__)
FAILURE_FILE = "failure.txt"

Renew = Callable[[ChildSpec, bool], ChildSpec | None]
"""(what died, whether others stand in for it) → what to start in its place; None: nothing."""


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
        """Children that died and were not started again yet; the rest of their group goes on meanwhile, if there is
        any."""
        self.unready: set[str] = set()
        """Children that were started again, and have not shown yet that they can work: they stand in for nobody.
        Whoever knows takes them out."""
        self.setback: asyncio.Future[SetbackError]
        """Gets, as its result, the death of a child for which nobody stands in, and which is started again."""
        self.expect_setbacks()
        self.on_death: Callable[[str], None] = lambda name: None
        """Told at once when a child ends by itself."""
        self.joined: Callable[[str], int] = lambda group: 0
        """How many members of a group others have started while the run goes on."""
        self._spare_groups: dict[str, int] = {}
        self._log_dir = log_dir
        self._grace_s = grace_s
        self._token = secrets.token_hex(16)
        self._children: list[ChildProcess] = []
        self._waiters: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._watchdog: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._ending = asyncio.Event()
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._book: RestartBook | None = None
        self._renew: Renew = lambda spec, spare: None

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

    def allow_restarts(self, policy: RestartPolicy, renew: Renew) -> None:
        """From now on, start a child that died again, as often as the policy allows; `renew` says as what."""
        self._book, self._renew = RestartBook(policy), renew

    def expect_setbacks(self) -> None:
        """Forget the setback before: the next one is told by a new `setback`."""
        self.setback = asyncio.get_running_loop().create_future()

    async def retire(self, name: str) -> None:
        """Let one child drain and end, for good: no failure, and nothing is started in its place."""
        self._stopping.add(name)
        restart = self._restarts.pop(name, None)
        if restart is not None:
            restart.cancel()
            await asyncio.wait({restart})
        child = next((one for one in self._children if one.spec.name == name), None)
        if child is not None:
            await child.stop(self._grace_s)
            await self._waiters.pop(name)
            self._drop(child)
        self.lost.discard(name)
        self.unready.discard(name)
        self._stopping.discard(name)

    async def forget(self, child: ChildProcess) -> None:
        """Stop one child whose end is not a failure, and drop it (etcd on a port that was just taken)."""
        self._stopping.add(child.spec.name)
        await child.stop(self._grace_s)
        await self._waiters.pop(child.spec.name)
        self._drop(child)
        self._stopping.discard(child.spec.name)

    def _drop(self, child: ChildProcess) -> None:
        self._children.remove(child)
        self._tell_watchdog(f"forget {child.pid}")

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
        self._ending.set()  # who waits to be started again is not
        await asyncio.gather(*self._restarts.values(), return_exceptions=True)
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
        self.on_death(name)
        spare = self._is_spare(child)
        if self._begins_again(child, error, spare=spare):
            return
        if spare:
            self.lost.add(name)
            _LOG.error("the run goes on without %s; its last lines:\n%s", name, "\n".join(error.tail))
            return
        self._fail(error)

    def _begins_again(self, child: ChildProcess, error: ChildDiedError, *, spare: bool) -> bool:
        """Start a dead child again soon, if that is allowed."""
        if self._book is None or self._stopped:
            return False
        wait_s = self._book.wait_s(error)
        spec = None if wait_s is None else self._renew(child.spec, spare)
        if wait_s is None or spec is None:
            return False
        name = child.spec.name
        _LOG.warning("%s is started again in %.1f s; its last lines:\n%s", name, wait_s, "\n".join(error.tail))
        self.lost.add(name)
        self.unready.add(name)
        self._drop(child)
        del self._waiters[name]
        self._restarts[name] = asyncio.create_task(self._restart(spec, wait_s, error), name=f"restart {name}")
        if not spare and not spec.is_awaited and not self.setback.done():
            self.setback.set_result(SetbackError.of(error))
        return True

    async def _restart(self, spec: ChildSpec, wait_s: float, death: ChildDiedError) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), wait_s)
        if self._ending.is_set():
            return
        try:
            await self.start(spec)
        except OSError as error:  # out of processes, or of file descriptors
            _LOG.error("%s can't be started again: %s", spec.name, error)
            self._fail(death)
            return
        self.lost.discard(spec.name)
        del self._restarts[spec.name]

    def _fail(self, error: ChildDiedError) -> None:
        if not self.failed.done():
            error = error if self._book is None else self._book.first_cause(error)
            self.failed.set_result(error)
            _write_failure(self._log_dir / FAILURE_FILE, error)

    def _is_spare(self, child: ChildProcess) -> bool:
        """Whether others of its group are left and may stand in for it."""
        group = child.spec.group
        if group not in self._spare_groups:
            return False
        left = [each for each in self._children if each.spec.group == group and each.returncode is None]
        able = any(each.spec.name not in self.unready for each in left)
        return able or self._spare_groups[group] > 0 or self.joined(group) > 0

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
