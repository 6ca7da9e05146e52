"""What a row's answers need of those that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Kind = tuple[str, str]
"""Data source and programming language, "" where there is none."""


def kind_of(data_source: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Kind:
    """The language is the ground truth's or extra_info's, as the code verifiers read it."""
    truth = ground_truth if isinstance(ground_truth, Mapping) else {}
    named = truth.get("language") or (extra_info or {}).get("language")
    return data_source, named.lower() if isinstance(named, str) else ""
