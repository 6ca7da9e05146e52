"""Rewards in Python: 1 if the last number of the response is the ground truth, else 0; and one that takes batches."""

from __future__ import annotations

import re
from typing import Any

from argosy.reward.sdk import reward

NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")  # \d would take 𝟜 too


@reward(data_sources=("numbers", "toy"), version="1")
def last_number(solution: str, ground_truth: Any) -> dict[str, Any]:
    """The parameters say what it wants to know of a sample; raising is the outcome *failed*, never a 0."""
    want = float(str(ground_truth).replace(",", ""))
    found = NUMBER.findall(solution)
    pred = found[-1].replace(",", "")[:64] if found else ""
    right = bool(pred) and float(pred) == want
    return {"score": float(right), "acc": right, "pred": pred}


@reward(batch=True, name="brevity")
async def brevity(solution: list[str], truncated: list[bool]) -> list[float | None]:
    """Short answers are better; what the length limit cut is not judged. `async`, as a judge behind a network is."""
    return [None if cut else 1 / (1 + len(text) / 100) for text, cut in zip(solution, truncated, strict=True)]
