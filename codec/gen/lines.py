"""
lines.py - straight-line C: only loads, XORs and stores of vectors.

A module such as mojette.py lists, in order, the sums and where each is stored. Lines turns
that into C and tracks which vectors are in registers: one that was loaded or computed recently
is used from its register, an older one is loaded again. So the compiler has nothing to spill.
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
    """One function, and its row in the table of kernels."""

    kind: str  # as in enum codec_kind
    k: int
    n: int
    row_bytes: int
    name: str
    code: str
    copies: bool = False  # encode: also copies the rows
    far: bool = False  # encode: prefetches what it writes, for blocks not in L1
    uses: int = None  # decode: the projections that are read; None for encode


@dataclass
class Helper:
    """A function that kernels call; it is in no table."""

    name: str
    code: str


class Shape:
    """A systematic code on blocks of one size; `form` is the prefix of its function names."""

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
    """A vector in memory: pixel `index` after the local pointer `base`."""

    base: str
    index: int


class Lines:
    """The body of one function, on pixels of pixel_bytes, in vectors of `width` bytes."""

    def __init__(self, isa, pixel_bytes, spare=6):
        self.width = min(WIDTH[isa], pixel_bytes)
        self.pixel_bytes = pixel_bytes
        self.held_max = REGISTERS[isa] - spare  # the rest is for sums in progress
        self.held = OrderedDict()  # At -> the variable that holds it, least recently used first
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
        """Return the XOR of vectors in memory. Pass those that were computed last at the end."""
        left = [self.load(at) for at in sources]
        while len(left) > 2:
            left[:3] = [self.define(f"xor3_{self.width}({', '.join(left[:3])})")]
        return left[0] if len(left) == 1 else self.define(f"{left[0]} ^ {left[1]}")

    def store(self, at, var):
        """Store var at `at`, which then counts as loaded."""
        self.text.append(f"st{self.width}({self.address(at)}, {var});")
        self.hold(at, var)

    def fetch(self, at):
        """Prefetch the cache line of `at`, which is written soon."""
        self.text.append(f"__builtin_prefetch({self.address(at)}, 1);")

    def function(self, name, args, pointers, first=(), last=()):
        """Return the C of the whole function.

        pointers: local name -> (is it const, C expression); unused ones are left out.
        first, last: further lines, which run once, however wide a pixel is.
        """
        text = [f"void {name}({args});", f"void {name}({args})", "{"]
        text += [f"    {'const ' if is_const else ''}uint8_t *{local} = {expression};"
                 for local, (is_const, expression) in pointers.items() if local in self.bases]
        text += [f"    {line}" for line in first]
        lanes = self.pixel_bytes // self.width
        if lanes > 1:  # moves the pointers: pointer + x would need more registers
            text.append(f"    for (unsigned lane = 0; lane < {lanes}; lane++) {{")
        text += [f"    {line}" for line in self.text]
        if lanes > 1:
            text += [f"    {local} += {self.width};" for local in pointers if local in self.bases]
            text.append("    }")
        text += [f"    {line}" for line in last]
        return "\n".join(text + ["}", ""])
