"""Runs AMD's published pseudocode of an instruction (CDNA ISA guides, section 12; the text is tinygrad's table of it).

A recursive descent over the C-like text. Registers are integers of bits; `.f32`, `.i16` and so on read or write them as
numbers. Float arithmetic is done in double and rounded where it is assigned, which for one operation of float32 is the
same as rounding once.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np

_TOKEN = re.compile(
    r"\s*(\d+'[UIFB](?=\()|\d+'0x[0-9a-f]+|\d+'\d+[UIF]?|0x[0-9a-fA-F]+(?:U?LL|U)?|\d+\.\d+F?|\d+(?:U?LL|U|F)?"
    r"|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|[-+*/%&|^~!?:;=.,<>(){}\[\]])"
)
_BINARY = [["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!=", "<>"], ["<", ">", "<=", ">="], ["<<", ">>"], ["+", "-"],
           ["*", "/", "%"], ["**"]]  # fmt: skip
_FLOATS = {"f32": (np.float32, np.uint32), "f16": (np.float16, np.uint16), "f64": (np.float64, np.uint64)}


class Bits(int):
    """An integer that knows how many bits were read: what { a, b } needs."""

    width = 0


def _bits(value: int, width: int) -> Bits:
    found = Bits(value & ((1 << width) - 1))
    found.width = width
    return found


def to_number(raw: Any, kind: str) -> Any:
    """Bits (or a number) read as `u32`, `i16`, `f32`, `b64`, `bf16`, `u24` ..."""
    if isinstance(raw, float):
        return raw
    if kind == "bf16":
        return float(np.uint32((raw & 0xFFFF) << 16).view(np.float32))
    if kind in _FLOATS:
        real, whole = _FLOATS[kind]
        return float(whole(raw & ((1 << int(kind[1:])) - 1)).view(real))
    width = int(kind[1:])
    value = _bits(raw, width)
    return value - (1 << width) if kind[0] == "i" and value >> (width - 1) else value


def to_bits(value: Any, kind: str) -> Bits:
    """A number as the bits of `kind`. A float keeps its sign of zero; NaN is one NaN."""
    if kind == "bf16":
        raw = int(np.float32(value).view(np.uint32))
        return _bits((raw >> 16) | 0x40 if math.isnan(value) else (raw + 0x7FFF + (raw >> 16 & 1)) >> 16, 16)
    if kind in _FLOATS:
        real, whole = _FLOATS[kind]
        with np.errstate(all="ignore"):
            return _bits(int(real(float(value)).view(whole)), int(kind[1:]))
    return _bits(int(value), int(kind[1:]))


def _fma(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    with np.errstate(over="ignore"):
        near = np.float32(float(exact))
    if not np.isfinite(near):
        return float(near)
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    finite = [x for x in around if np.isfinite(x)]
    return float(min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1)))


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return a // b


def _saturating(low: int, high: int) -> Any:
    return lambda x: 0 if math.isnan(x) else int(min(max(math.trunc(x) if math.isfinite(x) else x, low), high))


def _quiet(function: Any) -> Any:
    def call(*values: Any) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(value) for value in values)))

    return call


FUNCTIONS = {
    "fma": _fma, "pow": _quiet(lambda a, b: a**b), "log2": _quiet(np.log2), "sqrt": _quiet(np.sqrt), "abs": abs,
    "trunc": _quiet(np.trunc), "floor": _quiet(np.floor), "fract": _quiet(lambda x: x - np.floor(x)),
    "isEven": lambda x: x % 2 == 0, "isNAN": math.isnan, "isSignalNAN": lambda x: False, "cvtToQuietNAN": lambda x: x,
    "sign": lambda x: int(math.copysign(1, x) < 0), "ldexp": _quiet(lambda x, n: np.ldexp(x, int(n))),
    "exponent": lambda x: int(np.float32(x).view(np.uint32)) >> 23 & 255, "signext": lambda x: x,
    "signext_from_bit": lambda x, n: (x & ((1 << n) - 1)) - (1 << n) if n and x >> (n - 1) & 1 else x & ((1 << n) - 1),
    "f32_to_i32": _saturating(-(2**31), 2**31 - 1), "f32_to_u32": _saturating(0, 2**32 - 1),
    **{name: float for name in ("f16_to_f32", "f32_to_f16", "bf16_to_f32", "f32_to_bf16", "i32_to_f32", "u32_to_f32")},
}  # fmt: skip


class Machine:
    """Runs one text. `env`: registers as bits before and after; other names are the text's own variables."""

    def __init__(self, text: str, env: dict[str, Any], calls: dict[str, Any] | None = None) -> None:
        self.tokens = _tokens(text)
        self.at, self.env, self.calls = 0, env, FUNCTIONS | (calls or {})

    def run(self) -> dict[str, Any]:
        self.block(True, ())
        return self.env

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        assert expected is None or token == expected, (expected, self.tokens[self.at : self.at + 8])
        self.at += 1
        return token

    def block(self, live: bool, ends: tuple[str, ...]) -> None:
        while self.peek() and self.peek() not in ends:
            self.statement(live)
            while self.peek() == ";":
                self.take()

    def statement(self, live: bool) -> None:
        if self.peek() == "if":
            self.choice(live)
        elif self.peek() == "for":
            self.loop(live)
        elif self.peek() == "declare":
            while self.peek() != ";":
                self.take()
        else:
            self.assignment(live)

    def choice(self, live: bool) -> None:
        done = False
        while self.peek() != "endif":
            word = self.take()
            holds = word == "else" or bool(self.expression())
            if word != "else":
                self.take("then")
            self.block(live and holds and not done, ("elsif", "else", "endif"))
            done = done or holds
        self.take("endif")

    def loop(self, live: bool) -> None:
        self.take("for")
        name = self.take()
        self.take("in")
        first = self.expression()
        self.take(":")
        last = self.expression()
        self.take("do")
        start = self.at
        for i in range(first, last + 1):
            self.at, self.env[name] = start, Bits(i)
            self.block(live, ("endfor",))
        self.take("endfor")

    def target(self) -> tuple[str, list[tuple[str, Any]]]:
        name, path = self.take(), []
        while self.peek() in (".", "["):
            if self.take() == ".":
                path.append(("kind", self.take()))
            else:
                high = self.expression()
                low = high
                if self.peek() == ":":
                    self.take()
                    low = self.expression()
                self.take("]")
                path.append(("slice", (high, low)))
        return name, path

    def assignment(self, live: bool) -> None:
        if self.peek() == "{":  # { D1.u1, D0.u64 } = 65'B(...)
            self.take("{")
            high = self.target()
            self.take(",")
            low = self.target()
            self.take("}")
            self.take("=")
            value = int(self.expression())
            if live:
                self.store(low, value, "=")
                self.store(high, value >> 64, "=")
            return
        target = self.target()
        operation = self.take()
        value = self.expression()
        if live:
            self.store(target, value, operation)

    def store(self, target: tuple[str, list], value: Any, operation: str) -> None:
        name, path = target
        kind = next((part for what, part in reversed(path) if what == "kind"), None)
        slices = [part for what, part in path if what == "slice"]
        if operation != "=":
            old = self.read(self.env[name], path)
            value = old + value if operation == "+=" else old - value
        if not slices and kind is None:
            self.env[name] = value
            return
        raw = to_bits(value, kind) if kind and not slices else None
        if raw is not None:
            width, whole = raw.width, self.env.get(name, 0)
            keep = whole >> width << width if isinstance(whole, int) else 0
            self.env[name] = _bits(keep | raw, max(64, width))
            return
        high, low = slices[-1]
        width = abs(high - low) + 1
        last_is_kind = path[-1][0] == "kind"
        raw = int(to_bits(value, path[-1][1])) if last_is_kind and path[-1][1] in (*_FLOATS, "bf16") else int(value)
        if high < low:  # D0[31 : 0] = S0[0 : 31] reverses on the reading side alone
            high, low = low, high
        mask = ((1 << width) - 1) << low
        self.env[name] = Bits((int(self.env.get(name, 0)) & ~mask) | ((raw << low) & mask))

    def read(self, value: Any, path: list[tuple[str, Any]]) -> Any:
        for what, part in path:
            if what == "kind":
                value = to_number(value, part)
            elif isinstance(value, list):
                value = value[part[0]]
            elif part[0] < part[1]:
                value = _bits(int("".join(str(value >> i & 1) for i in range(part[0], part[1] + 1)), 2), 32)
            else:
                value = _bits(int(value) >> part[1], part[0] - part[1] + 1)
        return value

    def expression(self) -> Any:
        value = self.binary(0)
        if self.peek() != "?":
            return value
        self.take("?")
        yes = self.expression()
        self.take(":")
        no = self.expression()
        return yes if value else no

    def binary(self, level: int) -> Any:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _BINARY[level]:
            left = _apply(self.take(), left, self.binary(level + 1))
        return left

    def unary(self) -> Any:
        if self.peek() in ("-", "+", "~", "!"):
            operator, value = self.take(), self.unary()
            return {"-": lambda: -value, "+": lambda: value, "~": lambda: ~int(value), "!": lambda: not value}[
                operator
            ]()
        return self.postfix()

    def postfix(self) -> Any:
        token = self.take()
        if token == "(":
            value = self.expression()
            self.take(")")
        elif token == "{":
            parts = [self.expression()]
            while self.peek() == ",":
                self.take()
                parts.append(self.expression())
            self.take("}")
            value, width = 0, 0
            for part in parts:
                value, width = value << part.width | part, width + part.width
            value = _bits(value, width)
        elif self.peek() == "(":
            self.take("(")
            values = [self.expression()]
            while self.peek() == ",":
                self.take()
                values.append(self.expression())
            self.take(")")
            value = _cast(token, values[0]) if "'" in token else self.calls[token](*values)
        else:
            value = _literal(token) if token[0].isdigit() else {"INF": math.inf, "NAN": math.nan}.get(token)
            value = self.env[token] if value is None else value
        self.at -= 1
        _, path = self.target()
        return self.read(value, path)


