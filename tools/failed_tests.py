"""The tests that failed, of a report by `pytest -o junit_family=xunit1 --junitxml FILE`: one node id a line.

python tools/failed_tests.py FILE
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def failed_tests(report: Path) -> list[str]:
    """Node ids, each once, in the report's order. ValueError where a failure can't be named: nothing was collected."""
    found: dict[str, None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            file, name = case.get("file"), case.get("name")
            if not file or not name:
                raise ValueError(f"{report}: {case.get('classname')} failed before it had tests")
            found[f"{file}::{name}"] = None
    return list(found)


if __name__ == "__main__":
    print(*failed_tests(Path(sys.argv[1])), sep="\n")
