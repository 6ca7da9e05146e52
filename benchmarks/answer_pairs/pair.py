"""One pair, and what its makers share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """A gold, an answer as a model would write it, and whether the answer is right."""

    gold: str
    stated: str
    right: bool
    how: str
    """How the answer was made: "permuted", "one coefficient changed" …"""


Family = Callable[[random.Random], Pair]


def styled(text: str, chance: random.Random) -> str:
    r"""The same LaTeX in another style: `\dfrac`, thin spaces, no `\left`, other brackets around."""
    style = chance.randrange(7)
    if style == 1:
        text = text.replace(r"\frac", r"\dfrac")
    elif style == 2:
        text = text.replace(r"\frac", r"\tfrac")
    elif style == 3:
        text = text.replace(r"\left", "").replace(r"\right", "")
    elif style == 4:
        text = text.replace(" + ", "+").replace(" - ", "-")
    elif style == 5:
        text = text.replace(" + ", r" \,+\, ").replace("=", r" = ")
    elif style == 6:
        text = f"${text}$"
    return text
