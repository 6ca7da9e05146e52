"""The part of `hostile` that wants the machine: programs that use it up, stay on it, or flood whoever listens.

Name and source of each, indented.
"""
# ruff: noqa: E501 -- a program on one line is easier to count

from __future__ import annotations

from collections.abc import Iterator


def bombs() -> Iterator[tuple[str, str]]:
    """Memory, processes, files and time."""
    yield "fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    yield (
        "fork and exit bomb",
        "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
    )
    yield (
        "children whose time is forgotten",
        """
        import os, signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0: sum(range(50_000)), os._exit(0)
            except OSError: pass
    """,
    )
    yield (
        "short-lived children",
        """
        import os
        while True:
            try:
                if os.fork() == 0: sum(range(50_000)), os._exit(0)
            except OSError: os.wait()
    """,
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
                x = bytearray(b"x") * (100 << 20)
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
    yield "spin in children", "import os\nfor _ in range(4): os.fork()\nwhile True: pass"
    yield "sleep", "import time\ntime.sleep(1000)"
    yield "stop itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    yield "regular expression", "import re\nre.match('(a*)*b', 'a' * 10000)"
    yield "segfault", "import ctypes\nctypes.string_at(0)"
    yield "huge source", "x = " + "(" * 5000 + ")" * 5000
    yield "hash of a huge number", "hash(1 << (1 << 34))"


def stayers() -> Iterator[tuple[str, str]]:
    """What wants to go on after its end, or to be reached."""
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


def floods() -> Iterator[tuple[str, str]]:
    """Output, and words that are hard to read."""
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
