"""What every service program does around its core: `python -m argosy.<role> --config FILE --member ID`.

    1. read the configuration, set thread counts (before anything imports torch), begin logs and traces
    2. listen; health answers NOT_SERVING; register the member as JOINING with its real port
    3. build the core in a thread (loading a model must not silence health checks and leases)
    4. learn the run's term from membership, serve, and become READY (a rollout without current weights: STALE)
    5. SIGTERM or SIGINT: DRAINING at once, finish what runs in half of argosy.stop_grace_s and hand over the rest,
       deregister, exit 0. A second one ends at once.

A core may have, all optional: `async start()` (what is left of loading, and a warm-up), `async wait_failed() ->
BaseException` (returns when it can't work any more: the process then ends with exit code 1, so that nobody waits for a
dead engine), `async status()`, whose `state` says what membership and health tell ("stuck": health answers NOT_SERVING
until the core moves again), `async drain(ctx)` (takes nothing new, returns when nothing runs any more), `async
hand_over(ctx)` (ends what runs and gives out what it has: others go on from there), `close()` (sync or async).
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import inspect
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from argosy.rpc.etcd_wait import once_etcd_answers
from argosy.rpc.garbage import no_full_collections
from argosy.rpc.host_options import check_host, check_member, parse, set_threads
from argosy.types.errors import ArgosyError, ConfigError, UnavailableError
from argosy.types.records import Member, MemberState, Mutation

if TYPE_CHECKING:
    import grpc

    from argosy.config import Config
    from argosy.membership.etcd import EtcdMembership
    from argosy.membership.interface import Registration
    from argosy.rpc.gate import Gate
    from argosy.rpc.server import RpcServer
    from argosy.telemetry.traces import Tracing

_LOG = logging.getLogger(__name__)
_REPORT_S = 0.5
_LAST_ANSWERS_S = 1.0
_GRACE_SHARE = 0.6  # of stop_grace_s for running calls; the rest is for closing, before the launcher kills
_DRAIN_SHARE = 0.5  # of stop_grace_s for samples to end by themselves, where the rest can be handed over
_HAND_OVER_S = 1.0


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of service. The two functions import their heavy modules inside, when they are called."""

    role: str
    about: str
    """One sentence for --help."""
    build: Callable[[Config], Any]
    """Makes the core; runs in a thread, may take minutes."""
    add_to_server: Callable[[Any, grpc.aio.Server, Gate, Config], list[str]]
    """(core, server, gate, configuration) → full names of the services that were added."""
    module: str = ""
    """What `python -m` takes; empty: argosy.<role>."""


