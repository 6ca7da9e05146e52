"""One run's own namespaces: an outer process that waits, and pid 1 inside, which starts the program and reports.

Both run our code only. When pid 1 ends, for whatever reason, the kernel kills everything in the cell; it ends when the
program does, when the worker kills it, and when the worker or the keeper is gone.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from argosy.sandbox import guest, kernel, messages
from argosy.sandbox.background import give_way_to_all
from argosy.sandbox.confine import Limits, confine

_USER = 65534
_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_REAP_S = 0.05
Parts = dict[str, bool | str]
"""Part of the isolation → True, or why it isn't there."""


def run(control: socket.socket, parts: Parts, tmp_bytes: int, *, background: bool = False) -> NoReturn:
    """The outer process, forked by the keeper: never returns. `parts` is what the keeper could do."""
    try:
        if background:
            give_way_to_all()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, what="PR_SET_CHILD_SUBREAPER")
        if parts["namespaces"] is True:
            with contextlib.suppress(OSError):  # if memory runs out, the program goes and not the service
                write("/proc/self/oom_score_adj", "1000")
            user, group = os.geteuid(), os.getegid()
            kernel.unshare(_NAMESPACES)
            write("/proc/self/uid_map", f"{_USER} {user} 1")
            write("/proc/self/setgroups", "deny")
            write("/proc/self/gid_map", f"{_USER} {group} 1")
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _first(control, parts, tmp_bytes, parent)
    except BaseException as error:  # noqa: BLE001 -- forked: no frame above may see it; the worker learns of it
        _give_up(control, error)
    control.close()
    os.closerange(3, 1 << 20)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
        while parts["namespaces"] is not True:  # no kernel does it for us: what was left behind is ours now
            for pid in _children(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    os._exit(0)


def _first(control: socket.socket, parts: Parts, tmp_bytes: int, parent: int) -> NoReturn:
    """Pid 1 of the cell."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL, what="PR_SET_PDEATHSIG")
        descriptors = [os.pidfd_open(os.getpid())]
        if parts["namespaces"] is True:
            if os.getpid() != 1:
                raise OSError(f"expected to be process 1, am {os.getpid()}")
            _mount(parts, tmp_bytes)
            if parts["proc"] is True:
                descriptors.append(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY))
        elif os.getppid() != parent:
            os._exit(1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, what="PR_SET_DUMPABLE")
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, what="PR_SET_CHILD_SUBREAPER")
        for number in (signal.SIGINT, signal.SIGCHLD):  # a handler of Python's would let the program signal us
            signal.signal(number, signal.SIG_DFL)
        messages.send(control, {"ready": parts}, descriptors)
        for fd in descriptors:
            os.close(fd)
        _, (job_fd, *pipes) = messages.receive(control)
        with os.fdopen(job_fd, "rb", closefd=False) as file:
            job = json.load(file)
        _serve(control, job, job_fd, pipes)
    except (EOFError, ConnectionError):
        os._exit(0)  # the worker doesn't need us any more
    except BaseException as error:  # noqa: BLE001 -- as above
        _give_up(control, error)
    os._exit(0)


def _mount(parts: Parts, tmp_bytes: int) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", flags, f"size={tmp_bytes},nr_inodes=4096,mode=0700")
    parts["proc"] = False
    for data in ("subset=pid", ""):
        try:
            kernel.mount("proc", "/proc", "proc", flags | kernel.MS_NOEXEC | kernel.MS_RDONLY, data)
            parts["proc"] = True
            break
        except OSError as error:  # a container that masks parts of /proc lets nobody mount a whole one
            parts["proc"] = str(error)
    if parts["proc"] is not True:
        kernel.mount("tmpfs", "/proc", "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=0555")
    kernel.set_host_name("sandbox")


def _serve(control: socket.socket, job: Mapping[str, Any], job_fd: int, pipes: list[int]) -> None:
    folder = job["folder"]
    for name, content in job["files"].items():
        fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755)
        with os.fdopen(fd, "wb") as file:
            file.write(base64.b64decode(content))
    problem_read, problem_write = os.pipe()
    if os.getpid() != 1:  # without a user namespace the limit counts all that this user has on the machine
        job["limits"]["process_count"] += _tasks_of(os.geteuid())
    child = os.fork()
    if child == 0:
        _become(job, pipes, problem_write)
    for fd in (*pipes, problem_write):
        os.close(fd)
    with os.fdopen(problem_read, "rb") as problem:
        text = problem.read()
    if text:
        raise OSError(text.decode())
    messages.send(control, {"started": True})
    status = _wait(control, child)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report: dict[str, Any] = {
        "status": status,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
    }
    if job["output_file"]:
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        report["output"] = _copy_out(os.path.join(folder, job["output_file"]), job_fd, job["output_bytes"])
    messages.send(control, report)


def _become(job: Mapping[str, Any], pipes: list[int], problem: int) -> NoReturn:
    """The program's process. What goes wrong before the program begins is told in a pipe that the program never has."""
    try:
        os.chdir(job["folder"])
        confine(Limits(**job["limits"]), (*pipes, problem), job["environment"])
        problem = len(pipes)
        os.set_inheritable(problem, False)
        if job["argv"]:
            os.execve(job["argv"][0], job["argv"], dict(job["environment"]))
        os.close(problem)
    except BaseException as error:  # noqa: BLE001 -- the program must not run with less than all of it
        with contextlib.suppress(OSError):
            os.write(problem, (str(error) or repr(error)).encode())
        os._exit(1)
    guest.run(job["code"], calls=job["calls"], function=job["function"], packages=job["packages"])


def _wait(control: socket.socket, child: int) -> int:
    """Reap whatever ends until the program does; its exit code, or the negative signal that ended it."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN | select.POLLHUP)
    waiting.register(os.pidfd_open(child), select.POLLIN)
    while True:
        for fd, _ in waiting.poll(_REAP_S * 1000):
            if fd == control.fileno():
                os._exit(0)  # the worker is gone, or has heard enough
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                break


def _copy_out(path: str, to: int, most_bytes: int) -> int | None:
    """Copy a regular file over the job's; its size, None if there is none or it is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        return None
    os.ftruncate(to, 0)
    view = memoryview(content)
    while view:
        view = view[os.pwrite(to, view, len(content) - len(view)) :]
    return len(content)


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def _tasks_of(user: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{name}/task")) if os.stat(f"/proc/{name}").st_uid == user else 0
    return count


def write(path: str, text: str) -> None:
    """Write to a file of /proc. The OSError says what and where."""
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, f"write {text!r} to {path}: {error.strerror}") from None


def _give_up(control: socket.socket, error: BaseException) -> NoReturn:
    text = (isinstance(error, OSError) and error.strerror) or str(error) or repr(error)
    try:
        messages.send(control, {"error": text})
    except OSError as gone:
        print(f"sandbox cell: {error}; and nobody to tell: {gone}", file=sys.stderr, flush=True)
    os._exit(1)
