from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.overlong import overlong_penalty
from argosy.types.errors import ConfigError


def equation_13(length: int, longest: int, cache: int) -> float:
    """arXiv:2503.14476, eq. 13, case by case."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=20), st.integers(1, 200), st.floats(0.01, 1), st.sampled_from([0, 0.5, 1, 2])
)
def test_equals_the_paper(lengths: list[int], longest: int, share: float, factor: float) -> None:
    cache = max(1, int(longest * share))
    got = overlong_penalty(np.array(lengths, np.int64), longest, cache, factor)
    assert got.dtype == np.float64
    assert got.tolist() == pytest.approx([factor * equation_13(length, longest, cache) for length in lengths])


def test_the_papers_own_setting() -> None:
    """§4.1: at most 16 384 tokens without penalty, 4 096 of soft cache."""
    got = overlong_penalty([16384, 18432, 20480, 30000], max_resp_len=20480, buffer_len=4096, penalty_factor=1.0)
    assert got.tolist() == [0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize(
    ("buffer", "factor", "named"), [(0, 1.0, "got 0"), (11, 1.0, "11.*10 tokens"), (5, -1.0, "-1")]
)
def test_senseless_settings_are_refused(buffer: int, factor: float, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        overlong_penalty([3], max_resp_len=10, buffer_len=buffer, penalty_factor=factor)
