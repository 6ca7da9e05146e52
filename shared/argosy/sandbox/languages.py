"""The languages: how each is found on this machine, compiled and started."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from argosy.sandbox.job import Program
from argosy.sandbox.options import SandboxOptions
from argosy.sandbox.rootfs import is_visible


@dataclass(frozen=True, slots=True)
class Language:
    """`compiler(code, options)` makes the program that compiles, `runner(code or binary, options)` the one to run."""

    name: str
    needs: tuple[str, ...]
    """Commands that must be there."""
    runner: Callable[[bytes, SandboxOptions], Program]
    compiler: Callable[[bytes, SandboxOptions], Program] | None = None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _python(code: bytes, _options: SandboxOptions) -> Program:
    return Program(code.decode("utf-8", "surrogatepass"))


def _compile_cpp(code: bytes, _options: SandboxOptions) -> Program:
    compiler = _path("g++")
    return Program(
        argv=(compiler, "-O2", "-std=c++17", "-pipe", "-o", "{folder}/program", "{folder}/main.cpp"),
        files={"main.cpp": _text(code)},
        output_file="program",
    )


def _cpp(compiled: bytes, _options: SandboxOptions) -> Program:
    return Program(argv=("{folder}/program",), files={"program": _text(compiled)})


def _javascript(code: bytes, options: SandboxOptions) -> Program:
    heap = f"--max-old-space-size={max(64, options.memory_bytes // 2 // 1024**2)}"
    argv = (_path("node"), heap, "--v8-pool-size=1", "{folder}/main.js")
    return Program(argv=argv, files={"main.js": _text(code)}, bound_address_space=False, children_signals=True)


def _bash(code: bytes, _options: SandboxOptions) -> Program:
    argv = (_path("bash"), "{folder}/main.sh")
    return Program(argv=argv, files={"main.sh": _text(code)}, children_signals=True)


LANGUAGES: dict[str, Language] = {
    "python": Language("python", (), _python),
    "cpp": Language("cpp", ("g++",), _cpp, _compile_cpp),
    "javascript": Language("javascript", ("node",), _javascript),
    "bash": Language("bash", ("bash",), _bash),
}


def missing(name: str, visible: tuple[str, ...]) -> str | None:
    """Why a language can't be run here; None if it can."""
    for command in LANGUAGES[name].needs:
        found = shutil.which(command, path=_SEARCH)
        if found is None:
            return f"{name} needs {command}, which isn't installed in {_SEARCH}"
        if not is_visible(found, visible):
            return f"{name} needs {command}, and {found} isn't among what programs see"
    return None


_SEARCH = "/usr/local/bin:/usr/bin:/bin"


def _path(command: str) -> str:
    found = shutil.which(command, path=_SEARCH)
    if found is None:
        raise FileNotFoundError(command)
    return found
