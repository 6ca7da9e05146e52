r"""Reading one formula of LaTeX or plain text into a small tree, in time linear in its text (case A11).

Nothing is evaluated here, so nothing can explode. What the grammar doesn't know (sets, matrices, integrals, `\pm`,
functions without a meaning, units) raises `UnreadableError`: the caller then asks a computer algebra system.

Grammar, loosest first: sum → product (also by juxtaposition) → power → atom. Juxtaposition binds as a product sign
does, so `1/2x` is half of x; a function without brackets takes the factors up to the next sign, `\sin 2x \cos y`
being `\sin(2x)\cos(y)`. Several digits after a bare `^` are one exponent: `10^12` is a million millions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from argosy.reward.verifiers.tokens import UnreadableError, split_tokens

FUNCTIONS: Final = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "exp"}
)
"""Functions of one argument that have one meaning everywhere."""

_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|varphi|omega"
_UNNAMED = frozenset("fghPQ")
"""Letters that in front of a bracket are functions as often as factors."""

Tree = tuple[object, ...]
"""`("number", "12.5")`, `("letter", "x_1")`, `("constant", "pi")`, `("+", a, b)`, `("sin", a)`, …"""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula's tree, the letters in it, and whether it has a decimal point or the imaginary unit."""

    tree: Tree
    letters: frozenset[str]
    decimal: bool
    imaginary: bool
    unbased: bool
    """Whether it has a `\\log` without a base, which may be natural or decimal."""


def read(text: str) -> Formula:
    r"""Read a formula in `latex.plain` form. Raises UnreadableError.

    >>> read(r"2\sqrt{3}").tree
    ('*', ('number', '2'), ('root', ('number', '2'), ('number', '3')))
    """
    reader = _Reader(split_tokens(text))
    tree = reader.sum()
    if reader.here is not None:
        raise UnreadableError(f"{reader.here!r} is in the way")
    return Formula(tree, frozenset(reader.letters), reader.decimal, reader.imaginary, reader.unbased)


