"""The layout that all stands on: one PEP 420 namespace, import rules that really bite, no torch where promised."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOTS = ("shared", "controller", "services")


def test_no_package_owns_the_namespace() -> None:
    assert [path for root in ROOTS for path in (ROOT / root).glob("argosy/__init__.py*")] == []
    assert [path for root in ROOTS for path in (ROOT / root).glob("__init__.py*")] == []


def test_one_namespace_over_three_roots() -> None:
    import argosy

    folders = {Path(entry).parent.name for entry in argosy.__path__}
    assert folders >= set(ROOTS)


def test_every_portion_is_typed() -> None:
    portions = [path for root in ROOTS for path in (ROOT / root / "argosy").iterdir() if any(path.glob("*.py"))]
    assert [str(path) for path in portions if not (path / "py.typed").exists()] == []


@pytest.mark.parametrize(("imported", "passes"), [("nsdemo.records", True), ("nsdemo.service", False)])
def test_import_rules_bite_on_a_namespace(tmp_path: Path, imported: str, passes: bool) -> None:
    for root, portion, body in (
        ("shared", "records", ""),
        ("services", "service", ""),
        ("shared", "pure", f"import {imported}.thing\n"),
    ):
        package = tmp_path / root / "nsdemo" / portion
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "thing.py").write_text(body)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.importlinter]\nroot_packages = ["nsdemo.records", "nsdemo.service", "nsdemo.pure"]\n'
        '[[tool.importlinter.contracts]]\nname = "pure"\ntype = "forbidden"\n'
        'source_modules = ["nsdemo.pure"]\nforbidden_modules = ["nsdemo.service"]\n'
    )
    code = (
        "import sys; sys.path[:0] = ['shared', 'services']\n"
        "from importlinter.cli import lint_imports_command\nlint_imports_command(['--no-cache'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode == 0) is passes, result.stdout + result.stderr


def test_import_rules_cover_every_portion() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    portions = {
        f"argosy.{path.name}"
        for root in ROOTS
        for path in (ROOT / root / "argosy").iterdir()
        if path.is_dir() and any(path.rglob("*.py"))
    }
    assert set(settings["root_packages"]) == portions


@pytest.mark.parametrize(
    "module",
    ["argosy.controller.run", "argosy.cli.main", "argosy.cli.train", "argosy.reward.__main__", "argosy.config",
     "argosy.rpc.host", "argosy.membership.etcd", "argosy.text"],
)  # fmt: skip
def test_no_torch_in_controller_and_reward(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{module} imports torch\n{result.stderr}"


def closure(requirement: str) -> set[str]:
    """Names of all distributions that a requirement brings, by the installed packages' own metadata."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        current = waiting.pop()
        key = f"{current.name.lower()}[{','.join(sorted(current.extras))}]"
        if key in found:
            continue
        found.add(key)
        try:
            needed = [Requirement(text) for text in requires(current.name) or ()]
        except PackageNotFoundError:
            continue  # not installed here, so nothing that this environment's torch came with
        extras = current.extras or {""}
        waiting += [r for r in needed if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return {key.split("[")[0] for key in found}


@pytest.mark.parametrize("extra", ["controller", "reward"])
def test_extras_of_controller_and_reward_bring_no_torch(extra: str) -> None:
    brought = closure(f"argosy[{extra}]")
    assert "grpcio" in brought
    assert {"torch", "vllm", "accelerate"} & brought == set()
    assert "torch" in closure("argosy[trainer]")