def _tokens(text: str) -> list[str]:
    text = "\n".join(line.split("//")[0] for line in text.split("\n"))
    text = re.sub(r"\n", " ", text)
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        assert match, text[at : at + 30]
        found.append(match[1])
        at = match.end()
    return found


def _literal(token: str) -> Any:
    if "'" in token:
        width, digits = token.split("'")
        return _bits(int(digits.rstrip("UIF"), 0), int(width))
    if "." in token or (token.endswith("F") and not token.startswith("0x")):
        return float(token.rstrip("F"))
    return int(token.rstrip("UL"), 0)


def _cast(token: str, value: Any) -> Any:
    width, kind = token.split("'")
    if kind == "F":
        return float(value) if not isinstance(value, Bits) else to_number(value, f"f{width}")
    return _bits(int(value), int(width)) if kind != "I" else to_number(int(value), f"i{width}")


def _apply(operator: str, a: Any, b: Any) -> Any:
    return {
        "||": lambda: a or b, "&&": lambda: a and b, "|": lambda: int(a) | int(b), "^": lambda: int(a) ^ int(b),
        "&": lambda: int(a) & int(b), "==": lambda: a == b, "!=": lambda: a != b, "<>": lambda: a < b or a > b,
        "<": lambda: a < b, ">": lambda: a > b, "<=": lambda: a <= b, ">=": lambda: a >= b, "<<": lambda: a << b,
        ">>": lambda: a >> b, "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: _divide(a, b),
        "%": lambda: a % b, "**": lambda: math.ldexp(1.0, max(min(int(b), 1000), -1000)),
    }[operator]()  # fmt: skip