def main(service: Service, argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service until it is told to stop, then leave: 0, 1 for a failure, 2 for bad configuration."""
    arguments = parse(service.role, service.module or f"argosy.{service.role}", service.about, argv)
    try:
        from argosy.config import load_resolved

        code = run(service, load_resolved(arguments.config), arguments)
    except ArgosyError as error:
        print(f"{service.role}: {error}", file=sys.stderr)
        code = 2 if isinstance(error, ConfigError) else 1
    except Exception:  # noqa: BLE001 - told whole, and the exit code says it
        traceback.print_exc()
        code = 1
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process now. Everything has been closed; the interpreter would take seconds to take torch apart, and a
    model that is still being loaded in a thread can't be interrupted at all."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(service: Service, config: Config, arguments: argparse.Namespace) -> int:
    """As `main`, with the configuration at hand (`argosy serve` makes it from overrides)."""
    check_member(arguments.member)
    faulthandler.enable()  # a crash in native code leaves a stack in the log too
    config = _join_pool(service, config, arguments)
    section: Any = getattr(config.argosy, service.role)
    set_threads(config.argosy.threads_of(service.role))
    from argosy.telemetry.logs import setup_logging
    from argosy.telemetry.traces import setup_from_settings

    setup_logging(arguments.member)
    tracing = setup_from_settings(
        arguments.member,
        run_id=config.argosy.run_id or "",
        run_dir=config.run_folder,
        enabled=config.argosy.telemetry.enabled,
        otlp_endpoint=config.argosy.telemetry.otlp_endpoint,
    )
    host = arguments.host or section.host
    check_host(host, allow_remote=config.argosy.allow_remote_hosts)
    port = section.port if arguments.port is None else arguments.port
    # What the core opens for others by itself (a collective's store) listens where the service does.
    config = config.with_values({f"argosy.{service.role}.host": host})
    process = _Process(service, config, arguments, tracing, host, port)
    try:
        return _run_loop(process.run())
    finally:
        tracing.shutdown()


def _join_pool(service: Service, config: Config, arguments: argparse.Namespace) -> Config:
    """What a server of the named pool or reward service sees; its name is noted as the pool. Raises ConfigError."""
    named, name = getattr(arguments, "pool", None), getattr(arguments, "name", None)
    if name is not None and service.role != "reward":
        raise ConfigError(f"--name {name}: only reward servers have one, this is the {service.role} service")
    if service.role == "reward" and named is None:
        from argosy.config.rewards import choose_reward

        arguments.pool = choose_reward(config, name)
        return config.for_reward(arguments.pool)
    if service.role != "rollout":
        if named is not None:
            raise ConfigError(f"--pool {named}: only rollout servers are in pools, this is the {service.role} service")
        return config
    from argosy.config.pools import choose_pool

    arguments.pool = choose_pool(config, named)
    return config.for_pool(arguments.pool)


def _run_loop(work: Any) -> int:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does, at half the speed
        return int(asyncio.run(work))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return int(runner.run(work))


class _Process:
    """One run of a service, from listening to the end."""

    def __init__(
        self, service: Service, config: Config, arguments: argparse.Namespace, tracing: Tracing, host: str, port: int
    ) -> None:
        self._service = service
        self._config = config
        self._arguments = arguments
        self._tracing = tracing
        self._host = host
        self._port = port
        self._section: Any = getattr(config.argosy, service.role, None)
        self._core: Any = None
        self._stuck = False
        self._draining: asyncio.Future[Member] | None = None
        """Tells membership that this member leaves."""

    async def run(self) -> int:
        """The exit code; exceptions are failures."""
        from argosy.membership.etcd import EtcdMembership
        from argosy.membership.etcd_client import EtcdOptions
        from argosy.rpc.gate import Gate
        from argosy.rpc.loop_watch import LoopWatch
        from argosy.rpc.options import RpcOptions
        from argosy.rpc.server import RpcServer

        stop = self._stop_event()
        settings = self._config.argosy.membership
        server = RpcServer.listen(
            self._host,
            self._port,
            gate=Gate(self._arguments.member),
            options=RpcOptions(max_message_bytes=self._config.argosy.rpc.max_message_bytes),
            interceptors=self._tracing.server_interceptors(),
        )
        await server.start()
        stall_timeout_s = getattr(self._section, "stall_timeout_s", None)
        watch = None if stall_timeout_s is None else LoopWatch(stall_timeout_s)
        membership = EtcdMembership(EtcdOptions(tuple(settings.endpoints), settings.prefix, settings.lease_ttl_s))
        try:
            registering = asyncio.ensure_future(self._register(membership, self._member(server)))
            if not await _first(registering, stop.wait()):
                return 0  # stopped while etcd is away
            registration = registering.result()
            work = asyncio.ensure_future(self._serve(server, membership, registration, stop))
            superseded = asyncio.ensure_future(registration.wait_superseded())
            await asyncio.wait({work, superseded}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
                raise UnavailableError(
                    f"another process has registered as {self._arguments.member}: this one stops. "
                    "Give each process of a fleet its own --member"
                )
            superseded.cancel()
            return work.result()
        finally:
            if watch is not None:
                watch.stop()
            await self._close(server, membership)

    async def _register(self, membership: EtcdMembership, member: Member) -> Registration:
        # On a machine where everything starts at one time a first connection may fail, too.
        return await once_etcd_answers(
            lambda: membership.register(member), "register", self._config.argosy.startup_timeout_s
        )

    async def _term(self, membership: EtcdMembership, run_id: str) -> int:
        return await once_etcd_answers(
            lambda: membership.current_term(run_id), "ask who leads the run", self._config.argosy.startup_timeout_s
        )

    async def _serve(
        self, server: RpcServer, membership: EtcdMembership, registration: Registration, stop: asyncio.Event
    ) -> int:
        with no_full_collections():
            built = await _first(self._build(), stop.wait())
        if not built:
            return 0  # stopped while loading
        # gRPC warns for each servicer that is added to a running server, but only its fast lookup needs them earlier.
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.ERROR)
        names = self._service.add_to_server(self._core, server.server, server.gate, self._config)
        if hasattr(self._core, "start") and not await _first(self._core.start(), stop.wait()):
            return 0  # stopped while warming up
        run_id = self._config.argosy.run_id
        if run_id:
            asking = asyncio.ensure_future(self._term(membership, run_id))
            if not await _first(asking, stop.wait()):
                return 0
            server.gate.terms.adopt(run_id, asking.result())
        await server.serve(names)
        await self._report(server, registration)
        _LOG.info("ready at %s", server.address)
        reporting = asyncio.ensure_future(self._keep_reporting(server, registration))
        failing = asyncio.ensure_future(self._failure())
        try:
            await _first(stop.wait(), failing, reporting)
            if failing.done() or reporting.done():
                await server.set_serving(False)
                raise (failing if failing.done() else reporting).result()
        finally:
            reporting.cancel()
            failing.cancel()
        # Not awaited: while etcd is away it takes seconds that the samples need. Closing the registration comes later.
        self._draining = asyncio.ensure_future(registration.update(state=MemberState.DRAINING))
        return 0

    async def _build(self) -> bool:
        """Build the core in a daemon thread, which a stop need not wait for."""
        loop = asyncio.get_running_loop()
        built: asyncio.Future[Any] = loop.create_future()

        def deliver(core: Any, error: BaseException | None) -> None:
            if not built.done():
                built.set_result(core) if error is None else built.set_exception(error)

        def work() -> None:
            core, failure = None, None
            try:
                core = self._service.build(self._config)
            except BaseException as error:  # noqa: BLE001 - raised again in the loop
                failure = error
            loop.call_soon_threadsafe(deliver, core, failure)

        threading.Thread(target=work, name="build-core", daemon=True).start()
        self._core = await built
        return True

    async def _failure(self) -> BaseException:
        """Why the core can't work any more; never returns for a core that can't tell."""
        if not hasattr(self._core, "wait_failed"):
            await asyncio.get_running_loop().create_future()
        failure: BaseException = await self._core.wait_failed()
        return failure

    async def _keep_reporting(self, server: RpcServer, registration: Registration) -> BaseException:
        while True:
            await asyncio.sleep(_REPORT_S)
            await self._report(server, registration)

    async def _report(self, server: RpcServer, registration: Registration) -> None:
        """Publish the core's version and state when they have changed; health says whether it moves."""
        status = await self._core.status() if hasattr(self._core, "status") else None
        state = _STATES.get(getattr(status, "state", ""), MemberState.READY)
        stuck = state is MemberState.QUARANTINED
        if stuck != self._stuck:
            self._stuck = stuck
            _LOG.log(logging.ERROR if stuck else logging.INFO, "the core %s", "is stuck" if stuck else "moves again")
            await server.set_serving(not stuck)
        version = getattr(status, "version", None)
        if registration.member.state is not state or (version and registration.member.version != version):
            await registration.update(state=state, version=version)

    def _member(self, server: RpcServer) -> Member:
        host = self._arguments.advertise or self._host
        if host in ("0.0.0.0", "::", "[::]"):
            host = socket.gethostname()
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        engine = self._config.actor_rollout_ref.rollout.name if self._service.role == "rollout" else ""
        return Member(
            member_id=self._arguments.member,
            role=self._service.role,
            address=f"{bracketed}:{server.port}",
            incarnation=self._arguments.incarnation or secrets.token_hex(8),
            pool=getattr(self._arguments, "pool", None) or "default",
            engine=engine,
            capabilities={"pid": str(os.getpid()), "hostname": socket.gethostname()},
        )

    async def _close(self, server: RpcServer, membership: EtcdMembership) -> None:
        """End the server (running calls first), the core and the registration, each within its bound."""
        grace_s = self._config.argosy.stop_grace_s * _GRACE_SHARE
        if hasattr(self._core, "drain"):  # a stream of many samples never ends by itself: its samples do
            began = time.monotonic()
            await asyncio.gather(server.set_serving(False), self._drain(grace_s))
            grace_s = max(_LAST_ANSWERS_S, grace_s - (time.monotonic() - began))
            await server.stop(_LAST_ANSWERS_S)
        else:
            await server.stop(grace_s)
        if self._core is not None and hasattr(self._core, "close"):
            closing = self._core.close()
            if inspect.isawaitable(closing):
                await _bounded(closing, grace_s, "close")
        if self._draining is not None:
            await _bounded(self._draining, _LAST_ANSWERS_S, "tell membership that it drains")
        await membership.close()

    async def _drain(self, grace_s: float) -> None:
        """Let the core finish what it has; what takes too long is handed over, where the core can do that."""
        hands_over = hasattr(self._core, "hand_over")
        drain_s = self._config.argosy.stop_grace_s * _DRAIN_SHARE if hands_over else grace_s
        ctx = Mutation(run_id="", term=0, request_id="shutdown", deadline_s=drain_s)
        drained = await _bounded(self._core.drain(ctx), drain_s, "finish its samples")
        if not drained and hands_over:
            hand_over_s = min(_HAND_OVER_S, grace_s)
            await _bounded(self._core.hand_over(ctx), hand_over_s, "hand over its samples")

    def _stop_event(self) -> asyncio.Event:
        """Set by the first SIGTERM or SIGINT; the second ends the process even when the loop is stuck in a call."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        asked = False

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                os._exit(128 + number)
            asked = True
            loop.call_soon_threadsafe(request, signal.Signals(number).name)

        def request(name: str) -> None:
            _LOG.info("%s: finishing what runs, then stopping", name)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        return stop


_STATES = {
    "stale": MemberState.STALE,
    "asleep": MemberState.STALE,
    "draining": MemberState.DRAINING,
    "stuck": MemberState.QUARANTINED,
}


async def _first(*works: Awaitable[Any]) -> bool:
    """Wait for the first of several to end; whether it was the first one listed. Its exception is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()


async def _bounded(work: Awaitable[Any], timeout_s: float, what: str) -> bool:
    """Await for `timeout_s` at most: on the way out, what fails is told and passed over. Whether it was done."""
    try:
        await asyncio.wait_for(work, timeout_s)
    except (TimeoutError, ArgosyError) as error:
        _LOG.warning("did not %s within %.1f s: %s", what, timeout_s, error)
        return False
    return True
