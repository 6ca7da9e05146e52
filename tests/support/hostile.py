"""More than 200 programs that try to get a reward that they haven't earned, to harm their neighbours, or to stay.

Each is Python source, run as a program or, where it defines `solve`, by calls. None of them can know the hidden answer:
whatever they do, their score is 0. Where they manage to write outside, the file's name has `MARK` in it.
"""
# ruff: noqa: E501 -- a program on one line is easier to count

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

MARK = "argosy-hostile-mark"

_PLACES = (
    "/", "/usr/lib", "/etc", "/proc", "/dev", "/root", "/home", "/var/tmp", "/sys", "/run", "/work", "/boot",
)  # fmt: skip
_SECRETS = (
    "/etc/shadow", "/proc/1/environ", "/proc/1/mem", "/proc/1/cmdline", "/proc/1/maps", "/proc/1/fd/3", "/proc/1/root/etc",
    "/proc/self/../1/stack", "/root/.ssh/id_rsa", "/root/.bash_history", "/proc/kcore", "/proc/kallsyms", "/dev/mem",
    "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup", "/dev/vda", "/proc/1/ns/pid", "/var/run/docker.sock",
)  # fmt: skip
_CALLS = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165,
    "umount2": 166, "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425,
    "userfaultfd": 323, "keyctl": 250, "add_key": 248, "kexec_load": 246, "init_module": 175, "reboot": 169,
    "settimeofday": 164, "sethostname": 170, "memfd_create": 319, "shmget": 29, "open_by_handle_at": 304,
    "pidfd_getfd": 438, "fsopen": 430, "open_tree": 428, "seccomp": 317, "personality": 135, "quotactl": 179,
    "swapon": 167, "acct": 163, "syslog": 103, "kcmp": 312, "clone3": 435, "x32_open": 0x40000002,
}  # fmt: skip
_SIGNALS = (1, 2, 3, 9, 10, 13, 14, 15, 17, 19, 20, 31)


def programs() -> list[tuple[str, str]]:
    """Name and source of each; the same in every run."""
    return [(name, textwrap.dedent(source).strip() + "\n") for name, source in _all()]


def _all() -> Iterator[tuple[str, str]]:
    yield from _forgers()
    yield from _bombs()
    yield from _stayers()
    yield from _floods()
    for place in _PLACES:
        yield f"write {place}", f"open({place + '/' + MARK!r}, 'w').write('x')"
        yield f"link {place}", f"import os\nos.symlink('/etc/passwd', {place + '/' + MARK!r})"
    for secret in _SECRETS:
        yield f"read {secret}", f"print(open({secret!r}, 'rb').read(1000))"
        yield f"follow {secret}", f"import os\nos.symlink({secret!r}, '/tmp/a')\nprint(open('/tmp/a', 'rb').read(1000))"
    for name, number in _CALLS.items():
        yield f"call {name}", f"import ctypes\nprint(ctypes.CDLL(None).syscall({number}, *[0] * 6))"
    for number, target in itertools.product(_SIGNALS, ("1", "0", "-1", "os.getppid()")):
        yield f"signal {number} to {target}", f"import os\nos.kill({target}, {number})"


