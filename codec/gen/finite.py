"""
finite.py - writes the straight-line functions of the Mojette code with bins modulo 17.

docs/CODEC.md defines the code and codec/finite.c the terms: t = column - row * p modulo 17.
"""
from itertools import combinations

from flow import Flow
from lines import BLOCKS, LAYOUTS, REGISTERS, WIDTH, At, Helper, Shape

RING = 17
PIXELS = 16
AHEAD = 4  # bins between the prefetch of a cache line and the store to it (kernels with far)


class Finite(Shape):
    form, kind = "finite", "CODEC_MOJETTE_FINITE"

    def __init__(self, k, n, block_bytes):
        super().__init__(k, n, block_bytes)
        self.pixel_bytes = self.row_bytes // PIXELS

    def ray(self, p, t, rows):
        """Return the pixels in `rows` whose sum is bin t of slope p."""
        pixels = [(row, (t + row * p) % RING) for row in rows]
        return [At(f"row{row}", column) for row, column in pixels if column < PIXELS]


def in_pairs(isa, shape, items):
    """Split items into the groups that one walk sums.

    A group has two projections if the registers can hold the sums of both, otherwise one.
    """
    vectors = shape.pixel_bytes // WIDTH[isa]
    apart = REGISTERS[isa] == 16 and shape.k > 4 and vectors != 2
    return [items[i:i + 2 - apart] for i in range(0, len(items), 2 - apart)]


class Gather:
    """A set of sums to which pixels are added in the order in which the pixels are loaded.

    A loaded pixel waits in a register until every sum that has it as a term has added it. A
    sum adds its waiting terms as soon as there are three, with one instruction. If more than
    `room` registers are in use, the oldest waiting pixel is added to its sums at once. Pixels
    in `steady` are exempt from that.
    """

    def __init__(self, flow, sums, room, steady=()):
        self.flow, self.room, self.steady = flow, room, steady
        self.left = {key: len(sources) for key, sources in sums.items()}
        self.parts = {key: [] for key in sums}  # terms to add; the first may be a partial sum
        self.users = {}
        for key, sources in sums.items():
            for source in sources:
                self.users.setdefault(source, []).append(key)
        self.waiting = {}  # source -> sums that have not added it, oldest first

    def add(self, key, parts):
        for part in parts:
            if part in self.waiting:
                self.waiting[part].discard(key)
                if not self.waiting[part]:
                    del self.waiting[part]
        self.parts[key] = [self.flow.xor(*parts)] + [p for p in self.parts[key] if p not in parts]

    def come(self, source):
        """Add a loaded source; return the sums that this completes: key -> sum."""
        complete = {}
        users = self.users.get(source, [])
        self.waiting[source] = set(users)
        for key in users:
            self.parts[key].append(source)
            self.left[key] -= 1
            if len(self.parts[key]) == 3:
                self.add(key, self.parts[key])
            if self.left[key] == 0:
                if len(self.parts[key]) == 2:
                    self.add(key, self.parts[key])
                complete[key] = self.parts.pop(key)[0]
        if source in self.waiting and not self.waiting[source]:
            del self.waiting[source]
        self.shrink()
        return complete

    def shrink(self):
        while len(self.waiting) + self.n_partial() > self.room:
            oldest = next((source for source in self.waiting if source not in self.steady), None)
            if oldest is None:
                return
            for key in sorted(self.waiting[oldest], key=str):
                if len(self.parts[key]) > 1:
                    self.add(key, self.parts[key])
            # In a sum that has no other term yet, it is the partial sum from now on.
            self.waiting.pop(oldest, None)

    def n_partial(self):
        return sum(1 for parts in self.parts.values()
                   if parts and parts[0] not in self.waiting)


def encode(isa, shape, copies=False, far=False):
    flow = Flow(isa, shape.pixel_bytes)
    rows = range(shape.k)
    slopes = {p: i for i, p in shape.slope.items()}
    pairs = in_pairs(isa, shape, sorted(slopes, key=lambda p: p % 3))  # (0, 1), (-1, 2)
    for pair in pairs:
        folds = {p: flow.xor_all(shape.ray(p, PIXELS, rows)) for p in pair if p != 0}
        sums = {(p, t): shape.ray(p, t, rows) + ([folds[p]] if p in folds else [])
                for p in pair for t in range(PIXELS)}
        gather = Gather(flow, sums, flow.held_max - 2, folds.values())
        for fold in folds.values():
            gather.come(fold)
        step = (pair[-1] - pair[0]) % RING or 1
        for u in range(RING):
            pixels = shape.ray(pair[0], u * step % RING, rows)
            complete = {}
            ahead = (u + AHEAD) * step % RING
            for p in pair if far and ahead < PIXELS else ():
                flow.fetch(At(f"body{slopes[p]}", ahead))
            for pixel in pixels:
                complete |= gather.come(pixel)
            # Loads stand before stores: a load that follows a store to an address 4 KB away may
            # have to wait for it (4K aliasing).
            for (p, t), total in complete.items():
                flow.put(At(f"body{slopes[p]}", t), total)
            for pixel in pixels if copies and pair is pairs[0] else ():
                flow.put(At(f"body{pixel.base[3:]}", pixel.index), pixel)
    pointers = {f"row{row}": (True, f"data + {row * shape.row_bytes}") for row in rows}
    pointers |= {f"body{i}": (False, f"body[{i}]") for i in range(shape.n)}
    return shape.encode_kernel(flow, isa, pointers, copies, far)


