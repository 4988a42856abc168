"""Parse the assembly text of a kernel: instructions with operands and modifiers, labels, and the initial state of a
wave."""

import re
from dataclasses import dataclass

from compare.static import amd_code
from compare.static.isa.errors import ForeignCode, NotExecutable
from compare.static.isa.state import POISON

_VALUED = re.compile(
    r"\b(offset0|offset1|offset|op_sel_hi|op_sel|neg_lo|neg_hi|dst_sel|dst_unused|src0_sel|src1_sel|bitop3|cbsz|abid"
    r"|blgp|row_mask|bank_mask|bound_ctrl|row_shr|row_shl|row_ror|row_newbcast|row_bcast|quad_perm|mul|div)"
    r":(\[[^\]]*\]|swizzle\([^)]*\)|[-\w]+)"
)
_FLAG = re.compile(r"(?<![\w.])(offen|idxen|lds|sc0|sc1|nt|glc|slc|dlc|gds|row_mirror|row_half_mirror|clamp)(?![\w:])")
_FORM = re.compile(r"_(e32|e64|sdwa|dpp)$")
_MODE = {"float_round_mode_32": 0, "float_round_mode_16_64": 0, "float_denorm_mode_32": 3, "float_denorm_mode_16_64": 3,
         "dx10_clamp": 1}  # fmt: skip
_OPERANDS = re.compile(r",\s*(?![^\[(]*[\])])")


@dataclass
class Instruction:
    """One line. `base`: the mnemonic without encoding. Whoever decodes it takes its modifiers; a leftover is
    refused."""

    mnemonic: str
    base: str
    form: str
    operands: list[str]
    modifiers: dict[str, str]
    arch: str = "gfx942"

    def take(self, name: str, default: str = "0") -> str:
        return self.modifiers.pop(name, default)

    def number(self, name: str, default: str = "0") -> int:
        return int(self.take(name, default), 0)

    def flags(self, *names: str) -> bool:
        """Take these flags; returns whether the last one is present."""
        return [self.modifiers.pop(name, None) is not None for name in names][-1]

    def numbers(self, name: str, default: list[int]) -> list[int]:
        """A bracketed modifier: `op_sel_hi:[1,0]`."""
        text = self.modifiers.pop(name, None)
        return default if text is None else [int(part) for part in text.strip("[]").split(",")]

    def finish(self) -> None:
        """Raise NotExecutable for a modifier that nobody took."""
        if self.modifiers:
            raise NotExecutable(self.mnemonic, "modifier " + ", ".join(f"{k}:{v}" for k, v in self.modifiers.items()))


@dataclass(frozen=True)
class Listing:
    """The text of one kernel. `labels`: the index of the instruction behind each. `start`: its .amdhsa_ directives."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    start: dict[str, int]


def instruction(mnemonic: str, text: str, arch: str = "gfx942") -> Instruction:
    """One instruction from its mnemonic and the text of its operands; `arch` decides what an fp8 is."""
    modifiers: dict[str, str] = {}

    def valued(found: re.Match) -> str:
        modifiers[found[1]] = found[2]
        return ""

    def flag(found: re.Match) -> str:
        modifiers[found[1]] = "1"
        return ""

    text = _FLAG.sub(flag, _VALUED.sub(valued, text))
    form = _FORM.search(mnemonic)
    operands = [part.strip() for part in _OPERANDS.split(text.strip()) if part.strip()]
    return Instruction(mnemonic, _FORM.sub("", mnemonic), form[1] if form else "", operands, modifiers, arch)


def _short_branches(code: list[tuple[str, str]]) -> None:
    """Replace, in place, a branch printed as a sum with the program counter (too far for 16 bits) by one branch. The
    sum's carry and two registers are lost, which no code may read."""
    for i in range(len(code) - 3):
        names, texts = zip(*code[i : i + 4], strict=True)
        found = re.fullmatch(r"s\[(\d+):(\d+)\]", texts[0])
        if names != ("s_getpc_b64", "s_add_u32", "s_addc_u32", "s_setpc_b64") or not found or texts[3] != texts[0]:
            continue
        low, high = f"s{found[1]}", f"s{found[2]}"
        to = re.fullmatch(rf"{low}, {low}, \((\.L\w+)-(\.L\w+)\)&4294967295", texts[1])
        if to and texts[2] == f"{high}, {high}, ({to[1]}-{to[2]})>>32":
            unread = [("s_mov_b32", f"{register}, {int(POISON):#x}") for register in (low, high)]
            code[i : i + 4] = [*unread, ("s_cmp_lg_u32", "0, 0"), ("s_branch", to[1])]


def parse(assembly: str) -> Listing:
    """Parse a kernel's text. Raises ForeignCode for another GPU's kernel, UnreadableCode for truncated text,
    NotExecutable for one that starts with another MODE than the model's."""
    target = re.search(r'\.amdgcn_target "[^"]*(gfx9(?:0a|42|50))', assembly)
    if not target or ".amdhsa_kernel " not in assembly:
        raise ForeignCode("assembly: found no kernel for a CDNA GPU, allowed one for gfx90a, gfx942 or gfx950")
    text = amd_code.parse(assembly)
    start = {name: int(value) for name, value in re.findall(r"\.amdhsa_(\w+) (\d+)\s", assembly)}
    for name, allowed in _MODE.items():
        if start.get(name, allowed) != allowed:
            raise NotExecutable(f".amdhsa_{name} {start[name]}", f"allowed {allowed}")
    code = list(text.instructions)
    _short_branches(code)
    return Listing(tuple(instruction(*one, target[1]) for one in code), text.labels, start)