class _Reader:
    """Recursive descent; the nesting is bounded by `complexity.MOST_DEPTH` and by the number of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0
        self.letters: set[str] = set()
        self.decimal = False
        self.imaginary = False
        self.unbased = False

    @property
    def here(self) -> str | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def sum(self) -> Tree:
        tree = self._product()
        while self.here in ("+", "-"):
            sign = self._next()
            tree = (sign, tree, self._product())
        return tree

    def _product(self) -> Tree:
        if self.here in ("+", "-"):
            sign = self._next()
            tree = self._product()
            return ("negative", tree) if sign == "-" else tree
        return self._factors(inside_function=False)

    def _factors(self, *, inside_function: bool) -> Tree:
        tree = self._power()
        while True:
            if self.here in ("*", "/", "\\cdot", "\\times", "\\div"):
                if inside_function:
                    return tree
                operator = "/" if self._next() in ("/", "\\div") else "*"
                tree = (operator, tree, self._signed_power())
            elif self._starts_atom() and not (inside_function and self._is_function()):
                tree = ("*", tree, self._power())
            else:
                return tree

    def _signed_power(self) -> Tree:
        if self.here in ("+", "-"):
            return ("negative", self._signed_power()) if self._next() == "-" else self._signed_power()
        return self._power()

    def _power(self) -> Tree:
        tree = self._atom()
        while self.here == "!":
            self._next()
            tree = ("factorial", tree)
        if self.here == "^":
            self._next()
            tree = ("^", tree, self._argument())
        return tree

    def _argument(self) -> Tree:
        """What `^` and `_` apply to: a group, or one sign, number or atom."""
        if self.here == "{":
            return self._group()
        if self.here == "-":
            self._next()
            return ("negative", self._argument())
        return self._power()  # `^` binds to the right: 2^3^2

    def _group(self) -> Tree:
        self._expect("{")
        tree = self.sum()
        self._expect("}")
        return tree

    def _starts_atom(self) -> bool:
        token = self.here
        if token is None or token in ("\\cdot", "\\times", "\\div", "\\rfloor", "\\rceil", "\\rvert"):
            return False
        return token in ("(", "[", "{") or token[0] in "\\." or token[0].isalnum()

    def _is_function(self) -> bool:
        return (self.here or "")[1:] in FUNCTIONS or self.here == "\\log"

    def _atom(self) -> Tree:
        token = self._next()
        if token[0].isdigit() or token[0] == ".":
            self.decimal = self.decimal or "." in token
            if self.here == "\\frac":
                raise UnreadableError("a number before a fraction: a product or a mixed number")
            return ("number", token)
        if token in ("(", "[", "{"):
            tree = self.sum()
            self._expect({"(": ")", "[": "]", "{": "}"}[token])
            return tree
        if token == "|":
            tree = self.sum()
            self._expect("|")
            return ("abs", tree)
        return self._command(token[1:]) if token[0] == "\\" else self._letter(token)

    def _letter(self, name: str) -> Tree:
        if name in ("e", "i") and self.here != "_":
            self.imaginary = self.imaginary or name == "i"
            return ("constant", name)
        if name in _UNNAMED and self.here == "(":
            raise UnreadableError(f"{name}( may be a function")
        if self.here == "_":
            self._next()
            name += f"_{self._index()}"
        self.letters.add(name)
        return ("letter", name)

    def _index(self) -> str:
        token = self._next()
        if token != "{":
            return token
        pieces: list[str] = []
        while self.here not in ("}", None):
            pieces.append(self._next())
        self._expect("}")
        return "".join(pieces)

    def _command(self, name: str) -> Tree:
        if name == "pi":
            return ("constant", "pi")
        if name == "frac":
            return ("/", self._short_group(), self._short_group())
        if name in ("binom", "dbinom", "tbinom"):
            return ("binomial", self._short_group(), self._short_group())
        if name == "sqrt":
            return self._root()
        if name in ("lfloor", "lceil", "lvert"):
            tree = self.sum()
            self._expect({"lfloor": "\\rfloor", "lceil": "\\rceil", "lvert": "\\rvert"}[name])
            return ({"lfloor": "floor", "lceil": "ceiling", "lvert": "abs"}[name], tree)
        if name == "log" and self.here == "_":
            self._next()
            base = self._short_group()
            return ("/", ("ln", self._function_argument()), ("ln", base))
        if name == "log":
            self.unbased = True
            return self._function(name)
        if name in FUNCTIONS:
            return self._function(name)
        if re.fullmatch(_GREEK, name):
            return self._letter(name)
        raise UnreadableError(f"\\{name} has no meaning here")

    def _digit(self) -> Tree:
        r"""One digit of several: `\log_28` is the logarithm of 8 to the base 2, as LaTeX sets it."""
        token = self._next()
        if len(token) > 1:
            self._place -= 1
            self._tokens[self._place] = token[1:]
        return ("number", token[0])

    def _root(self) -> Tree:
        degree: Tree = ("number", "2")
        if self.here == "[":
            self._next()
            degree = self.sum()
            self._expect("]")
        if self.here == "(":
            return ("root", degree, self._atom())  # plain text: sqrt(5)
        return ("root", degree, self._short_group())

    def _short_group(self) -> Tree:
        r"""A group, or as in `\frac ab` and `\sqrt x` one letter or digit."""
        if self.here == "{":
            return self._group()
        return self._digit() if (self.here or "").isdigit() else self._letter(self._one_letter())

    def _one_letter(self) -> str:
        token = self._next()
        if len(token) != 1 or not token.isalpha():
            raise UnreadableError(f"{token!r} where a group should be")
        return token

    def _function(self, name: str) -> Tree:
        power: Tree | None = None
        if self.here == "^":
            self._next()
            power = self._argument()
            if power == ("negative", ("number", "1")):
                raise UnreadableError("an inverse function or a reciprocal")
        tree: Tree = (name, self._function_argument())
        if self.here == "^":  # \sin(x)^2 is the sine's square, as \sin^2(x) is
            if power is not None:
                raise UnreadableError("two powers of a function")
            self._next()
            power = self._argument()
        return tree if power is None else ("^", tree, power)

    def _function_argument(self) -> Tree:
        if self.here in ("(", "[", "{", "|"):
            return self._atom()
        if self.here == "-":
            self._next()
            return ("negative", self._factors(inside_function=True))
        return self._factors(inside_function=True)

    def _next(self) -> str:
        token = self.here
        if token is None:
            raise UnreadableError("it ends too early")
        self._place += 1
        return token

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise UnreadableError(f"{token!r} is missing")