class Solve:
    """Computes the lost rows from the rings of projections: Newton's scheme of codec/finite.c.

    A ring is a list of 17 sums that are not computed yet; each is the set of its terms.
    `lost` may count from the first lost row if all rings are turned as if that were row 0.
    """

    def __init__(self, flow, lost, least, step):
        self.flow, self.lost, self.least = flow, lost, least
        self.turns = [row * step for row in lost]

    def made(self, ring, t):
        """Compute sum t of a ring, unless it has only one term already."""
        if len(ring[t]) > 1:
            ring[t] = frozenset([self.flow.xor_all(sorted(ring[t], key=str))])
        return ring[t]

    def divide(self, ring, turn, step, start):
        """Return x with x(t) + x(t + step) = ring(t + turn) + K, x(start) = 0, for some pixel K."""
        quotient = [frozenset()] * RING
        at = start
        for _ in range(PIXELS):
            after = (at + 2 * step) % RING
            quotient[after] = quotient[at] ^ self.made(ring, (at + turn) % RING) \
                ^ self.made(ring, (at + turn + step) % RING)
            self.made(quotient, after)
            at = after
        return quotient

    def forward(self, b):
        for m in range(len(b) - 1):
            for i in range(len(b) - 1, m, -1):
                b[i] = [b[i][t] ^ b[i - 1][(t + self.turns[m]) % RING] for t in range(RING)]
            for t in range(RING) if m > 0 else ():
                self.made(b[m + 1], t)

    def back(self, b):
        n = len(b)
        for m in range(n - 2, -1, -1):
            for i in range(m + 1, n):
                start = (PIXELS - self.lost[i] * self.least) % RING
                b[i] = self.divide(b[i], -self.turns[i],
                                   self.turns[i - m - 1] - self.turns[i], start)
            for i in range(m, n - 1) if m else ():
                b[i] = [b[i][t] ^ b[i + 1][t] for t in range(RING)]

    def rows(self, b, bases):
        for i, base in enumerate(bases):
            at = [(column - self.lost[i] * self.least) % RING for column in range(RING)]
            total = [b[i][t] ^ b[i + 1][t] for t in range(RING)] if i + 1 < len(b) else b[i]
            fold = self.made(total, at[PIXELS])
            for column in range(PIXELS):
                total[at[column]] ^= fold
                for what in self.made(total, at[column]):
                    self.flow.put(At(base, column), what)


