"""Runs AMD's published pseudocode of an instruction (CDNA ISA guides, section 12; the text is tinygrad's table of it).

A recursive descent over the C-like text. Registers are integers of bits; `.f32`, `.i16` and so on read or write them as
numbers. Float arithmetic is done in double and rounded where it is assigned, which for one operation of float32 is the
same as rounding once.
"""

import math
import re
from typing import Any

from pseudonumbers import FLOATS, FUNCTIONS, Bits, bits, divide, to_bits, to_number

_TOKEN = re.compile(
    r"\s*(\d+'[UIFB](?=\()|\d+'0x[0-9a-f]+|\d+'\d+[UIF]?|0x[0-9a-fA-F]+(?:U?LL|U)?|\d+\.\d+F?|\d+(?:U?LL|U|F)?"
    r"|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|[-+*/%&|^~!?:;=.,<>(){}\[\]])"
)
_BINARY = [["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!=", "<>"], ["<", ">", "<=", ">="], ["<<", ">>"], ["+", "-"],
           ["*", "/", "%"], ["**"]]  # fmt: skip


class Machine:
    """Runs one text. `env`: registers as bits before and after; other names are the text's own variables."""

    def __init__(self, text: str, env: dict[str, Any], calls: dict[str, Any] | None = None) -> None:
        self.tokens = _tokens(text)
        self.at, self.env, self.calls, self.broken = 0, env, FUNCTIONS | (calls or {}), False

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
        elif self.peek() == "break":
            self.take()
            self.broken = self.broken or live
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
            self.block(live and not self.broken, ("endfor",))
        self.take("endfor")
        self.broken = False

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
            self.env[name] = bits(keep | raw, max(64, width))
            return
        high, low = slices[-1]
        width = abs(high - low) + 1
        last_is_kind = path[-1][0] == "kind"
        raw = int(to_bits(value, path[-1][1])) if last_is_kind and path[-1][1] in (*FLOATS, "bf16") else int(value)
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
                value = bits(int("".join(str(value >> i & 1) for i in range(part[0], part[1] + 1)), 2), 32)
            else:
                value = bits(int(value) >> part[1], part[0] - part[1] + 1)
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
            value = bits(value, width)
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
        return bits(int(digits.rstrip("UIF"), 0), int(width))
    if "." in token or (token.endswith("F") and not token.startswith("0x")):
        return float(token.rstrip("F"))
    return int(token.rstrip("UL"), 0)


def _cast(token: str, value: Any) -> Any:
    width, kind = token.split("'")
    if kind == "F":
        return float(value) if not isinstance(value, Bits) else to_number(value, f"f{width}")
    return bits(int(value), int(width)) if kind != "I" else to_number(int(value), f"i{width}")


def _apply(operator: str, a: Any, b: Any) -> Any:
    return {
        "||": lambda: a or b, "&&": lambda: a and b, "|": lambda: int(a) | int(b), "^": lambda: int(a) ^ int(b),
        "&": lambda: int(a) & int(b), "==": lambda: a == b, "!=": lambda: a != b, "<>": lambda: a < b or a > b,
        "<": lambda: a < b, ">": lambda: a > b, "<=": lambda: a <= b, ">=": lambda: a >= b, "<<": lambda: a << b,
        ">>": lambda: a >> b, "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: divide(a, b),
        "%": lambda: a % b, "**": lambda: math.ldexp(1.0, max(min(int(b), 1000), -1000)),
    }[operator]()  # fmt: skip
