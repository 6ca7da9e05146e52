"""Faults of what a run stands on: etcd's leader, the way to etcd, the disk, a server's pace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from argosy.controller.ledger import read_segment, steps_in
from argosy.membership import server
from support.freezing import freeze
from support.storm.live import HANG_S, LiveRun, until
from support.tcp_proxy import TcpProxy, Weather

FAR = "127.0.0.9"
"""An address of this machine too, at which a proxy stands for a server on another one."""
LATE = Weather(delay_s=0.1, jitter_s=0.02, loss=0.02)
SLOW_S = 6.0
_BREATH_S = (0.02, 0.18)
"""A slow server moves for so long, then stands still for so long."""


def kill_etcd_leader(run: LiveRun, source: random.Random) -> float:
    """kill -9 of the server that leads etcd's three; it comes back later."""
    leading = run.etcd.leader()
    at = time.time()
    leading.stop()
    try:
        return run.until_step(at)
    finally:
        time.sleep(source.uniform(0.0, 3.0))
        run.etcd.start()


def slow_server(run: LiveRun, source: random.Random) -> float:
    """One of two rollout servers moves for a tenth of the time only. The longest pause between two steps then."""
    until(lambda: len(run.members("rollout")) > 1, f"two rollout servers\n{run.said}")
    found = run.members("rollout")
    victim = found[source.choice(sorted(found))]
    began = time.monotonic()
    last_at, last, longest_s = began, run.newest_step(), 0.0
    try:
        while time.monotonic() < began + SLOW_S:
            for number, pause_s in zip((signal.SIGCONT, signal.SIGSTOP), _BREATH_S, strict=True):
                victim.send_signal(number)
                time.sleep(pause_s)
            if run.newest_step() > last:
                now = time.monotonic()
                last_at, last, longest_s = now, run.newest_step(), max(longest_s, now - last_at)
    finally:
        victim.send_signal(signal.SIGCONT)
    run.until_step()
    return max(longest_s, time.monotonic() - last_at)


@contextmanager
def joined(run: LiveRun, source: random.Random, *keys: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A rollout server that was started by hand; gone afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "argosy.cli.main", "serve", "rollout", "--run", str(run.folder)]
    name = f"rollout-joined-{source.randrange(10**9)}"
    with (run.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen([*command, "--member", name, *keys], stdout=log, stderr=log, env=environment)
    try:
        yield name, process
    finally:
        process.kill()
        process.wait()


def until_it_works(run: LiveRun, name: str, process: subprocess.Popen[bytes], after: float) -> float:
    """Seconds from a moment until a step is committed with samples that a joined server was given later."""

    def works() -> bool:
        assert process.poll() is None, (run.logs / f"{name}.log").read_text(errors="replace")[-2000:]
        assert run.process.poll() is None, run.said
        folder = run.folder / "ledger"
        try:
            rows = [row for step in steps_in(folder)[-2:] for row in read_segment(folder, step)]
        except FileNotFoundError:  # the run goes back, and sets them aside
            return False
        return any(row["member"] == name and (row["dispatched_at"] or 0.0) > after for row in rows)

    until(works, f"samples of {name}\n{run.said}")
    return time.time() - after


def leaves(run: LiveRun, process: subprocess.Popen[bytes]) -> None:
    """It drains."""
    process.terminate()
    assert process.wait(HANG_S) == 0, "it drains and leaves"
    run.until_step()


def join_and_drain(run: LiveRun, source: random.Random) -> float:
    """A server is started by hand, makes samples that are trained, and leaves by SIGTERM."""
    at = time.time()
    with joined(run, source) as (name, process):
        took = until_it_works(run, name, process, at)
        leaves(run, process)
        return took


@contextmanager
def far_away(
    run: LiveRun, source: random.Random
) -> Iterator[tuple[str, subprocess.Popen[bytes], tuple[TcpProxy, TcpProxy]]]:
    """A joined server that works, and two proxies: between it and all who call it, and between it and etcd."""
    port = server.free_ports().client
    with (
        TcpProxy(f"127.0.0.1:{port}", FAR, port) as inbound,
        TcpProxy(run.etcd.endpoints[0]) as outbound,
        joined(run, source, "--port", str(port), "--advertise", FAR,
               f"argosy.membership.endpoints=[{outbound.endpoint}]") as (name, process),
    ):  # fmt: skip
        until_it_works(run, name, process, time.time())
        yield name, process, (inbound, outbound)


def partition(run: LiveRun, source: random.Random) -> float:
    """A joined server is lost to those who call it, and etcd to the server, for longer than its lease; nobody is told.
    Seconds from the end of that to a step with samples that it was given since."""
    with far_away(run, source) as (name, process, links):
        for link in links:
            link.cut()
        until(lambda: name not in run.listed("rollout"), f"the lease of {name} ends\n{run.said}")
        run.until_step()
        time.sleep(source.uniform(0.0, 2.0))
        at = time.time()
        for link in links:
            link.mend()
        took = until_it_works(run, name, process, at)
        leaves(run, process)
        return took


def bad_link(run: LiveRun, source: random.Random) -> float:
    """A joined server's link gets late and lossy, weights and checks go over it, and it breaks once. Seconds from then
    to the next step; in fine weather the server works again."""
    with far_away(run, source) as (name, process, links):
        for link in links:
            link.disturb(LATE)
        run.until_step()
        run.until_step()
        at = time.time()
        for link in links:
            link.reset()
        took = run.until_step(at)
        run.until_step()
        for link in links:
            link.mend()
        until_it_works(run, name, process, time.time())
        leaves(run, process)
        return took


def fill_disk(run: LiveRun, source: random.Random) -> float:
    """The run folder's file system has no byte left, for 1 - 3 s. Seconds from when there is room to the next step,
    with a new start of the command if the run has ended meanwhile: in words, with code 1, and not by hanging."""
    assert run.disk is not None
    ballast = run.disk / "ballast"
    fill(ballast)
    try:
        time.sleep(source.uniform(1.0, 3.0))
        is_ending = _wrote_that(run)
        if is_ending:
            run.process.wait(HANG_S)
    finally:
        ballast.unlink()
    at = time.time()
    if not is_ending and run.process.poll() is None:
        until(lambda: run.newest_step() > at or run.process.poll() is not None, f"a step or an end\n{run.said}")
    if run.process.poll() is not None:
        assert run.process.returncode == 1, run.said
        assert _wrote_that(run), run.said
        run.start_again()
    return run.until_step(at)


def fill(path: Path) -> None:
    """Until nothing fits any more."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError as error:
                assert error.errno == 28, error  # noqa: PT017 - ENOSPC is what is wanted


def _wrote_that(run: LiveRun) -> bool:
    return "no space left" in run.said_lately.lower()


def freeze_etcd(run: LiveRun, source: random.Random) -> float:
    """All of its servers. Training goes on without it."""
    for node in run.etcd.nodes:
        freeze(node.pid)
    try:
        return run.until_step()
    finally:
        time.sleep(source.uniform(0.0, 3.0))
        for node in run.etcd.nodes:
            os.kill(node.pid, signal.SIGCONT)


@contextmanager
def small_disk(folder: Path, size: str = "256m") -> Iterator[Path | None]:
    """A file system in memory that can be filled; None where mounting is not allowed."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "argosy-storm", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