class Decode:
    """Rebuilds rows `lost` (ascending) from the projections `via` and the other rows."""

    def __init__(self, isa, shape, lost, via):
        self.isa = isa
        self.flow = Flow(isa, shape.pixel_bytes)
        self.shape, self.lost = shape, lost
        self.kept = [row for row in range(shape.k) if row not in lost]
        self.via = sorted(via, key=lambda i: shape.slope[i])
        self.slopes = [shape.slope[i] for i in self.via]

    def bin(self, which, t):
        """Return the known terms of a bin: the stored bin and the pixels of kept rows."""
        stored = [At(f"body{self.via[which]}", t)] if t < PIXELS else []
        return stored + self.shape.ray(self.slopes[which], t, self.kept)

    def one_row(self):
        row, p = self.lost[0], self.slopes[0]
        fold = [self.flow.xor_all(self.bin(0, (PIXELS - row * p) % RING))] if p else []
        for column in range(PIXELS):
            total = self.flow.xor_all(self.bin(0, (column - row * p) % RING) + fold)
            self.flow.put(At(f"row{row}", column), total)

    def walk(self, pair, made):
        """Subtract the kept rows from one or two projections, in one walk around the ring.

        Calls made(i, t, sum) for each bin t of via[i] as soon as its sum is complete.
        """
        slopes = [self.slopes[i] for i in pair]
        gather = Gather(self.flow, {(i, t): self.bin(i, t) for i in pair for t in range(RING)},
                        self.flow.held_max - 2)
        step = (slopes[-1] - slopes[0]) % RING or 1
        for u in range(RING):
            pixels = self.shape.ray(slopes[0], u * step % RING, self.kept)
            for i, p in zip(pair, slopes):
                # the bin of slope p with the same pixel of the first lost row
                t = (u * step + self.lost[0] * (slopes[0] - p)) % RING
                pixels += [At(f"body{self.via[i]}", t)] if t < PIXELS else []
            for pixel in pixels:
                for (i, t), total in gather.come(pixel).items():
                    made(i, t, total)

    def residuals(self, made):
        for pair in in_pairs(self.isa, self.shape, range(len(self.lost))):
            self.walk(pair, made)

    def two_rows(self):
        least, step = self.slopes[0], self.slopes[1] - self.slopes[0]
        solve = Solve(self.flow, self.lost, least, step)
        b = [[frozenset()] * RING for _ in self.lost]

        def made(i, t, total):
            b[i][t] = frozenset([total])

        self.residuals(made)
        solve.forward(b)
        solve.back(b)
        solve.rows(b, [f"row{row}" for row in self.lost])

    def solver(self):
        """Return (name, parameters) of the helper that solves lost rows at these distances."""
        name = f"finite_{self.isa}_{self.shape.row_bytes}_solve"
        for row in self.lost[1:]:
            name += f"_{row - self.lost[0]}"
        return name, ", ".join(["const uint8_t *rings"] +
                               [f"uint8_t *lost{i}" for i in range(len(self.lost))])

    def many_rows(self):
        """Store the rings for the solver, turned as if the first lost row were row 0.

        The slopes must increase by one each.
        """
        def made(i, t, total):
            turned = (t + self.lost[0] * self.slopes[i]) % RING
            self.flow.put(At("rings", i * RING + turned), total)

        self.residuals(made)
        return self.solver()

    def solver_code(self):
        flow = Flow(self.isa, self.shape.pixel_bytes)
        bases = [f"lost{i}" for i in range(len(self.lost))]
        solve = Solve(flow, [row - self.lost[0] for row in self.lost], self.slopes[0], 1)
        b = [[frozenset([At("rings", i * RING + t)]) for t in range(RING)]
             for i in range(len(bases))]
        b[self.slopes.index(0)][PIXELS] = frozenset()
        solve.forward(b)
        solve.back(b)
        solve.rows(b, bases)
        name, parameters = self.solver()
        return Helper(name, flow.function(name, parameters, {}))

    def kernel(self):
        shape, n_lost = self.shape, len(self.lost)
        pointers = {f"row{row}": (True, f"body[{row}]") for row in self.kept}
        pointers |= {f"row{row}": (False, f"data + {row * shape.row_bytes}") for row in self.lost}
        pointers |= {f"body{i}": (True, f"body[{i}]") for i in self.via}
        before, first, last = "", (), ()
        if n_lost == 1:
            self.one_row()
        elif n_lost == 2:
            self.two_rows()
        else:
            solver, parameters = self.many_rows()
            before = f"void {solver}({parameters});\n"
            first = [f"_Alignas(64) uint8_t rings[{n_lost * RING * shape.pixel_bytes}];"]
            last = [f"{solver}(rings, {', '.join(f'data + {row * shape.row_bytes}' for row in self.lost)});"]
        return shape.decode_kernel(self.flow, self.isa, pointers, self.kept + self.via, before,
                                   first, last)


def patterns(isa, shape):
    """Yield the (lost rows, projections) that get a function of their own."""
    everything = shape.n <= 6
    if not everything and (isa != "avx512" or shape.row_bytes != 1024):
        return
    for n_lost in range(1, shape.n - shape.k + 1):
        for lost in combinations(range(shape.k), n_lost):
            for via in combinations(range(shape.k, shape.n), n_lost):
                if everything or n_lost == 1 or via == tuple(range(shape.k, shape.k + n_lost)):
                    yield lost, via


def kernels(isa):
    for k, n in LAYOUTS:
        for block_bytes in BLOCKS:
            shape = Finite(k, n, block_bytes)
            yield encode(isa, shape)
            yield encode(isa, shape, copies=True)
            if WIDTH[isa] == 64 and shape.pixel_bytes >= 64:
                yield encode(isa, shape, far=True)
            solvers = set()
            for lost, via in patterns(isa, shape):
                decode = Decode(isa, shape, lost, via)
                if len(lost) > 2 and decode.solver() not in solvers:
                    solvers.add(decode.solver())
                    yield decode.solver_code()
                yield decode.kernel()