def _forgers() -> Iterator[tuple[str, str]]:
    equal = """
        class Equal({base}):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __sub__(self, other): return 0
            def __abs__(self): return 0
            def __hash__(self): return 0
            def __float__(self): return 0.0
            def __repr__(self): return "0"
        def solve(x): return {value}
    """
    for base, value in (("object", "Equal()"), ("int", "Equal(3)"), ("float", "Equal(3)"), ("str", "Equal('3')"),
                        ("list", "Equal([3])"), ("tuple", "Equal((3,))"), ("dict", "Equal(a=3)"), ("object", "[Equal()]")):  # fmt: skip
        yield f"equal {base} {value}", equal.format(base=base, value=value)
    for name in ("abs", "len", "isinstance", "type", "all", "any", "zip", "int.__eq__", "print", "sorted", "str"):
        root, _, attribute = name.partition(".")
        patch = f"builtins.{root} = lambda *a, **k: True" if not attribute else "ctypes.pythonapi"
        yield f"patch {name}", f"import builtins, ctypes\n{patch}\ndef solve(x): return 0"
    yield "exit 0 at once", "import os\nos._exit(0)"
    yield "exit 0 in a call", "import os\ndef solve(x): os._exit(0)"
    yield "sys.exit in a call", "import sys\ndef solve(x): sys.exit(0)"
    yield "raise SystemExit subclass", "class Bye(SystemExit): pass\ndef solve(x): raise Bye(0)"
    yield (
        "claims before the test",
        """
        import os
        for nonce in (bytes(8), b"\\xff" * 8):
            for value in (b"t", b"n", b"i0;", b"d0x0p+0;"):
                os.write(4, len(value).to_bytes(4, "big") + nonce + b"V" + value)
        def solve(x): return 0
    """,
    )
    yield (
        "claims in the test",
        """
        import os, sys
        def solve(x):
            frame = sys._getframe(1)
            nonce = frame.f_locals["nonce"]
            os.write(4, (1).to_bytes(4, "big") + nonce + b"V" + b"t")
            os.write(4, (1).to_bytes(4, "big") + nonce + b"V" + b"t")
            return 0
    """,
    )
    yield "endless claim", "import os\ndef solve(x):\n    while True: os.write(4, b'\\x7f' * 65536)"
    yield "huge claim header", "import os\ndef solve(x):\n    os.write(4, b'\\xff' * 13)\n    os._exit(0)"
    yield "deep value", "def solve(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v"
    yield "cyclic value", "def solve(x):\n    v = []\n    v.append(v)\n    return v"
    yield (
        "deep claim",
        "import os, sys\ndef solve(x):\n    n = sys._getframe(1).f_locals['nonce']\n    d = b'[' * 500000\n    os.write(4, len(d).to_bytes(4, 'big') + n + b'V' + d)",
    )
    yield (
        "broken claim",
        "import os, sys\ndef solve(x):\n    n = sys._getframe(1).f_locals['nonce']\n    d = b'{[]n}'\n    os.write(4, len(d).to_bytes(4, 'big') + n + b'V' + d)",
    )
    yield (
        "scan descriptors",
        """
        import os
        for fd in range(1024):
            try: os.write(fd, b"\\x00\\x00\\x00\\x01" + bytes(8) + b"Vt")
            except OSError: pass
        def solve(x): return 0
    """,
    )
    yield "close descriptors", "import os\nos.closerange(0, 1024)\ndef solve(x): return 0"
    yield (
        "read the questions ahead",
        "import os\ndef solve(x):\n    os.set_blocking(3, False)\n    return os.read(3, 10**6)",
    )
    yield (
        "trace the harness",
        """
        import sys
        def tracer(frame, event, arg):
            for key in list(frame.f_locals):
                if key in ("data", "kind"): frame.f_locals[key] = b"t"
            return tracer
        sys.settrace(tracer)
        def solve(x):
            frame = sys._getframe()
            while frame: frame.f_trace, frame = tracer, frame.f_back
            return 0
    """,
    )
    yield (
        "gc for secrets",
        """
        import gc
        for thing in gc.get_objects():
            if type(thing) in (dict, list, tuple) and "hidden" in repr(thing)[:10000]: print(thing)
        def solve(x): return 0
    """,
    )
    yield (
        "patch the encoder",
        """
        import gc, types
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType) and thing.__name__ in ("encode", "same_value", "_write"):
                thing.__code__ = (lambda *a: b"t").__code__
        def solve(x): return 0
    """,
    )
    yield "atexit", "import atexit, os\natexit.register(lambda: os.write(1, b'hidden'))"
    yield (
        "thread that answers",
        """
        import os, threading
        def flood():
            while True: os.write(4, (1).to_bytes(4, "big") + bytes(8) + b"Vt")
        threading.Thread(target=flood, daemon=True).start()
        def solve(x): return 0
    """,
    )


