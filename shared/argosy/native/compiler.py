"""Compiles a library on first use and keeps it for the next start.

It is built for the CPU at hand (`-march=native`), so it can't be shipped with the package. The kept file's name is a
hash of everything that it depends on: sources, flags, compiler and CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)
_HERE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
COMPILERS = ("g++", "clang++")
"""Looked for in this order, if CXX names none."""
AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""CPU features that every source here needs."""
_TIME_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class NativeSource:
    """What a library is made of, and what it needs."""

    path: Path
    """A C++ file; headers beside it and in `argosy.native` are found, and belong to the hash."""
    purpose: str
    """For log messages: "the compiled passes"."""
    cpu_flags: frozenset[str] = AVX512
    """CPU features that it needs, as /proc/cpuinfo has them."""

    @property
    def files(self) -> list[Path]:
        """Everything that is read."""
        return [self.path, *sorted(self.path.parent.glob("*.h")), *sorted(_HERE.glob("*.h"))]


def load(source: NativeSource) -> ctypes.CDLL | None:
    """The library, compiled if it isn't kept already; None if it can't run or be made here (the log says why)."""
    flags = cpu_flags()
    if not flags >= source.cpu_flags:
        lacking = ", ".join(sorted(source.cpu_flags - flags))
        _LOG.info("%s need a CPU with AVX-512 and more (%s lacking): done without", source.purpose, lacking)
        return None
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        _LOG.warning("no C++ compiler (%s) for %s: done without, slower", ", ".join(COMPILERS), source.purpose)
        return None
    try:
        return _load(source, compiler, flags)
    except subprocess.CalledProcessError as error:
        _LOG.warning("%s can't compile %s: %s", compiler, source.purpose, error.stderr.strip()[-2000:])
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("%s can't be compiled: %s", source.purpose, error)
    return None


def _load(source: NativeSource, compiler: str, flags: frozenset[str]) -> ctypes.CDLL:
    folder = _cache_folder()
    with contextlib.ExitStack() as stack:
        if folder is None:  # a loaded library stays loaded when its file is gone
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="argosy-kernels-")))
        made = compiled(source, compiler, flags, folder)
        try:
            return ctypes.CDLL(str(made))
        except OSError as error:
            # What was kept is damaged, as a power loss can leave it.
            _LOG.warning("the kept library can't be loaded, compiling it anew: %s", error)
            made.unlink()
            return ctypes.CDLL(str(compiled(source, compiler, flags, folder)))


def compiled(source: NativeSource, compiler: str, flags: frozenset[str], kept_in: Path) -> Path:
    """The library's file below `kept_in`, made if it isn't there. Raises CalledProcessError, OSError."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=_TIME_LIMIT_S)
    texts = (path.read_text() for path in source.files)
    parts = (*texts, *_FLAGS, compiler, version.stdout, platform.machine(), *sorted(flags))
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = kept_in / f"{source.path.stem}-{name}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made.so"
        command = [compiler, *_FLAGS, f"-I{_HERE}", str(source.path), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIME_LIMIT_S)
        made.replace(target)  # at once: processes that start together may all be compiling it
    return target


def _cache_folder() -> Path | None:
    """Where libraries are kept. None where that can't be written to: then they are for this process only."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "argosy" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = folder.stat()
    except OSError:
        return None
    if kept.st_uid != os.getuid() or kept.st_mode & 0o022 or not os.access(folder, os.W_OK):
        # What lies there is run: nobody else may have put it there.
        _LOG.warning("%s isn't this user's alone: compiled anew at each start", folder)
        return None
    return folder


def cpu_flags() -> frozenset[str]:
    """Names of the CPU's features, empty where they can't be told (not Linux on x86)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return frozenset(found)
