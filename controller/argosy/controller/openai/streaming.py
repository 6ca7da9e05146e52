"""Text of tokens as they come: never half a character, nor the beginning of what may become a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Decodes a growing list of ids, each piece of text once.

    Tokenizers write some ids otherwise at the beginning of a text, so each piece is what decoding with the token(s)
    before it adds, as text-generation servers do it.

    >>> stream = TextStream(lambda ids: bytes(ids).decode(errors="replace"), ["END"])
    >>> stream.push(b"hi \\xc3"), stream.push(b"\\xbc E"), stream.push(b"ND.")
    ('', 'hi ü', ' ')
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        """`stops`: Texts before which it ends; the beginning of one is kept back until it is known not to be one."""
        self._decode = decode
        self._stops = stops
        self._hold = max(map(len, stops), default=1) - 1
        self._ids: list[int] = []
        self._context = 0
        """Where decoding begins."""
        self._read = 0
        """Up to where text has been taken."""
        self._kept = ""
        self._stopped = False

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        self._ids += ids
        before = self._decode(self._ids[self._context : self._read])
        now = self._decode(self._ids[self._context :])
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._kept += now[len(before) :]
            self._context, self._read = self._read, len(self._ids)
        found = [start for stop in self._stops if (start := self._kept.find(stop)) >= 0]
        self._stopped |= bool(found)
        cut = min(found) if found else max(len(self._kept) - self._hold, 0)
        ready, self._kept = self._kept[: 0 if self._stopped and not found else cut], self._kept[cut:]
        return ready


def cut_at_stop(text: str, text_before_last: str, stops: Sequence[str]) -> str:
    """`text` up to the stop text that its last token completed; all of it if none did.

    >>> cut_at_stop("a;b;c", "a;b", [";"]), cut_at_stop("a;b", "a;", [";"])
    ('a;b', 'a;b')
    """
    found = [start for stop in stops if (start := text.rfind(stop)) >= 0 and start + len(stop) > len(text_before_last)]
    return text[: min(found)] if found else text