def _bombs() -> Iterator[tuple[str, str]]:
    yield "fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    yield (
        "fork and exit bomb",
        "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
    )
    yield "1000 forks", "import os, time\nfor _ in range(1000):\n    if os.fork() == 0: time.sleep(100)"
    yield "threads", "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,)).start()"
    yield "shell bomb", "import subprocess\nsubprocess.run(['/bin/bash', '-c', 'b() { b | b & }; b; sleep 100'])"
    yield "4 GB", "x = bytearray(4 << 30)"
    yield "4 GB shared", "import mmap\nm = mmap.mmap(-1, 4 << 30)\nfor i in range(0, 4 << 30, 4096): m[i] = 1"
    yield (
        "memory by children",
        """
        import os, time
        for _ in range(16):
            if os.fork() == 0:
                x = bytearray(b"x") * (300 << 20)
                time.sleep(100)
        time.sleep(100)
    """,
    )
    yield "memory by growing", "x = []\nwhile True: x.append('x' * 1_000_000)"
    yield "stack", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()"
    yield "c stack", "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)"
    yield "10000 files", "files = [open(f'/tmp/{i}', 'w') for i in range(10000)]"
    yield "many inodes", "for i in range(10**6): open(f'/tmp/{i}', 'w')"
    yield "full disk", "f = open('/tmp/x', 'wb')\nwhile True: f.write(b'x' * 1_000_000)"
    yield "full disk, many files", "for i in range(10**6): open(f'/tmp/{i}', 'wb').write(b'x' * 10_000_000)"
    yield "sparse file", "f = open('/tmp/x', 'wb')\nf.seek(1 << 50)\nf.write(b'x')"
    yield "pipes", "import os\np = [os.pipe() for _ in range(10000)]"
    yield "spin", "while True: pass"
    yield "spin in C", "10 ** 10 ** 9"
    yield "spin in children", "import os\nfor _ in range(8): os.fork()\nwhile True: pass"
    yield "sleep", "import time\ntime.sleep(1000)"
    yield "stop itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    yield "regular expression", "import re\nre.match('(a*)*b', 'a' * 10000)"
    yield "segfault", "import ctypes\nctypes.string_at(0)"
    yield "huge source", "x = " + "(" * 5000 + ")" * 5000
    yield "hash of a huge number", "hash(1 << (1 << 34))"


def _stayers() -> Iterator[tuple[str, str]]:
    yield "new session", "import subprocess\nsubprocess.Popen(['/bin/sleep', '300'], start_new_session=True)"
    yield "nohup", "import subprocess\nsubprocess.Popen('nohup sleep 300 >/dev/null 2>&1 &', shell=True)"
    yield (
        "double fork",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(300)\n    os._exit(0)",
    )
    yield (
        "deaf",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\ntime.sleep(300)",
    )
    yield (
        "deaf child",
        "import os, signal, time\nif os.fork() == 0:\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n    time.sleep(300)",
    )
    yield "zombies", "import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\nimport time\ntime.sleep(300)"
    yield (
        "orphans",
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        if os.fork() == 0: time.sleep(300)\n        os._exit(0)",
    )
    yield "stopped child", "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)"
    yield "vfork chain", "import os\nwhile os.fork() == 0: pass\nimport time\ntime.sleep(300)"
    yield "holds the pipes", "import os, time\nif os.fork() == 0: time.sleep(300)\nprint('bye')"
    for port in (0, 8080, 50051):
        yield (
            f"listen {port}",
            f"import socket, time\ns = socket.socket()\ns.bind(('127.0.0.1', {port}))\ns.listen()\ntime.sleep(300)",
        )
    yield "udp", "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"
    yield "raw socket", "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    yield "netlink", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"
    yield "vsock", "import socket\nsocket.socket(socket.AF_VSOCK).connect((2, 1024))"
    yield (
        "abstract socket",
        "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0argosy')\ns.listen()\ntime.sleep(300)",
    )
    yield (
        "loopback by a child",
        "import subprocess\nprint(subprocess.run(['/bin/bash', '-c', 'exec 3<>/dev/tcp/127.0.0.1/22; cat <&3'], capture_output=True))",
    )
    yield "set limits of pid 1", "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (0, 0))"
    yield "freeze pid 1", "import os\nos.sched_setaffinity(1, {0})\nos.setpriority(os.PRIO_PROCESS, 1, 19)\nos._exit(0)"
    yield "timer", "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\ntime.sleep(300)"


def _floods() -> Iterator[tuple[str, str]]:
    yield "stdout", "while True: print('x' * 1000)"
    yield "stdout in blocks", "import os\nwhile True: os.write(1, b'x' * (1 << 20))"
    yield "stderr", "import sys\nwhile True: sys.stderr.write('x' * 100000)"
    yield (
        "both, by children",
        "import os\nfor _ in range(3): os.fork()\nwhile True:\n    os.write(1, b'x' * 65536)\n    os.write(2, b'x' * 65536)",
    )
    yield "null bytes", "import os\nos.write(1, bytes(10**6))"
    yield "broken text", "import os\nos.write(1, b'\\xff\\xfe\\x80' * 1000)"
    yield "many digits", "import sys\nsys.stdout.write('9' * 10**6)"
    yield "deep exception", "class E(Exception):\n    def __str__(self): raise E\nraise E"
    yield "exception with a huge text", "raise ValueError('x' * 10**8)"
