"""The default way to run: every service a child process on this machine, found through a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from argosy.config import Config
from argosy.controller.launch.children import ServiceChildren, folder_tag, group_of
from argosy.controller.launch.errors import ChildDiedError, SetbackError
from argosy.controller.launch.etcd import NAME as ETCD
from argosy.controller.launch.etcd import start_etcd
from argosy.controller.launch.interpreters import check_interpreters
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.launch.plan import PlannedMember, plan_members, remote_counts, services_of
from argosy.controller.launch.process import ChildSpec
from argosy.controller.launch.readiness import wait_ready
from argosy.controller.launch.restarts import RestartPolicy
from argosy.controller.launch.scaling import Scaling
from argosy.controller.launch.signals import KILL_HOOKS
from argosy.controller.launch.supervisor import Supervisor
from argosy.controller.rewards.router import RewardRouter
from argosy.controller.roster import Roster, keeps_servers
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.rpc.etcd_wait import once_etcd_answers
from argosy.types.errors import ArgosyError, InternalError, StateError, UnavailableError
from argosy.types.records import Member, MemberState, ScaleChange, ServerCount

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_DEATH_NOTICE_S = 1.0
_DYING_S = 8.0
"""From a call's failure to the end of a service that can't go on: it lets other calls finish first."""
_ETCD_S = 10.0
"""At the start, for an etcd that others run: nothing is lost yet, and the address may be wrong."""
_CLAIM_S = 60
"""An id is kept for a server that is started for `argosy scale`; it registers before it loads anything."""
_OF_A_DYING_SERVICE = (UnavailableError, InternalError, StateError)


class LocalFleet:
    """Starts etcd and the services, waits until each can work, and ends them all.

        async with LocalFleet(cfg, run_dir) as fleet:
            [trainer] = fleet.members["trainer"]
            await fleet.race(train(fleet.membership, fleet.members))

    `counts` says how many servers of each role to start (default: `services_of(cfg)`). A role's module may be given
    in `modules`, else it is `module_of(role)`.
    """

    def __init__(
        self,
        cfg: Config,
        run_dir: Path,
        *,
        counts: Mapping[str, int] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        self.members: dict[str, tuple[Member, ...]] = {}
        """By role, as they were when all had become ready; `membership.watch` says how they are now."""
        self.membership: EtcdMembership
        """Set once entered; closed by `stop`."""
        self._cfg = cfg
        self._run_dir = run_dir.resolve()
        self._counts = services_of(cfg) if counts is None else counts
        self._planned = plan_members(cfg, self._counts)
        self._lock = RunFolderLock(self._run_dir)
        self._supervisor: Supervisor | None = None
        self._children = ServiceChildren(cfg, self._run_dir, modules or {})
        self._scaling: Scaling | None = None
        self._restarts = False
        self._following: asyncio.Task[None] | None = None
        self._reborn: set[str] = set()
        """Who was started again and is not known to be ready yet."""

    async def __aenter__(self) -> Self:
        self._lock.acquire()
        KILL_HOOKS.append(self.kill)
        self._supervisor = Supervisor(self._run_dir / "logs", grace_s=self._cfg.argosy.stop_grace_s)
        try:
            await self._supervisor.__aenter__()
            await check_interpreters(self._planned)
            await self._start(self._supervisor)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def lost(self) -> Set[str]:
        """Rollout servers that died while others of them were left: a live view."""
        return frozenset() if self._supervisor is None else self._supervisor.lost

    def follow(self, rosters: Mapping[str, Roster[Any]], router: RewardRouter | None = None) -> None:
        """Tell the rosters (by role) of each child that ends by itself, at once; and let servers that others have
        started, those of the router too, stand in for children."""

        def died(name: str) -> None:
            role = next((member.role for member in self._planned if member.member_id == name), "")
            if role in rosters:
                rosters[role].died(name, self._children.incarnations[name])

        def joined(group: str) -> int:
            role, _, service = group.partition(" ")
            there = set(rosters[role].clients) if role in rosters else set()
            if router is not None and role == "reward":
                there |= set(router.servers(service))
            return len(there - {member.member_id for member in self._planned})

        if self._supervisor is not None:
            self._supervisor.on_death, self._supervisor.joined = died, joined

    @property
    def failed(self) -> asyncio.Future[ChildDiedError]:
        """Gets the first cause as its result when a child process dies by itself."""
        if self._supervisor is None:
            raise RuntimeError("enter the LocalFleet first: async with LocalFleet(...) as fleet")
        return self._supervisor.failed

    async def race(self, work: Coroutine[Any, Any, _Result], *, setbacks: bool = False) -> _Result:
        """The result of `work`; if a child dies first, `work` is cancelled and ChildDiedError is raised.

        With `setbacks`, which the caller answers by `recover`, children that die are started again from then on; one
        that nobody stands in for ends the work by SetbackError. When `work` fails because of a child's death, the death
        is raised: it is the first cause.
        """
        task, failed = asyncio.ensure_future(work), self.failed
        if setbacks and self._supervisor is not None and not self._restarts:
            self._restarts = True
            self._supervisor.allow_restarts(RestartPolicy(self._cfg.argosy.restart.limit), self._renewed)
        ends: set[asyncio.Future[Any]] = (
            {failed, self._supervisor.setback} if setbacks and self._supervisor else {failed}
        )
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not any(end.done() for end in ends) and (error := _failure_of(task)) is not None:
                # A call fails before a death is noticed, and a trainer's service ends after the rank that has died.
                notice_s = _DYING_S if setbacks and isinstance(error, _OF_A_DYING_SERVICE) else _DEATH_NOTICE_S
                await asyncio.wait(ends, timeout=notice_s, return_when=asyncio.FIRST_COMPLETED)
            for end in sorted(ends, key=lambda end: end is not failed):
                if end.done():
                    raise await self._cause(end.result(), task) from _failure_of(task)
            return task.result()
        finally:
            await self._end(task)

    async def _cause(self, error: ChildDiedError | SetbackError, task: asyncio.Future[Any]) -> ArgosyError:
        """A setback is one only once the work has ended: nothing may be done twice at one time."""
        if isinstance(error, SetbackError) and not await self._end(task):
            _LOG.error("after %s the work did not end within argosy.stop_grace_s: the run ends", error)
            return error.cause
        return error

    async def _end(self, task: asyncio.Future[Any]) -> bool:
        """Cancel the work, and wait a while; whether it has ended."""
        task.cancel()
        await asyncio.wait({task}, timeout=self._cfg.argosy.stop_grace_s)
        return task.done()

    async def recover(self, fresh: Collection[str] = ()) -> None:
        """After a setback: wait until every child that was started again is ready.

        Those of the roles `fresh` are started again too where that hasn't been done yet: there is no state that they
        could go back to otherwise. Raises as `race` does, and DeadlineError that names who isn't ready.
        """
        if self._supervisor is None:
            raise RuntimeError("enter the LocalFleet first: async with LocalFleet(...) as fleet")
        for member in list(self._planned):
            if member.role in fresh and member.member_id not in self._reborn:
                await self._supervisor.retire(member.member_id)
                self._reborn.add(member.member_id)
                await self._supervisor.start(self._children.spec(member, again=True))
        while True:
            self._supervisor.expect_setbacks()
            lives = {member_id: self._children.incarnations[member_id] for member_id in sorted(self._reborn)}
            deadline = time.monotonic() + self._cfg.argosy.startup_timeout_s
            try:
                ready = await self.race(
                    wait_ready(self.membership, lives, deadline, self._run_dir / "logs"), setbacks=True
                )
            except SetbackError as again:
                _LOG.warning("while the fleet came back: %s", again)
                continue
            self._reborn -= lives.keys()
            for back in ready:
                others = [one for one in self.members.get(back.role, ()) if one.member_id != back.member_id]
                self.members[back.role] = tuple(sorted([*others, back], key=lambda one: one.member_id))
            return

    async def scale(self, wanted: Sequence[ServerCount]) -> Sequence[ScaleChange]:
        """Start or drain rollout and reward servers until there are so many; see `Scaling.scale`."""
        if self._scaling is None:
            raise StateError("the fleet is not ready yet: scale it once the run has begun")
        return await self._scaling.scale(wanted)

    async def stop(self) -> None:
        """Drain and end everything. Safe to call twice."""
        try:
            if self._scaling is not None:
                await self._scaling.close()
            if self._following is not None:
                self._following.cancel()
            if hasattr(self, "membership") and self._supervisor is not None:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.membership.close(), 5.0)
        finally:
            if self._supervisor is not None:
                await self._supervisor.stop()
            self._lock.release()
            if self.kill in KILL_HOOKS:
                KILL_HOOKS.remove(self.kill)

    def kill(self) -> None:
        """SIGKILL to everything, now: what a second Ctrl-C does (`StopSignals`)."""
        if self._supervisor is not None:
            self._supervisor.kill()

    async def _start(self, supervisor: Supervisor) -> None:
        deadline = time.monotonic() + self._cfg.argosy.startup_timeout_s
        options = await self._find_etcd(supervisor, deadline)
        self.membership = EtcdMembership(options)
        if self._cfg.argosy.membership.endpoints:  # before the services, which wait longer, each by itself
            await once_etcd_answers(self.membership.members, "reach etcd", _ETCD_S)
        else:
            await self.membership.forget_members()  # leftovers of a killed run, in an etcd that is ours alone
        self._children.save_settings(options)
        for member in self._planned:
            await supervisor.start(self._children.spec(member))
        remote = remote_counts(self._cfg)
        ready = await self.race(
            wait_ready(self.membership, self._children.incarnations, deadline, self._run_dir / "logs", pools=remote)
        )
        for role in {*self._counts, *(member.role for member in ready)}:
            self.members[role] = tuple(member for member in ready if member.role == role)
        # From here on the run can go on with the rollout servers that are left, and with those of each reward service.
        for group in {group_of(member) for member in self._planned} - {""}:
            others = sum(count for (role, pool), count in remote.items() if group in (role, f"{role} {pool}"))
            supervisor.allow_losses(group, others=others)
        claim = functools.partial(self.membership.claim_name, ttl_s=_CLAIM_S)
        self._scaling = Scaling(self._cfg, self._planned, self._start_one, supervisor.retire, claim)
        self._following = asyncio.create_task(self._follow(supervisor), name="follow the fleet")
        _LOG.info("the fleet is ready: %s", ", ".join(f"{member.member_id}@{member.address}" for member in ready))

    async def _follow(self, supervisor: Supervisor) -> None:
        """See who of those that were started again can work by now."""
        async for members in self.membership.watch():
            for member in members:
                is_present = self._children.incarnations.get(member.member_id) == member.incarnation
                if is_present and member.state in (MemberState.READY, MemberState.STALE):
                    supervisor.unready.discard(member.member_id)

    async def _start_one(self, member: PlannedMember) -> None:
        if self._supervisor is not None:
            await self._supervisor.start(self._children.spec(member))

    def _renewed(self, spec: ChildSpec, spare: bool) -> ChildSpec | None:
        """What a dead child is started again as: itself, as another incarnation."""
        if spec.name == ETCD:  # on its data and ports, or nobody would find it
            return spec
        member = next((one for one in self._planned if one.member_id == spec.name), None)
        if member is None:
            return None
        if spare and member.role == "rollout" and keeps_servers(self._cfg):  # nobody would talk to its new life
            return None
        if not spare and not spec.is_awaited:  # else the run goes on, and takes it in when it is ready
            self._reborn.add(member.member_id)
        return self._children.spec(member, again=True)

    async def _find_etcd(self, supervisor: Supervisor, deadline: float) -> EtcdOptions:
        settings = self._cfg.argosy.membership
        if settings.endpoints:
            # Servers that others start can't know this folder's tag: with them the prefix itself tells runs apart.
            own = "" if remote_counts(self._cfg) else f"/local-{folder_tag(self._run_dir)}"
            return EtcdOptions(
                tuple(settings.endpoints),
                prefix=f"{settings.prefix}{own}",
                lease_ttl_s=settings.lease_ttl_s,
            )
        endpoint = await start_etcd(
            supervisor, settings.etcd_binary, self._run_dir / "etcd", timeout_s=deadline - time.monotonic()
        )
        return EtcdOptions((endpoint,), prefix=settings.prefix, lease_ttl_s=settings.lease_ttl_s)


def _failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
