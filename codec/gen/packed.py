"""
packed.py - straight lines and loops of the Mojette codes whose pixels are narrower than vectors.

Geometry is that of docs/CODEC.md and codec/mojette.c, names too: t = column - row * p. The lost rows
come back by division instead of by a sweep: with z a shift by one column, a projection is a
sum of z^(row * -p) times row, and eliminating rows leaves quotients by 1 + z^a, which are
recurrences that vectors can do (series.Quotient).
"""
from itertools import combinations

from lines import DECODE_ARGS, ENCODE_ARGS, WIDTH, Kernel
from series import PIXEL_BYTES, Program, Quotient, Row, Sum, Writer

SLOPES = (0, 1, -1, 2)
BLOCKS = (8192, 4096)


class Shape:
    """One code: projections (p, 1) with their first bin and the bins beyond a row's length."""

    def __init__(self, kind, k, n):
        self.kind, self.k, self.n = kind, k, n
        self.slope, self.first_bin, self.beyond = {}, {}, {}
        if kind == "CODEC_MOJETTE":
            for i, p in zip(range(k, n), SLOPES):
                self.add(i, p, 0, k - 1)
        else:
            for i in range(n):
                self.add(i, i - n // 2, max(0, i - (n - k)), min(i, k - 1))
        self.name = kind.lower().removeprefix("codec_") + f"_{k}_{n}"

    def add(self, i, p, first_row, last_row):
        self.slope[i] = p
        self.first_bin[i] = -p * (first_row if p < 0 else last_row)
        self.beyond[i] = abs(p) * (last_row - first_row)

    def row_bytes(self, block_bytes):
        return block_bytes // self.k

    def projection(self, program, i):
        return Row(program, f"body{i}", f"overhang{i}", self.beyond[i])


def functions(isa, name, args, pointers, program_of, sizes, form):
    """
    Yield (row_bytes, name, code) of one function for each row length of `sizes`. Forms: "straight"
    lines, a "loop" for each, or one "shared" loop (straight lines where steps differ too much).
    """
    vectors = [size // WIDTH[isa] for size in sizes]
    writer = Writer(program_of(vectors[0]))
    first, length = writer.longest_run()
    n_loops = [length - (vectors[0] - n) for n in vectors]
    if form == "shared" and min(n_loops) > 0:
        writer.looped(first, length)
        head = f"void {name}({args}, size_t row_bytes, size_t n_loops)"
        call = ", ".join(arg.split()[-1].strip("*[]") for arg in args.split(", "))
        code = block(f"__attribute__((noinline)) {head}", [*pointers(writer.bases), *writer.text])
        for size, n in zip(sizes, n_loops):
            code += block(f"void {name}_{size}({args})", [f"{name}({call}, {size}, {n});"])
            yield size, f"{name}_{size}", code
            code = f"{head};\n\n"
        return
    for size, n in zip(sizes, vectors):
        writer = Writer(program_of(n))
        first, length = writer.longest_run()
        constants = [f"const size_t row_bytes = {size};"]
        if form == "loop" and length > 2:
            writer.looped(first, length)
            constants.append(f"const size_t n_loops = {length};")
        else:
            writer.straight()
        lines = constants + pointers(writer.bases) + writer.text
        yield size, f"{name}_{size}", block(f"void {name}_{size}({args})", lines)


def block(head, lines):
    declaration = head.replace("__attribute__((noinline)) ", "")
    return "\n".join([f"{head};", declaration, "{", *[f"    {line}" for line in lines], "}", ""])


def encode(isa, shape, copies):
    def program_of(n_vectors):
        program = Program(isa, n_vectors, hold=1 if isa == "avx512" else 0)
        rows = [Row(program, f"row{row}") for row in range(shape.k)]
        outs = [(Row(program, f"body{row}"), rows[row]) for row in range(shape.k if copies else 0)]
        outs += [(shape.projection(program, i),
                  Sum(program, [(row, shape.first_bin[i] + at * p) for at, row in enumerate(rows)]))
                 for i, p in shape.slope.items()]
        for j in range(max(out.n_vectors for out, _ in outs)):
            program.begin_step()
            for out, series in outs:
                if j < out.n_vectors:
                    program.store(out, j, series.vector(j))
        return program

    def pointers(bases):
        text = [f"const uint8_t *const row{row} = data + {row} * row_bytes;"
                for row in range(shape.k)]
        for i in range(shape.n):
            text += [f"uint8_t *const body{i} = body[{i}];"] * (f"body{i}" in bases)
            text += [f"uint8_t *const overhang{i} = overhang[{i}];"] * (f"overhang{i}" in bases)
        return text

    name = f"{shape.name}_{isa}_encode{'_all' if copies else ''}"
    sizes = [shape.row_bytes(size) for size in BLOCKS]
    form = "loop" if isa == "128" or shape.k < 8 else "straight"
    for size, full_name, code in functions(isa, name, ENCODE_ARGS, pointers, program_of, sizes,
                                           form):
        yield Kernel(shape.kind, shape.k, shape.n, size, full_name, code, copies=copies)


def kernels(isa):
    systematic = Shape("CODEC_MOJETTE", 8, 12)
    yield from encode(isa, systematic, copies=False)
    yield from encode(isa, systematic, copies=True)
    for k, n in ((2, 3), (4, 6), (8, 12)):
        if isa == "128" and k == 8:
            continue  # 39 KB would be slower than the loops of kernel.c
        yield from encode(isa, Shape("CODEC_MOJETTE_NONSYSTEMATIC", k, n), copies=False)
