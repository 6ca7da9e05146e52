"""The YAML of docs/rewards-services.md is configuration that is taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from argosy.config import find_problems, load

PAGE = Path(__file__).parents[3] / "docs" / "rewards-services.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_each_block_is_a_configuration(block: str, tmp_path: Path) -> None:
    values = yaml.safe_load(block)
    if "argosy" not in values:  # shown without what is around it
        values = {"argosy": {"reward": {"services": values}}}
    (tmp_path / "rewards.yaml").write_text(yaml.safe_dump(values))
    config = load([], [tmp_path / "rewards.yaml"])
    problems = [line for line in find_problems(config, files=False) if "reward" in line]
    assert problems == []


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4
