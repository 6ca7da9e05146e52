"""The reward servers of examples/rewards: is their toolchain there, how are they built, how are they started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "rewards"
REQUIRED = "ARGOSY_REQUIRE_LANGUAGES"
"""Set in CI: a missing toolchain is then a failure instead of a skipped test."""
START_S = 60.0


@dataclass(frozen=True)
class Language:
    """An example in one language."""

    name: str
    tools: tuple[str, ...]
    """Programs that must be on PATH."""
    files: tuple[str, ...]
    """Files that its packages bring; relative ones are of the example's folder."""
    build: tuple[str, ...]
    command: tuple[str, ...]
    """Before PORT and the data sources."""
    takes_sources: bool = True
    """Whether PORT and the data sources are its arguments; else it has its own, and a free port."""

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name

    def missing(self) -> str:
        """What is not installed; empty if all is there."""
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        missing += [file for file in self.files if not (self.folder / file).exists()]
        return ", ".join(missing)

    def make(self) -> None:
        """Build the server; skip the test, or in CI fail it, if its toolchain is missing."""
        missing = self.missing()
        if missing:
            reason = f"{self.name} needs {missing}: run `make install-languages`"
            if os.environ.get(REQUIRED):
                pytest.fail(reason)
            pytest.skip(reason)
        if self.build:
            built = subprocess.run(self.build, cwd=self.folder, capture_output=True, text=True, timeout=280)
            assert built.returncode == 0, f"{built.stdout[-3000:]}\n{built.stderr[-3000:]}"

    @contextmanager
    def serve(self, sources: Sequence[str]) -> Iterator[str]:
        """Start it for these data sources; its address."""
        command = [*self.command, *(["0", *sources] if self.takes_sources else [])]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            watchdog.cancel()
            assert line.startswith("listening on 127.0.0.1:"), f"{self.name} said {line!r} and ended"
            yield line.removeprefix("listening on ").strip()
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


_GO_PACKAGES = "/usr/share/gocode/src/google.golang.org"
LANGUAGES = (
    Language("python", (), (), (), (sys.executable, "-m", "argosy.cli.main", "serve", "reward", "--function",
                                    "reward.py:last_number"), takes_sources=False),
    Language("node", ("node",), ("node_modules/@grpc/grpc-js", "node_modules/grpc-health-check"), (),
             ("node", "server.js")),
    Language("go", ("go", "make", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"),
             (f"{_GO_PACKAGES}/grpc/server.go", f"{_GO_PACKAGES}/genproto/googleapis/rpc/errdetails"), ("make",),
             ("build/server",)),
    Language("cpp", ("g++", "make", "pkg-config", "protoc", "grpc_cpp_plugin"), ("/usr/include/grpcpp/grpcpp.h",),
             ("make",), ("build/server",)),
)  # fmt: skip
