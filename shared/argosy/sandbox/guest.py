"""Untrusted Python in its own, confined process: a whole program, or a function called once per test.

Program and harness share this process, so nothing here can be trusted, and nothing here is worth reaching: the expected
outputs never enter the sandbox, the arguments of a test come only when its turn is there, and what is written back is a
claim that the worker compares.

    worker → guest   length (4 bytes), nonce (8 bytes), arguments (`plain`)
    guest → worker   length (4 bytes), nonce (8 bytes; zeros for the first), kind, data
                     kinds: R ready, M no such function, V value, E exception, N not plain data
"""

from __future__ import annotations

import atexit
import io
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from argosy.sandbox import plain
from argosy.sandbox.prelude import names

REQUESTS, CLAIMS = 3, 4
"""Descriptors of call-based tests."""
FILE_NAME = "solution.py"
_RECURSION_LIMIT = 20_000


def run(code: str, *, calls: bool, function: str, packages: Sequence[str]) -> NoReturn:
    """Run it and end the process as the interpreter would."""
    status = 1
    try:
        module = _module("solution" if calls else "__main__", packages)
        program = compile(code, FILE_NAME, "exec", dont_inherit=True)
        exec(program, module.__dict__)
        if calls:
            _serve(module, function)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 -- what the interpreter does with it
        _show(error)
    _finish(status)


def _module(name: str, packages: Sequence[str]) -> types.ModuleType:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8", errors="surrogateescape"
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    sys.__dict__.update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.argv = [FILE_NAME]
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if os.path.exists(path)), *packages]
    for ours in [key for key in sys.modules if key.partition(".")[0] == "argosy"]:
        del sys.modules[ours]
    sys.setrecursionlimit(_RECURSION_LIMIT)
    random.seed()
    module = types.ModuleType(name)
    module.__dict__.update(names(), __builtins__=__builtins__)
    if name == "__main__":
        module.__dict__["__file__"] = FILE_NAME
    sys.modules[name] = module
    return module


def _serve(module: types.ModuleType, name: str) -> None:
    function = _find(module, name)
    _write(bytes(8), b"R" if function is not None else b"M", b"")
    while function is not None:
        head = _read(12)
        if head is None:
            return
        nonce, body = head[4:], _read(int.from_bytes(head[:4], "big")) or b""
        arguments = plain.decode(body)
        try:
            kind, data = b"V", plain.encode(function(*arguments))
        except plain.NotPlainError as error:
            kind, data = b"N", str(error).encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001 -- the program's own; SystemExit and the like end it
            _show(error)
            kind, data = b"E", type(error).__name__.encode("utf-8", "replace")
        sys.stdout.flush()
        _write(nonce, kind, data)


def _find(module: types.ModuleType, name: str) -> Callable[..., Any] | None:
    """The method of a class `Solution`, else the function."""
    solution = module.__dict__.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)  # type: ignore[no-any-return]
    found = module.__dict__.get(name)
    return found if callable(found) else None


def _read(count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = os.read(REQUESTS, count - len(data))
        if not piece:
            return None
        data += piece
    return data


def _write(nonce: bytes, kind: bytes, data: bytes) -> None:
    view = memoryview(len(data).to_bytes(4, "big") + nonce + kind + data)
    while view:
        view = view[os.write(CLAIMS, view) :]


def _show(error: BaseException) -> None:
    try:
        if isinstance(error, SyntaxError) or error.__traceback__ is None:
            lines = traceback.format_exception_only(error)
        else:
            lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next, limit=-20)
        sys.stderr.write("".join(lines)[-4000:])
    except BaseException:  # noqa: BLE001 -- an exception of the program's own class may fail to show itself
        os.write(2, b"Exception: it can't be shown\n")


def _finish(status: int) -> NoReturn:
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 -- as above
        _show(error)
        status = status or 1
    os._exit(status & 0xFF)
