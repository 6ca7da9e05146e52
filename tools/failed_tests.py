"""The tests that failed, of a report by `pytest -o junit_family=xunit1 --junitxml FILE`: one node id a line.

python tools/failed_tests.py FILE
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def failed_tests(report: Path) -> list[str]:
    """Node ids, each once, in the report's order. ValueError where there are none to run again: a file couldn't be
    collected, or whatever went wrong was no test."""
    found: dict[str, None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problems = [*case.iter("failure"), *case.iter("error")]
        if any(problem.get("message") == "collection failure" for problem in problems):
            raise ValueError(f"{report}: {case.get('file')} could not be collected")
        if problems:
            found[f"{case.get('file')}::{case.get('name')}"] = None
    if not found:
        raise ValueError(f"{report}: no test has failed")
    return list(found)


if __name__ == "__main__":
    try:
        print(*failed_tests(Path(sys.argv[1])), sep="\n")
    except ValueError as error:
        sys.exit(f"nothing can be run again: {error}")
