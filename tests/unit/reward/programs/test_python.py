"""What solutions in the public data sets do runs as it does in a plain interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from argosy.types.records import Scored

Run = Callable[..., Scored]
IDIOMS = {
    "main guard": "def main():\n    print(int(input()) + 1)\nif __name__ == '__main__':\n    main()",
    "sys.stdin": "import sys\nprint(int(sys.stdin.readline()) + 1)",
    "buffer": "import sys\nprint(int(sys.stdin.buffer.read()) + 1)",
    "open(0)": "print(int(open(0).read()) + 1)",
    "/dev/stdin": "print(int(open('/dev/stdin').read()) + 1)",
    "/proc/self/fd/0": "import sys\nsys.stdin = open('/proc/self/fd/0')\nprint(int(input()) + 1)",
    "/dev/stdout": "open('/dev/stderr', 'w').write('x')\nopen('/dev/stdout', 'w').write(str(int(input()) + 1))",
    "os.read": "import os\nprint(int(os.read(0, 100)) + 1)",
    "input rebound": "import sys\ninput = lambda: sys.stdin.readline().rstrip()\nprint(int(input()) + 1)",
    "BytesIO": "import io, os\ninput = io.BytesIO(os.read(0, 100)).readline\nprint(int(input()) + 1)",
    "stdout.write": "import sys\nsys.stdout.write(str(int(input()) + 1))",
    "os.write": "import os\nos.write(1, b'%d' % (int(input()) + 1))",
    "exit()": "print(int(input()) + 1)\nexit()\nprint('never')",
    "sys.exit": "import sys\nprint(int(input()) + 1)\nsys.exit()",
    "atexit": "import atexit\nn = int(input())\natexit.register(lambda: print(n + 1))",
    "end of input": "try:\n    while True: n = int(input())\nexcept EOFError:\n    print(n + 1)",
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nassert f(100_000) == 100_000\nprint(int(input()) + 1)"
    ),
    "thread with a large stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**27)\n"
        "def main():\n    print(int(input()) + 1)\nthreading.Thread(target=main).start()"
    ),
    "no imports": "q = deque([int(input())])\nd = defaultdict(list)\nx: List[int] = list(q)\nprint(x[0] + gcd(3, 2))",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(int(input())).x + 1)",
    "pickle of its own class": (
        "import pickle\nclass P: pass\np = P()\np.x = int(input())\nprint(pickle.loads(pickle.dumps(p)).x + 1)"
    ),
    "asyncio": "import asyncio\nasync def f(): return int(input()) + 1\nprint(asyncio.run(f()))",
    "processes": "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(int, [input()])[0] + 1)",
    "subprocess": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', f'print({int(input())} + 1)'], "
        "capture_output=True, text=True).stdout)"
    ),
    "temporary file": (
        "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n"
        " f.write(input())\n f.seek(0)\n print(int(f.read()) + 1)"
    ),
    "file in its folder": "open('x.txt', 'w').write(input())\nprint(int(open('x.txt').read()) + 1)",
    "module of its own": "open('mine.py', 'w').write('y = 1')\nimport mine\nprint(int(input()) + mine.y)",
    "numpy": "import numpy as np\nprint(int(np.array([int(input())]).sum()) + 1)",
    "text that is not ASCII": "s = 'é'\nassert len(s) == 1\nprint(int(input()) + 1)",
}


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms(run: Run, name: str) -> None:
    outcome = run(IDIOMS[name], {"inputs": ["41\n"], "outputs": ["42\n"]})
    assert outcome.score == 1.0, outcome


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print(42", "syntax_error"),
        ("print(42)\nraise ValueError('x')", "runtime_error"),
        ("print(42)\nimport sys\nsys.exit(1)", "runtime_error"),
        ("print(42)\nimport os\nos.abort()", "runtime_error"),
        ("print(42)\nimport threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", "timeout"),
        ("x = [0] * 10**10", "memory"),
        ("print(41)", "wrong_answer"),
        ("", "no_code"),
    ],
)
def test_faults(run: Run, code: str, reason: str) -> None:
    outcome = run(code, {"inputs": ["41\n"], "outputs": ["42\n"]}, test_timeout_s=2.0)
    assert (outcome.score, outcome.parts["reason"]) == (0.0, reason)


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\ndef f(x): return np.arange(1, x + 1)",
        "import numpy as np\ndef f(x): return [np.int64(i) for i in range(1, x + 1)]",
        "def f(x): return range(1, x + 1)",
        "T = namedtuple('T', 'a b c')\ndef f(x): return T(1, 2, x)",
        "from enum import IntEnum\nclass E(IntEnum):\n    C = 3\ndef f(x): return [1, 2, E(x)]",
    ],
)
def test_values_of_functions(run: Run, code: str) -> None:
    """Each is [1, 2, 3] in its own way; the order counts, so a set isn't."""
    calls = {"fn_name": "f", "inputs": [[3]], "outputs": [[[1, 2, 3]]]}
    assert run(code, calls).score == 1.0
    assert run(code, calls | {"outputs": [[[1, 3, 2]]]}).score == 0.0
    assert run("def f(x): return {1, 2, 3}", calls).score == 0.0


def test_forms_of_functions(run: Run) -> None:
    calls = {"fn_name": "f", "inputs": [[[1, 2], 3]], "outputs": [[6]]}
    for code in (
        "def f(xs, y): return sum(xs) + y",
        "class Solution:\n    def f(self, xs: List[int], y: int) -> int:\n        return sum(xs) + y",
        "class Solution:\n    @staticmethod\n    def f(xs, y): return sum(xs) + y",
        "f = lambda xs, y: sum(xs) + y",
        "def f(xs, y):\n    print('x')\n    return sum(xs) + y\nif __name__ == '__main__':\n    print(f([], 1))",
    ):
        assert run(code, calls).score == 1.0, code
