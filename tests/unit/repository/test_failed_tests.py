"""What the whole check runs again is what failed, by names that pytest takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "failed_tests.py"
SOURCE = """
import pytest

@pytest.fixture
def torn():
    yield
    raise RuntimeError("teardown")

@pytest.mark.parametrize("word", ["a b", "c"])
def test_word(word):
    assert word == "c"

def test_torn(torn):
    pass
"""


def told(report: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), str(report)], capture_output=True, text=True, check=False)


def report_of(folder: Path, source: str) -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_some.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", "--junitxml", "report.xml"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
    return folder / "report.xml"


def test_failures_and_errors_are_named(tmp_path: Path) -> None:
    found = told(report_of(tmp_path, SOURCE)).stdout.splitlines()
    assert sorted(found) == ["test_some.py::test_torn", "test_some.py::test_word[a b]"]


@pytest.mark.parametrize("source", ["import nothing_of_that_name", "def test_well(): pass"])
def test_where_no_test_is_to_blame_nothing_is_run_again(tmp_path: Path, source: str) -> None:
    """An empty list would be all tests."""
    done = told(report_of(tmp_path, source))
    assert done.returncode != 0
    assert done.stdout == ""
