"""More than 200 programs that try to get a reward that they haven't earned, to harm their neighbours, or to stay.

Each is Python source, run as a program or, where it defines `solve`, by calls. None of them can know the hidden answer:
whatever they do, their score is 0. Where they manage to write outside, the file's name has `MARK` in it.
"""
# ruff: noqa: E501 -- a program on one line is easier to count

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from support import hostile_loads

MARK = "argosy-hostile-mark"

REASONS: dict[str, set[str]] = {
    "equal ": {"wrong_answer"},
    "patch ": {"wrong_answer", "runtime_error", "timeout"},
    "claims ": {"protocol", "wrong_answer"},
    "write ": {"runtime_error"},
    "link ": {"runtime_error"},
    "read ": {"runtime_error", "protocol", "wrong_answer"},
    "call ": {"wrong_answer", "runtime_error"},
    "spin": {"timeout"},
    "sleep": {"timeout"},
    "stop itself": {"timeout"},
    "regular expression": {"timeout"},
    "children whose time is forgotten": {"runtime_error"},
    "short-lived children": {"timeout"},
    "4 GB": {"memory", "runtime_error"},
    "memory by ": {"memory"},
    "stdout": {"output_limit"},
    "stderr": {"timeout"},
    "10000 files": {"runtime_error"},
    "full disk": {"runtime_error"},
    "listen ": {"runtime_error"},
    "segfault": {"runtime_error"},
    "unordered ": {"wrong_answer", "protocol"},
}
"""Beginning of a name → why such programs fail. Others may fail in more than one way."""

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
_UNORDERED = {
    "set": "return set(x)",
    "frozenset": "return frozenset(x)",
    "keys": "return dict.fromkeys(x).keys()",
    "generator": "return (i for i in x)",
    "dict": "return dict.fromkeys(x)",
    "set in a list": "return [set(x)]",
    "claim of a bag": "n = sys._getframe(1).f_locals['nonce']; d = b'(' + b''.join(b'i%x;' % i for i in x) + b')'; os.write(4, len(d).to_bytes(4, 'big') + n + b'V' + d); return 0",
    "claim of a bag with more": "n = sys._getframe(1).f_locals['nonce']; d = b'(' + b''.join(b'i%x;' % i for i in x + x) + b')'; os.write(4, len(d).to_bytes(4, 'big') + n + b'V' + d); return 0",
}
_SIGNALS = (1, 2, 3, 9, 10, 13, 14, 15, 17, 19, 20, 31)


def programs() -> list[tuple[str, str]]:
    """Name and source of each; the same in every run."""
    return [(name, textwrap.dedent(source).strip() + "\n") for name, source in _all()]


def without_order() -> list[tuple[str, str]]:
    """Where `solve` should sort a list of different numbers: all of them, in no order that it had to find out."""
    return [(f"unordered {name}", f"import os, sys\ndef solve(x): {source}\n") for name, source in _UNORDERED.items()]


def _all() -> Iterator[tuple[str, str]]:
    yield from _forgers()
    yield from hostile_loads.bombs()
    yield from hostile_loads.stayers()
    yield from hostile_loads.floods()
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
