"""The tokens of a formula of LaTeX or plain text, for `formula`."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\s+|(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<name>sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|exp|pi)"
    r"|(?P<power>\*\*|\^)|(?P<letter>[A-Za-z])|(?P<sign>[-+*/()\[\]{}|!_])"
)
_MOST_TOKENS = 400


class UnreadableError(ValueError):
    """The formula is outside of the grammar."""


def split_tokens(text: str) -> list[str]:
    """Numbers, commands, letters and signs, without spaces. Raises UnreadableError for anything else, or too many."""
    tokens: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(tokens) > _MOST_TOKENS:
            raise UnreadableError(f"no formula from {text[place : place + 20]!r} on")
        place = match.end()
        token = match.group().strip()
        if match.group("name"):
            token = "\\" + token
        if token:
            tokens.append("^" if match.group("power") else token.replace(",", ""))
    return tokens
