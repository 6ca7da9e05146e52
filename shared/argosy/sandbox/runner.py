"""`Sandbox`: the worker's side. Keeps a keeper and one cell in advance, and gives out `Job`s (see `job`).

For one thread at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from argosy.sandbox import messages, rootfs
from argosy.sandbox.cell import Parts
from argosy.sandbox.group import Groups
from argosy.sandbox.job import Cell, Job, Program
from argosy.sandbox.options import SandboxError, SandboxOptions, SandboxUnavailableError

_START_S = 30.0
_SOURCES = str(Path(__file__).resolve().parents[2])
_BEGIN = f"import sys; sys.path.insert(0, {_SOURCES!r}); from argosy.sandbox import keeper; sys.path.pop(0); "
_BEGIN += "sys.exit(keeper.main(sys.argv[1:]))"
ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TMPDIR": "/tmp",
}
"""All that programs find; the same string hashes in every run, so that a score can be repeated."""


class Sandbox:
    """Starts programs in cells. `close` it when done."""

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self.parts: Parts = {}
        """What is isolated, after `start`: part → True, or why not."""
        self.packages = tuple(_site_packages()) if options.site_packages else ()
        self.paths = tuple(rootfs.visible_paths((*_interpreter_paths(), *self.packages)))
        """What programs see of this machine's files."""
        self._groups: Groups | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the keeper unless it runs. Raises SandboxUnavailableError if isolation is required and isn't there,
        SandboxError if it doesn't start."""
        if self._keeper is not None and self._keeper.poll() is None:
            return
        self.close()
        self._open_groups()
        ours, theirs = messages.pair()
        try:
            with theirs:
                self._keeper = subprocess.Popen(
                    [
                        os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BEGIN,
                        str(theirs.fileno()), self.options.isolation, str(self.options.tmp_bytes),
                        str(int(self.options.background)), *self.paths,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    cwd="/",
                    env=dict(ENVIRONMENT),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            ours.close()
            raise SandboxError(f"the system can't start the sandbox's keeper: {error}") from error
        self._control = ours
        ours.settimeout(_START_S)
        try:
            first, _ = messages.receive(ours)
            if first["problem"] is None:
                messages.send(ours, {"cell": True})
        except (OSError, EOFError, ValueError, KeyError) as error:
            self.close()
            raise SandboxError(f"the sandbox's keeper didn't start: {error or type(error).__name__}") from error
        self.parts = first["parts"]
        if first["problem"] is not None:
            self.close()
            raise SandboxUnavailableError(
                f"programs can't be isolated here: {first['problem']}. Run the reward service where user namespaces "
                "are allowed, or set argosy.reward.sandbox.isolation=allowed_without to run code without"
            )

    def run(self, program: Program, *, deadline: float) -> Job:
        """Start a program; end the job with `close` or as a context manager.

        `deadline` is by time.monotonic(): a job that isn't over by then raises SandboxBusyError. Raises SandboxError.
        """
        self.start()
        try:
            cell, parts = self._take(deadline)
        except (OSError, EOFError, ValueError, KeyError) as error:
            self.close()
            raise SandboxError(f"the sandbox gives no cell: {error or type(error).__name__}") from error
        except BaseException:
            self.close()
            raise
        self.parts = parts
        folder = contextlib.ExitStack()
        try:
            isolated = parts["namespaces"] is True
            path = "/tmp" if isolated else folder.enter_context(tempfile.TemporaryDirectory(prefix="argosy-sandbox-"))
            if not isolated:
                os.chmod(path, 0o777 if os.geteuid() == 0 else 0o700)  # as root, programs run as nobody
            return Job(cell, program, self._spec(program, path), self.options, deadline, folder)
        except BaseException:
            cell.end()
            folder.close()
            raise

    def close(self) -> None:
        """End the keeper and its cells. May be called again; the next run starts another."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
            self._keeper = None
        if self._groups is not None:
            groups, self._groups = self._groups, None
            groups.close()

    def describe(self) -> str:
        """What holds programs here and what doesn't, in a sentence. For one that was started."""
        absent = [f"{part}: {state}" for part, state in self.parts.items() if state is not True]
        found = ["isolated" if not absent else f"not isolated ({'; '.join(absent)})"]
        bounds = self._groups.bounds if self._groups is not None else []
        reasons = self._groups.reasons if self._groups is not None else ["switched off"]
        if bounds:
            found.append(f"control groups: {', '.join(bounds)}")
        if not {"memory", "processes"} <= set(bounds):
            why = f" ({'; '.join(reasons)})" if reasons else ""
            found.append(f"{'no more' if bounds else 'no'} control groups{why}: memory is looked at every 20 ms")
        return "; ".join(found)

    def _open_groups(self) -> None:
        if self.options.control_groups == "off":
            return
        self._groups = Groups(self.options)
        if self.options.control_groups == "required" and not {"memory", "processes"} <= set(self._groups.bounds):
            reasons = "; ".join(self._groups.reasons) or "no memory and pids controllers"
            self.close()
            raise SandboxUnavailableError(
                f"programs can't be bounded by control groups here: {reasons}. Run the reward service in a group that "
                "is delegated to it (docs/sandbox.md), or set argosy.reward.sandbox.control_groups=auto to do without"
            )

    def _take(self, deadline: float) -> tuple[Cell, Parts]:
        """The cell that was made in advance; ask for the next one."""
        assert self._control is not None
        self._control.settimeout(max(0.01, min(_START_S, deadline - time.monotonic())))
        message, descriptors = messages.receive(self._control)
        messages.send(self._control, {"cell": True})
        if "error" in message:
            raise OSError(message["error"])
        cell = Cell(socket.socket(fileno=descriptors[0]), descriptors[1])
        try:
            parts = cell.wait_ready(deadline)
            cell.group = self._groups.make() if self._groups is not None else None
            if cell.group is not None:
                cell.group.add(cell.first_pid)
            return cell, parts
        except BaseException:
            cell.end()
            raise

    def _spec(self, program: Program, folder: str) -> bytes:
        options = self.options
        return json.dumps(
            {
                "folder": folder,
                "files": dict(program.files),
                "code": program.code,
                "calls": program.function is not None,
                "function": program.function,
                "argv": [part.replace("{folder}", folder) for part in program.argv],
                # In the tree, or without one as they are: what isn't there is passed over.
                "packages": list(dict.fromkeys((*map(rootfs.inside, self.packages), *self.packages))),
                "environment": dict(ENVIRONMENT) | {"HOME": folder, "TMPDIR": folder},
                "output_file": program.output_file,
                "output_bytes": options.output_bytes,
                "limits": {
                    "cpu_s": program.cpu_s or options.sample_timeout_s,
                    "memory_bytes": options.memory_bytes,
                    "tmp_bytes": options.tmp_bytes,
                    "process_count": options.process_count,
                    "bound_address_space": program.bound_address_space,
                    "children_signals": program.children_signals,
                    "own_session": not options.background,
                },
            }
        ).encode()


def _interpreter_paths() -> list[str]:
    return [sys.base_prefix, os.path.realpath(sys.executable)]


def _site_packages() -> list[str]:
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return list(dict.fromkeys(path for path in found if path and os.path.isdir(path)))
