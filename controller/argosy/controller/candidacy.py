"""One of several controllers of a fleet: it stands by until it leads the run, or until the run has ended.

    candidate ── stands by ── wins the next term ── shuts out earlier terms ── leads
                           └─ the run has ended meanwhile ── leaves

Who leads is decided by a lease, so that the next one comes in time. What keeps two from leading is the term: services
refuse a lower one, and so does the run folder (fence.py). docs/adr/0025 says why the lease alone would not do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy.config import Config
from argosy.controller.copies import copies_of
from argosy.controller.fence import TermFence, folder_leader
from argosy.controller.launch.plan import remote_counts, services_of
from argosy.controller.launch.readiness import wait_ready
from argosy.membership.interface import Leadership, Membership, StateValue
from argosy.rpc.clients.leading import find_leader, leader_capabilities, term_of
from argosy.types.errors import ConfigError, FencedError, UnavailableError
from argosy.types.records import Leader, Member, MemberState

log = logging.getLogger(__name__)

END_KEY = "end"
"""In the run's state: how it ended, written by the leader that ended it."""
STANDBY = "standby"
"""Role of a controller that waits."""
_RETRY_S = 0.5
_END_S = 10.0
"""For telling the end, and for leaving."""
_TERMS = 20
"""Terms that are tried when etcd knows less than the folder."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a controller has won."""

    membership: Membership
    leadership: Leadership
    member_id: str
    fence: TermFence
    takes_over: bool
    """Another controller has led this run: in this folder, or elsewhere and left copies."""
    stood_by: bool = False
    """It led while this one waited: where it came to is the point to go on from, wherever it had begun."""

    @property
    def cause(self) -> str:
        """Why there is a new life of the run; empty for its first."""
        return f"{self.member_id} leads with term {self.leadership.term}" if self.takes_over else ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run came to its end under another controller, while this one stood by."""

    run_id: str
    state: str
    """"finished" or "stopped"."""
    step: int
    member_id: str
    """Who led it then."""

    @property
    def text(self) -> str:
        """For people."""
        return f"run {self.run_id} has {self.state} at step {self.step} under {self.member_id}: nothing left to do here"


def wanted_servers(config: Config, *, at_least: bool) -> dict[tuple[str, str], int]:
    """(role, pool) → how many servers a run waits for where others start all of them.

    `at_least`: The fewest that a run goes on with, for who takes over: one of each kind.
    """
    roles = {role: count for role, count in services_of(config).items() if role not in ("rollout", "reward")}
    wanted = {(role, "default"): count for role, count in roles.items()}
    if config.argosy.replay.path is None:
        wanted |= {("rollout", name): pool.count for name, pool in config.pools.items()}
        wanted |= {("reward", name): one.count for name, one in config.rewards.items() if not one.address}
    wanted |= remote_counts(config)
    fixed = config.argosy.deterministic or config.argosy.colocated
    return dict.fromkeys(wanted, 1) if at_least and not fixed else wanted


class Candidacy:
    """Stands for one run.

    Args:
        config: With `argosy.run_id`.
        membership: Of the fleet.
        tell: Gets what a person should know of the waiting.
    """

    def __init__(self, config: Config, membership: Membership, tell: Callable[[str], None]) -> None:
        if not config.argosy.run_id:
            raise ConfigError("argosy.run_id is not set, by which the controllers of a fleet know their run")
        self._config = config
        self._run_id = config.argosy.run_id
        self._run_dir = config.run_folder.resolve()
        self._membership = membership
        self._tell = tell
        self._stood_by = False
        self.member_id = f"controller-{socket.gethostname()}-{secrets.token_hex(3)}"

    async def stand(self) -> Seat | Ended:
        """Wait until this controller leads, or until the run has ended. Writes nothing to the run folder before.

        Raises:
            DeadlineError: it was its turn, and services are missing; another candidate may reach them.
            UnavailableError: etcd did not answer at the start.
            StorageError: the run folder can't be used.
        """
        before = await self._end()
        registration = await self._membership.register(
            Member(
                self.member_id, STANDBY, "", secrets.token_hex(8),
                capabilities=leader_capabilities(Leader(self._run_id, 0)), state=MemberState.READY,
            )
        )  # fmt: skip
        telling = asyncio.create_task(self._tell_who_leads(), name="who leads")
        try:
            for _ in range(_TERMS):
                leadership = await self._elect()
                telling.cancel()
                try:
                    seat = await self._sit_down(leadership, before)
                except BaseException:
                    await leadership.resign()
                    raise
                if seat is not None:
                    return seat
                await leadership.resign()
            raise FencedError(f"{self._run_dir} knows of a leader with a higher term each time that one was won")
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await registration.close()

    async def _elect(self) -> Leadership:
        """Win the next term. An etcd that is away is waited for: that is what standing by is for."""
        told = False
        while True:
            known = await asyncio.to_thread(folder_leader, self._run_dir)
            min_term = 1 if known is None else known.leader.term + 1
            try:
                return await self._membership.elect(self._run_id, candidate=self.member_id, min_term=min_term)
            except UnavailableError as error:
                if not told:
                    self._tell(f"{self.member_id} can't stand for run {self._run_id} now, and tries on: {error}")
                told = True
                await asyncio.sleep(_RETRY_S)

    async def _sit_down(self, leadership: Leadership, before: StateValue | None) -> Seat | Ended | None:
        """Begin to lead; None where the folder has seen a higher term than etcd remembers."""
        end = await self._end()
        if end is not None and (before is None or end.revision != before.revision):
            await leadership.resign()
            return _ended(self._run_id, end.value)
        known = await asyncio.to_thread(folder_leader, self._run_dir)
        takes_over = known is not None and known.leader.run_id == self._run_id
        takes_over = takes_over or await asyncio.to_thread(self._has_copies)
        self._tell(f"{self.member_id} is the next to lead run {self._run_id}, and looks for its services")
        # Before anybody is shut out: a candidate that is cut off from the services must not stop one that isn't.
        await self.wait_for_services(at_least=takes_over)
        fence = TermFence(self._run_dir, Leader(self._run_id, leadership.term), self.member_id)
        try:
            await asyncio.to_thread(fence.take)
        except FencedError as error:
            log.warning("%s", error)
            return None
        self._tell(f"{self.member_id} leads run {self._run_id} with term {leadership.term}")
        return Seat(self._membership, leadership, self.member_id, fence, takes_over, self._stood_by)

    def _has_copies(self) -> bool:
        """Whether the run has got further on another machine, in a folder that this one doesn't see."""
        copies = copies_of(self._config, self._run_dir)
        newest = None if copies is None else copies.newest()
        return newest is not None and newest.run_id == self._run_id

    async def wait_for_services(self, *, at_least: bool) -> Mapping[str, Member]:
        """Until all are there that a run needs. Raises DeadlineError that names who is missing."""
        wanted = wanted_servers(self._config, at_least=at_least)
        deadline = time.monotonic() + self._config.argosy.startup_timeout_s
        found = await wait_ready(self._membership, {}, deadline, self._run_dir / "logs", pools=wanted)
        return {member.member_id: member for member in found}

    async def _tell_who_leads(self) -> None:
        """Once, as soon as somebody else does."""
        while True:
            try:
                leader = await find_leader(self._membership, self._run_id)
            except UnavailableError:
                leader = None
            if leader is not None:
                self._stood_by = True
                self._tell(
                    f"{self.member_id} stands by: {leader.member_id} at {leader.address} leads run {self._run_id} "
                    f"with term {term_of(leader)}"
                )
                return
            await asyncio.sleep(_RETRY_S)

    async def _end(self) -> StateValue | None:
        """What the run's state says of its end. Raises UnavailableError when etcd stays away."""
        patience_s = self._config.argosy.startup_timeout_s
        deadline, told = time.monotonic() + patience_s, False
        while True:
            try:
                return await self._membership.get_state(self._run_id, END_KEY)
            except UnavailableError as error:
                if time.monotonic() > deadline:
                    raise
                if not told:
                    self._tell(f"{self.member_id} waits for etcd, for {patience_s:g} s at most: {error}")
                told = True
                await asyncio.sleep(_RETRY_S)


async def announce_end(seat: Seat, run_id: str, state: str, step: int) -> None:
    """Tell those who stand by that there is nothing to take over. While etcd is away, for a while."""
    deadline = time.monotonic() + _END_S
    value = json.dumps({"state": state, "step": step, "member_id": seat.member_id})
    while True:
        try:
            await seat.membership.put_state(run_id, END_KEY, value, term=seat.leadership.term)
            return
        except UnavailableError as error:
            if time.monotonic() > deadline:
                log.warning("those who stand by can't be told that %s has ended: %s", run_id, error)
                return
            await asyncio.sleep(_RETRY_S)


def _ended(run_id: str, value: str) -> Ended:
    facts = json.loads(value)
    return Ended(run_id, str(facts["state"]), int(facts["step"]), str(facts["member_id"]))
