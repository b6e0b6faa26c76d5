"""
lines.py - straight lines of C: loads, XORs and stores of vectors, nothing else.

A module such as mojette.py says, in order, which sums go where. Lines turns that into C and keeps
count of what a machine has in its registers: a vector that was loaded or computed lately is
taken from there, an older one is loaded again. So the compiler has nothing to spill.
"""
from collections import OrderedDict
from dataclasses import dataclass

WIDTH = {"128": 16, "avx2": 32, "avx512": 64}  # bytes of the widest vector
REGISTERS = {"128": 16, "avx2": 16, "avx512": 32}
LAYOUTS = ((2, 3), (4, 6), (8, 12))  # k, n
BLOCKS = (8192, 4096)  # bytes
SLOPES = (0, 1, -1, 2)  # of the projections of systematic codes that are not rows, in order

ENCODE_ARGS = "const uint8_t *data, uint8_t *const body[], uint8_t *const overhang[]"
DECODE_ARGS = "const uint8_t *const body[], const uint8_t *const overhang[], uint8_t *data"


@dataclass
class Kernel:
    """One function, and the row of the table by which it is found."""

    kind: str  # as in enum codec_kind
    k: int
    n: int
    row_bytes: int
    name: str
    code: str
    copies: bool = False  # encode: the rows too
    far: bool = False  # encode: fetches ahead what it writes, for blocks that are not in L1
    uses: int = None  # decode: the projections that are read; None for encode


@dataclass
class Helper:
    """A function that kernels call; no table has it."""

    name: str
    code: str


class Shape:
    """One systematic code on blocks of one size; `form` begins the names of its functions."""

    form = kind = None

    def __init__(self, k, n, block_bytes):
        self.k, self.n = k, n
        self.row_bytes = block_bytes // k
        self.slope = dict(zip(range(k, n), SLOPES))  # of projection i

    def name(self, isa, what):
        return f"{self.form}_{isa}_{self.k}_{self.n}_{self.row_bytes}_{what}"

    def encode_kernel(self, lines, isa, pointers, copies, far):
        name = self.name(isa, "encode" + ("_all" if copies else "_far" if far else ""))
        code = lines.function(name, ENCODE_ARGS, pointers)
        return Kernel(self.kind, self.k, self.n, self.row_bytes, name, code, copies=copies, far=far)

    def decode_kernel(self, lines, isa, pointers, reads, before="", first=(), last=()):
        uses = sum(1 << i for i in reads)
        name = self.name(isa, f"decode_{uses:x}")
        code = before + lines.function(name, DECODE_ARGS, pointers, first, last)
        return Kernel(self.kind, self.k, self.n, self.row_bytes, name, code, uses=uses)


@dataclass(frozen=True)
class At:
    """A vector in memory: pixel `index` of what local pointer `base` points to."""

    base: str
    index: int


class Lines:
    """The body of one function, on pixels of pixel_bytes, in vectors of `width` bytes."""

    def __init__(self, isa, pixel_bytes, spare=6):
        self.width = min(WIDTH[isa], pixel_bytes)
        self.pixel_bytes = pixel_bytes
        self.held_max = REGISTERS[isa] - spare  # the rest is for sums on their way
        self.held = OrderedDict()  # At -> the variable that has it, longest unused first
        self.bases = set()
        self.n_vars = 0
        self.text = []

    def address(self, at):
        self.bases.add(at.base)
        return f"{at.base} + {at.index * self.pixel_bytes}"

    def define(self, expression):
        self.n_vars += 1
        self.text.append(f"const vec{self.width} v{self.n_vars} = {expression};")
        return f"v{self.n_vars}"

    def hold(self, at, var):
        self.held[at] = var
        self.held.move_to_end(at)
        if len(self.held) > self.held_max:
            self.held.popitem(last=False)

    def load(self, at):
        var = self.held.get(at) or self.define(f"ld{self.width}({self.address(at)})")
        self.hold(at, var)
        return var

    def sum(self, sources):
        """The XOR of vectors in memory; those that were computed last belong to the end."""
        left = [self.load(at) for at in sources]
        while len(left) > 2:
            left[:3] = [self.define(f"xor3_{self.width}({', '.join(left[:3])})")]
        return left[0] if len(left) == 1 else self.define(f"{left[0]} ^ {left[1]}")

    def store(self, at, var):
        """at is then as good as loaded."""
        self.text.append(f"st{self.width}({self.address(at)}, {var});")
        self.hold(at, var)

    def fetch(self, at):
        """at will be written soon: its line may come nearer already."""
        self.text.append(f"__builtin_prefetch({self.address(at)}, 1);")

    def function(self, name, args, pointers, first=(), last=()):
        """pointers: local name -> (is it const, C expression); those not used are left out.

        first, last: more lines, which are done once, however wide a pixel is.
        """
        text = [f"void {name}({args});", f"void {name}({args})", "{"]
        text += [f"    {'const ' if is_const else ''}uint8_t *{local} = {expression};"
                 for local, (is_const, expression) in pointers.items() if local in self.bases]
        text += [f"    {line}" for line in first]
        lanes = self.pixel_bytes // self.width
        if lanes > 1:  # all pointers go on: sums of pointers and x would fill the registers
            text.append(f"    for (unsigned lane = 0; lane < {lanes}; lane++) {{")
        text += [f"    {line}" for line in self.text]
        if lanes > 1:
            text += [f"    {local} += {self.width};" for local in pointers if local in self.bases]
            text.append("    }")
        text += [f"    {line}" for line in last]
        return "\n".join(text + ["}", ""])
