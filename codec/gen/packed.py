"""
packed.py - writes the functions of the Mojette codes whose pixels are narrower than vectors.

Geometry and names are those of docs/CODEC.md and codec/mojette.c: t = column - row * p. Lost
rows are rebuilt by division instead of by a sweep: with z a shift by one column, a projection
is the sum over all rows of z^(row * -p) times the row. Eliminating rows leaves quotients by
1 + z^a, which are recurrences that vectors can compute (series.Quotient).
"""
from itertools import combinations

from lines import BLOCKS, DECODE_ARGS, ENCODE_ARGS, LAYOUTS, SLOPES, WIDTH, Kernel
from series import Cut, Program, Quotient, Row, Sum, Writer



class Shape:
    """One code: its slopes p, and for each the first bin and the number of bins beyond a row."""

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
    """Yield (row_bytes, name, code) of one function for each row length in `sizes`.

    form is "straight" (straight-line code), "loop" (a loop in each function) or "shared" (one
    loop that all of them call; straight-line code if the steps differ too much).
    """
    vectors = [size // WIDTH[isa] for size in sizes]
    writer = Writer(program_of(vectors[0]), pointers)
    first, length = writer.longest_run()
    n_loops = [length - (vectors[0] - n) for n in vectors]
    if form == "shared" and min(n_loops) >= 0:
        writer.looped(first, length)
        head = f"void {name}({args}, size_t row_bytes, size_t n_loops)"
        call = ", ".join(arg.split()[-1].strip("*[]") for arg in args.split(", "))
        code = block(f"VEC_APART {head}", writer.text)
        for size, n in zip(sizes, n_loops):
            code += block(f"void {name}_{size}({args})", [f"{name}({call}, {size}, {n});"])
            yield size, f"{name}_{size}", code
            code = f"{head};\n\n"
        return
    for size, n in zip(sizes, vectors):
        writer = Writer(program_of(n), pointers)
        first, length = writer.longest_run()
        if form == "loop" and length > 2:
            writer.looped(first, length)
        else:
            writer.straight()
        constants = f"enum {{ row_bytes = {size}, n_loops = {length} }};"
        yield size, f"{name}_{size}", block(f"void {name}_{size}({args})", [constants, *writer.text])


def block(head, lines):
    declaration = head.removeprefix("VEC_APART ")
    return "\n".join([f"{head};", declaration, "{", *[f"    {line}" for line in lines], "}", ""])


def encode(isa, shape, copies):
    def program_of(n_vectors):
        program = Program(isa, n_vectors, hold=1 if isa == "avx512" else 0)
        rows = [Row(program, f"row{row}", copy=f"body{row}" if copies else None) for row in range(shape.k)]
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

    pointers = {f"row{row}": f"const uint8_t *const row{row} = data + {row} * row_bytes;"
                for row in range(shape.k)}
    for i in range(shape.n):
        pointers[f"body{i}"] = f"uint8_t *const body{i} = body[{i}];"
        pointers[f"overhang{i}"] = f"uint8_t *const overhang{i} = overhang[{i}];"
    name = f"{shape.name}_{isa}_encode{'_all' if copies else ''}"
    sizes = [shape.row_bytes(size) for size in BLOCKS]
    form = "loop" if isa == "128" or shape.k < 8 else "straight"
    for size, full_name, code in functions(isa, name, ENCODE_ARGS, pointers, program_of, sizes,
                                           form):
        yield Kernel(shape.kind, shape.k, shape.n, size, full_name, code, copies=copies)


class Equations:
    """The projections `via` minus the known rows: sums of the lost rows."""

    def __init__(self, program, shape, lost, via):
        self.program, self.shape = program, shape
        self.known = [(row, Row(program, f"row{row}")) for row in range(shape.k)
                      if row not in lost]
        self.bins = {shape.slope[i]: (shape.projection(program, i), shape.first_bin[i])
                     for i in via}

    def terms(self, p, row, shift=0):
        """Return the terms of a sum that has, at 0, row `row` at column `shift`.

        The other lost rows are in that sum too.
        """
        bins, first_bin = self.bins[p]
        return [(bins, shift - row * p - first_bin),
                *[(known, shift + (at - row) * p) for at, known in self.known]]

    def sum(self, terms):
        return Sum(self.program, terms)

    def row(self, series):
        """Return the series cut at the length of a row."""
        return Cut(self.program, series, self.program.n_vectors * self.program.pixels)

    def quotient(self, terms, *lags):
        """Return the sum of terms, divided by (1 + z^lag) for each lag."""
        lags = sorted(lags)
        if lags[:2] == [1, 2]:  # 1 / (1 + z)(1 + z^2) is (1 + z) / (1 + z^4)
            whole = self.sum(terms)
            terms = [(whole, 0), (whole, -1)]
            lags[:2] = [4]
        for lag in lags:
            series = Quotient(self.program, terms, lag)
            terms = [(series, 0)]
        return series


def solve_1(eq, rows, slopes):
    return [eq.sum(eq.terms(slopes[0], rows[0]))]


def solve_2(eq, rows, slopes):
    """Solve two lost rows A and B, e rows apart, with slopes -s and t.

    In columns of A and of B, respectively:
        A + z^(e s) B = M        z^(e t) A + B = Q
    Hence (1 + z^(e (s + t))) A = M + z^(e s) Q.
    """
    (s, t), e = (-slopes[0], slopes[1]), rows[1] - rows[0]
    if (s, t) == (0, 1):  # Q is used only once
        m = eq.sum(eq.terms(0, rows[0]))
        a = eq.quotient([(m, 0), *eq.terms(1, rows[1])], e)
        return [a, eq.sum([(m, 0), (a, 0)])]
    q = eq.sum(eq.terms(t, rows[1]))
    a = eq.quotient([*eq.terms(-s, rows[0]), (q, -e * s)], e * (s + t))
    return [a, eq.sum([(q, 0), (a, -e * t)])]


def solve_3(eq, rows, _slopes):
    """Solve three lost rows A, B, C, with gaps e and f between them, and slopes -1, 0, 1.

    In columns of A, of any row, and of C, respectively:
        A + z^e B + z^(e+f) C = M        A + B + C = R        z^(e+f) A + z^f B + C = Q
    Hence, with X = Q + R:
        (1 + z^e)(1 + z^f) B = X + M + z^(e+f) R        (1 + z^(e+f)) A = X + (1 + z^f) B
    """
    r = eq.sum(eq.terms(0, rows[1]))
    return solve_abc(eq, rows, r, eq.terms(1, rows[2]), eq.terms(-1, rows[0]))


def solve_abc(eq, rows, r, q_terms, m_terms):
    e, f = rows[1] - rows[0], rows[2] - rows[1]
    x = eq.sum([(r, 0), *q_terms])
    b_terms = [(x, 0), (r, -e - f), *m_terms]
    if e == f:
        b = eq.quotient(b_terms, 2 * e)
        part = [(b, 0), (b, -f)]
    else:
        part = [(eq.quotient(b_terms, e), 0)]
        b = eq.quotient(part, f)
    a = eq.quotient([(x, 0), *part], e + f)
    return [a, b, eq.sum([(r, 0), (a, 0), (b, 0)])]


def solve_4(eq, rows, _slopes):
    """Solve four lost rows A, B, C, D, with gaps e, f, g between them, and slopes -1, 0, 1, 2.

    Let h = e + f + g. In columns of D:
        y_A^p A + y_B^p B + y_C^p C + D = R_p,  y_A = z^h, y_B = z^(f+g), y_C = z^g
    With L(y) = (y + y_A)(y + y_B)(y + y_C), the sum of L(y) / y times row, over all rows, does
    not depend on A, B and C. Let s be the coefficients of L. Then
        L(1) D = R_2 + s_1 R_1 + s_2 R_0 + s_3 R_-1
    A, B and C follow as in solve_3. R_1 is computed in columns of C; its first g pixels in
    columns of D, which depend on D only, are taken from R_2.
    """
    e, f, g = (below - above for above, below in zip(rows, rows[1:]))
    h = e + f + g
    r = eq.sum(eq.terms(0, rows[1]))
    m = eq.sum(eq.terms(-1, rows[0]))  # in columns of A: z^h R_-1
    q = eq.row(eq.sum(eq.terms(1, rows[2])))  # in columns of C: z^-g R_1
    r_2 = eq.sum(eq.terms(2, rows[3]))
    r_1 = eq.sum([(q, -g), (Cut(eq.program, r_2, g), 0)])
    s_1 = (g, f + g, h)
    s_2 = (f + 2 * g, g + h, f + g + h)
    d_terms = [(r_2, 0), *[(r_1, -lag) for lag in s_1], *[(r, -lag) for lag in s_2],
               (m, -f - 2 * g)]
    d = eq.row(eq.quotient(d_terms, *s_1))
    rest = eq.sum([(r, 0), (d, 0)])
    return [*solve_abc(eq, rows, rest, [(q, 0), (d, g)], [(m, 0), (d, -h)]), d]


SOLVE = {1: solve_1, 2: solve_2, 3: solve_3, 4: solve_4}


def decode(isa, shape, lost, via):
    """Rebuild rows `lost` (ascending) from projections `via` and the other rows."""
    slopes = sorted(shape.slope[i] for i in via)

    def program_of(n_vectors):
        hold = {1: 0, 2: 2}.get(len(lost), 1) if isa == "avx512" else 0
        program = Program(isa, n_vectors, hold)
        made = SOLVE[len(lost)](Equations(program, shape, lost, via), lost, slopes)
        outs = [(Row(program, f"row{row}"), series, 0) for row, series in zip(lost, made)]
        ahead = 0
        if len(lost) == 4:  # the others need the last row, which is therefore `ahead` of them
            ahead = -(-(lost[3] - lost[2]) // program.pixels)
            outs = [outs[3], *[(out, series, ahead) for out, series, _ in outs[:3]]]
        for step in range(n_vectors + ahead):
            program.begin_step()
            for out, series, late in outs:
                if 0 <= step - late < n_vectors:
                    program.store(out, step - late, series.vector(step - late))
        return program

    pointers = {f"row{row}": f"uint8_t *const row{row} = data + {row} * row_bytes;" if row in lost
                else f"const uint8_t *const row{row} = body[{row}];" for row in range(shape.k)}
    for i in via:
        pointers[f"body{i}"] = f"const uint8_t *const body{i} = body[{i}];"
        pointers[f"overhang{i}"] = f"const uint8_t *const overhang{i} = overhang[{i}];"
    uses = sum(1 << i for i in (*[row for row in range(shape.k) if row not in lost], *via))
    name = f"{shape.name}_{isa}_decode_{uses:x}"
    sizes = [shape.row_bytes(size) for size in BLOCKS]
    for size, full_name, code in functions(isa, name, DECODE_ARGS, pointers, program_of, sizes,
                                           "shared"):
        yield Kernel(shape.kind, shape.k, shape.n, size, full_name, code, uses=uses)


def encode_singly(isa, shape):
    """Encode one projection after another, each in a loop: for codes with many slopes."""
    for size in (shape.row_bytes(block_bytes) for block_bytes in BLOCKS):
        text = [f"const uint8_t *const row{row} = data + {row * size};" for row in range(shape.k)]
        for i, p in shape.slope.items():
            program = Program(isa, size // WIDTH[isa], hold=0)
            rows = [Row(program, f"row{row}") for row in range(shape.k)]
            out = shape.projection(program, i)
            bins = Sum(program, [(row, shape.first_bin[i] + at * p) for at, row in enumerate(rows)])
            for j in range(out.n_vectors):
                program.begin_step()
                program.store(out, j, bins.vector(j))
            writer = Writer(program, {
                f"body{i}": f"uint8_t *const body{i} = body[{i}];",
                f"overhang{i}": f"uint8_t *const overhang{i} = overhang[{i}];"})
            first, length = writer.longest_run()
            if length > 2:
                writer.looped(first, length)
            else:
                writer.straight()
            text += ["{", f"enum {{ n_loops = {length} }};", *writer.text, "}"]
        name = f"{shape.name}_{isa}_encode_{size}"
        code = block(f"void {name}({ENCODE_ARGS})", text)
        yield Kernel(shape.kind, shape.k, shape.n, size, name, code)


def kernels(isa):
    systematic = Shape("CODEC_MOJETTE", 8, 12)
    yield from encode(isa, systematic, copies=False)
    yield from encode(isa, systematic, copies=True)
    for k, n in LAYOUTS:
        nonsystematic = Shape("CODEC_MOJETTE_NONSYSTEMATIC", k, n)
        if k < 8 or isa == "avx512":
            yield from encode(isa, nonsystematic, copies=False)
        else:
            yield from encode_singly(isa, nonsystematic)
    for via in combinations(range(3), 2):
        yield from decode(isa, Shape("CODEC_MOJETTE_NONSYSTEMATIC", 2, 3), (0, 1), via)
    for row in range(8):
        for i in range(8, 12):
            yield from decode(isa, systematic, (row,), (i,))
    for n_lost in range(2, 5 if isa == "avx512" else 3):
        for lost in combinations(range(8), n_lost):
            yield from decode(isa, systematic, lost, range(8, 8 + n_lost))
