"""Compiles the library on first use and keeps it for the next start.

It is built for the CPU at hand (`-march=native`), so it can't be shipped with the package. The kept file's name is a
hash of everything that it depends on: source, flags, compiler and CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from argosy.rollout.engines.hf.native.layout import declare

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("decode.cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("g++", "clang++")
_NEEDED_CPU_FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_TIME_LIMIT_S = 120


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library, compiled if it isn't kept already; None if it can't run or be made here (the log says why)."""
    flags = _cpu_flags()
    if not flags >= _NEEDED_CPU_FLAGS:
        _LOG.info("the compiled passes need a CPU with AVX-512; using the model's own code")
        return None
    compiler = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), None)
    if compiler is None:
        _LOG.warning("no C++ compiler (%s): using the model's own code, which is slower", ", ".join(_COMPILERS))
        return None
    try:
        return _load(compiler, flags)
    except subprocess.CalledProcessError as error:
        _LOG.warning("%s can't compile the compiled passes: %s", compiler, error.stderr.strip()[-2000:])
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("the compiled passes can't be compiled: %s", error)
    return None


def _load(compiler: str, cpu_flags: set[str]) -> ctypes.CDLL:
    folder = _cache_folder()
    with contextlib.ExitStack() as stack:
        if folder is None:  # a loaded library stays loaded when its file is gone
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="argosy-kernels-")))
        made = _compiled(compiler, cpu_flags, folder)
        try:
            library = ctypes.CDLL(str(made))
        except OSError as error:
            # What was kept is damaged, as a power loss can leave it.
            _LOG.warning("the kept library can't be loaded, compiling it anew: %s", error)
            made.unlink()
            library = ctypes.CDLL(str(_compiled(compiler, cpu_flags, folder)))
    declare(library)
    return library


def _compiled(compiler: str, cpu_flags: set[str], kept_in: Path) -> Path:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=_TIME_LIMIT_S)
    parts = (_SOURCE.read_text(), *_FLAGS, compiler, version.stdout, platform.machine(), *sorted(cpu_flags))
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = kept_in / f"decode-{name}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "decode.so"
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIME_LIMIT_S)
        made.replace(target)  # at once: servers that start together may all be compiling it
    return target


def _cache_folder() -> Path | None:
    """Where the library is kept. None where that can't be written to: then it is for this process only."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "argosy" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = folder.stat()
    except OSError:
        return None
    if kept.st_uid != os.getuid() or kept.st_mode & 0o022 or not os.access(folder, os.W_OK):
        # What lies there is run: nobody else may have put it there.
        _LOG.warning("%s isn't this user's alone: the passes are compiled anew at each start", folder)
        return None
    return folder


def _cpu_flags() -> set[str]:
    """Names of the CPU's features, empty where they can't be told (not Linux on x86)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
