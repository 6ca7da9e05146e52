"""Make shared/argosy/api from protos/, or (`--check`) tell whether the committed stubs are what protos/ makes.

The generators live in a venv of their own (.venv-stubs): generated code refuses any older protobuf runtime than its
own, so it is made by an old generator on purpose, and imports on everything newer.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
API = ROOT / "shared" / "argosy" / "api"
TOOL_VENV = ROOT / ".venv-stubs"
REQUIREMENTS = ["grpcio-tools==1.71.2", "mypy-protobuf==3.6.0", "protobuf==5.29.6", "setuptools==80.9.0"]
"""setuptools: grpcio-tools 1.71 imports pkg_resources."""


def tool_venv() -> Path:
    """Make the generators' venv if it is not there or holds other versions; returns its bin folder."""
    stamp = TOOL_VENV / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS)
    bin_folder = TOOL_VENV / "bin"
    if not (stamp.exists() and stamp.read_text() == wanted):
        venv.create(TOOL_VENV, with_pip=True, clear=True)
        subprocess.run([bin_folder / "python", "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
        stamp.write_text(wanted)
    return bin_folder


def generate(target: Path) -> None:
    """Write the stubs of every proto below `target`."""
    bin_folder = tool_venv()
    protos = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    outputs = [f"--{plugin}_out={target}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command: list[str | Path] = [bin_folder / "python", "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *protos]
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"  # protoc finds its mypy plugins by PATH
    run = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"protoc failed ({run.returncode}):\n{run.stdout}{run.stderr}")
    for stub in target.rglob("*_pb2_grpc.py*"):
        if "Stub" not in stub.read_text():
            stub.unlink()  # a file without a service makes an empty one


def stubs(folder: Path) -> set[str]:
    """Names of the generated files below `folder`."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*_pb2*.py*") if path.suffix in (".py", ".pyi")}


def differences(made: Path, committed: Path) -> list[str]:
    """Names of files that differ or are on one side only."""
    names = sorted(stubs(made) | stubs(committed))
    return filecmp.cmpfiles(made, committed, names, shallow=False)[1] + [
        name for name in names if not ((made / name).exists() and (committed / name).exists())
    ]


def main() -> int:
    """Regenerate, or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the committed stubs differ")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        made = Path(folder) / "argosy" / "api"
        different = differences(made, API)
        if check:
            for name in different:
                print(f"shared/argosy/api/{name} differs: run tools/regenerate_stubs.py", file=sys.stderr)
            return 1 if different else 0
        for name in stubs(API) - stubs(made):
            (API / name).unlink()
        for name in different:
            if (made / name).exists():
                (API / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made / name, API / name)
        print(f"{len(different)} of {len(stubs(API))} stubs changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
