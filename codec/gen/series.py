"""
series.py - sums of rows that are shifted by whole pixels, in vectors that hold several of them.

A Series is an endless row of 16-byte pixels, zero before its first one. vector(j) writes the C that
makes its pixels j * V .. j * V + V - 1 and returns where they are (None: they are zero), V being
the pixels of a vector. What was made once is taken from there, so a module only says which series
it wants stored, step by step. A shift by whole vectors costs nothing, one by a part of a
vector one `join` of two neighbours; Sum adds all that share this part before they are shifted.

Program keeps what each step wrote. Most steps are the same but for their place: they become a
loop, the steps at both edges stay straight lines, and the same code serves all lengths.
"""
from collections import Counter
from dataclasses import dataclass

from lines import WIDTH

PIXEL_BYTES = 16


@dataclass(frozen=True)
class Value:
    """A vector in a C variable: the j-th of a series."""

    series: object  # hashable; the same in all steps
    j: int


@dataclass
class Line:
    """dest = text, with {0}, {1}.. for sources and {at} for the place in memory."""

    text: str
    sources: tuple = ()
    dest: Value = None
    base: str = None
    index: int = 0  # vectors from base
    moves: bool = True  # the place goes on with the steps

    def at_step(self, step):
        """The same for all steps that do the same."""
        dest = self.dest and (self.dest.series, self.dest.j - step)
        sources = tuple((value.series, value.j - step) for value in self.sources)
        index = self.index - (step if self.base and self.moves else 0)
        return self.text, sources, dest, self.base, index


class Program:
    """What one function does, step by step, for rows of n_vectors vectors."""

    def __init__(self, isa, n_vectors, hold):
        self.width = WIDTH[isa]
        self.pixels = self.width // PIXEL_BYTES
        self.n_vectors = n_vectors
        self.hold = hold  # steps after which a vector from memory is loaded again
        self.steps = []  # of lines each
        self.defined = {}  # Value -> (step, line) that defined it
        self.uses = Counter()  # of a Value
        self.n_series = 0

    def name_series(self):
        self.n_series += 1
        return self.n_series

    def begin_step(self):
        self.steps.append([])

    @property
    def step(self):
        return len(self.steps) - 1

    def define(self, series, j, text, sources=(), **place):
        value = Value(series, j)
        self.defined[value] = (self.step, len(self.steps[-1]))
        self.uses.update(sources)
        self.steps[-1].append(Line(text, tuple(sources), value, **place))
        return value

    def xor(self, series, j, values):
        """The XOR of values, the latest ones at the end; None of none."""
        left = sorted(values, key=self.defined.get)
        part = 0
        while len(left) > 1:
            taken = left[:3]
            text = "{0} ^ {1}" if len(taken) == 2 else f"xor3_{self.width}({{0}}, {{1}}, {{2}})"
            left[:3] = [self.define((series, part), j, text, taken)]
            part += 1
        return left[0] if left else None

    def join(self, series, j, low, high, by):
        """Pixels by .. by + V - 1 of two neighbours."""
        sources = [value for value in (low, high) if value is not None]
        if not sources:
            return None
        zero = f"zero{self.width}()"
        names = iter(["{0}", "{1}"])
        pair = ", ".join(zero if value is None else next(names) for value in (low, high))
        return self.define(series, j, f"join{self.width}({pair}, {by})", sources)

    def store(self, row, j, value):
        base, index, moves = row.place(j)
        text = f"zero{self.width}()" if value is None else "{0}"
        sources = () if value is None else (value,)
        self.uses.update(sources)
        text = f"st{self.width}{row.suffix(j)}({{at}}, {text}{row.count(j)})"
        self.steps[-1].append(Line(text, sources, None, base, index, moves))


class Row:
    """Pixels in memory: n_vectors vectors at `base`, then n_beyond pixels at `beyond`."""

    def __init__(self, program, base, beyond=None, n_beyond=0, copy=None):
        self.program = program
        self.base, self.beyond, self.n_beyond = base, beyond, n_beyond
        self.copy = copy
        self.loaded = {}  # j -> (Value, step of its last use)
        self.n_vectors = program.n_vectors + -(-n_beyond // program.pixels)

    def place(self, j):
        n = self.program.n_vectors
        return (self.base, j, True) if j < n else (self.beyond, j - n, False)

    def present(self, j):
        """Pixels of vector j that exist."""
        n_last = self.n_beyond % self.program.pixels
        return n_last if n_last and j == self.n_vectors - 1 else self.program.pixels

    def suffix(self, j):
        return "_part" if self.present(j) < self.program.pixels else ""

    def count(self, j):
        return f", {self.present(j)}" if self.suffix(j) else ""

    def vector(self, j):
        if not 0 <= j < self.n_vectors:
            return None
        step = self.program.step
        value, used = self.loaded.get(j, (None, 0))
        if value is None or step - used > self.program.hold:
            base, index, moves = self.place(j)
            if step > j and self.copy:
                base = self.copy
            text = f"ld{self.program.width}{self.suffix(j)}({{at}}{self.count(j)})"
            value = self.program.define((self.base, step - j), j, text,
                                        base=base, index=index, moves=moves)
        self.loaded[j] = (value, step)
        return value


class Sum:
    """The XOR of terms (series, shift): pixel x is the sum of their pixels x + shift."""

    def __init__(self, program, terms):
        self.program = program
        self.name = program.name_series()
        self.made = {}
        pixels = program.pixels
        self.by = min(shift % pixels for _, shift in terms)
        if self.by:  # the whole sum is shifted at last
            self.inner = Sum(program, [(series, shift - self.by) for series, shift in terms])
            return
        self.added = [(series, shift // pixels) for series, shift in terms if shift % pixels == 0]
        others = [(series, shift) for series, shift in terms if shift % pixels != 0]
        if others:
            self.added.append((Sum(program, others), 0))

    def values(self, j):
        """Those whose XOR is vector j."""
        if self.by:
            value = self.vector(j)
            return [] if value is None else [value]
        values = [series.vector(j + shift) for series, shift in self.added]
        return [value for value in values if value is not None]

    def vector(self, j):
        if j < 0:
            return None
        if j not in self.made:
            if self.by:
                low, high = self.inner.vector(j), self.inner.vector(j + 1)
                self.made[j] = self.program.join(self.name, j, low, high, self.by)
            else:
                self.made[j] = self.program.xor(self.name, j, self.values(j))
        return self.made[j]


class Cut:
    """The first n_pixels pixels of a series."""

    def __init__(self, program, series, n_pixels):
        self.program, self.series = program, series
        self.name = program.name_series()
        self.n_vectors, self.n_last = divmod(n_pixels, program.pixels)
        self.made = {}

    def vector(self, j):
        if j < self.n_vectors:
            return self.series.vector(j)
        if j > self.n_vectors or self.n_last == 0:
            return None
        if j not in self.made:
            whole = self.series.vector(j)
            top = self.program.join((self.name, 0), j, None, whole, self.n_last)
            by = self.program.pixels - self.n_last
            self.made[j] = self.program.join((self.name, 1), j, top, None, by)
        return self.made[j]


class Quotient:
    """terms / (1 + z^lag): pixel x is theirs plus the pixel x - lag of itself."""

    def __init__(self, program, terms, lag):
        self.program = program
        self.name = program.name_series()
        self.made = {}
        # 1 / (1 + z^a) is (1 + z^a) / (1 + z^2a): so the lag becomes as wide as a vector.
        while lag < program.pixels:
            whole = Sum(program, terms)
            terms = [(whole, 0), (whole, -lag)]
            lag *= 2
        self.terms = Sum(program, terms)
        self.before = Sum(program, [(self, -lag)])

    def vector(self, j):
        if j < 0:
            return None
        if j not in self.made:
            before = self.before.vector(j)
            values = self.terms.values(j) + ([] if before is None else [before])
            self.made[j] = self.program.xor(self.name, j, values)
        return self.made[j]


class Writer:
    """The C of a program: straight, or for several lengths with a loop of its equal steps."""

    def __init__(self, program, pointers):
        """pointers: base -> the C that declares it."""
        self.program = program
        self.pointers = dict(pointers)
        self.series = {}  # -> its number in names of variables
        self.text = []

    def longest_run(self):
        """(first, length) of the steps that are the same but for their place."""
        same = [[line.at_step(step) for line in lines]
                for step, lines in enumerate(self.program.steps)]
        best = (0, 0)
        first = 0
        for step in range(1, len(same) + 1):
            if step == len(same) or same[step] != same[first]:
                best = max(best, (first, step - first), key=lambda run: run[1])
                first = step
        return best

    def name(self, prefix, series, j):
        number = self.series.setdefault(series, len(self.series))
        return f"{prefix}{number}_{'m' if j < 0 else ''}{abs(j)}"

    def declare(self, base):
        if base in self.pointers:
            self.text.append(self.pointers.pop(base))

    def write(self, lines, name_of, origin, x):
        """origin: what is taken off places that move, in vectors; x: what is added to them."""
        for line in lines:
            at = ""
            if line.base:
                self.declare(line.base)
                offset = (line.index - (origin if line.moves else 0)) * self.program.width
                at = f"{line.base}{x if line.moves else ''} + {offset}".replace("+ -", "- ")
            text = line.text.format(*[name_of(value) for value in line.sources], at=at)
            if line.dest:
                if line.base and self.program.uses[line.dest] > 1:
                    text = f"keep{self.program.width}({text})"
                text = f"const vec{self.program.width} {name_of(line.dest)} = {text}"
            self.text.append(text + ";")

    def straight(self):
        for lines in self.program.steps:
            self.write(lines, lambda value: self.name("v", value.series, value.j), 0, "")

    def carried(self, first, end):
        """(series, place before the step) of what steps of the loop hand to those behind them."""
        defined = self.program.defined
        own = {value.series: value.j - first for value, (step, _) in defined.items()
               if step == first}
        wanted = {(value.series, value.j - first) for line in self.program.steps[first]
                  for value in line.sources if defined[value][0] < first}
        wanted |= {(value.series, value.j - end) for lines in self.program.steps[end:]
                   for line in lines for value in line.sources if defined[value][0] < end}
        for series, at in list(wanted):
            wanted |= {(series, before) for before in range(at, own[series])}
        return sorted(wanted, key=str), own

    def looped(self, first, length):
        """Rows of any length: the caller says in n_loops how often the steps of the run go."""
        end = first + length
        carried, own = self.carried(first, end)
        width = self.program.width

        def straight_name(value):
            return self.name("v", value.series, value.j)

        def loop_name(value):
            here = self.program.defined[value][0] == first
            return self.name("n" if here else "c", value.series, value.j - first)

        def end_name(value):
            if self.program.defined[value][0] >= end:
                return straight_name(value)
            return self.name("c", value.series, value.j - end)

        for line in self.program.steps[first]:
            if line.base:
                self.declare(line.base)
        for lines in self.program.steps[:first]:
            self.write(lines, straight_name, 0, "")
        for series, at in carried:
            value = Value(series, first + at)
            start = straight_name(value) if value in self.program.defined and \
                self.program.defined[value][0] < first else f"zero{width}()"
            self.text.append(f"vec{width} {self.name('c', series, at)} = {start};")
        self.text.append("size_t x = 0;")
        self.text.append(f"for (; x < n_loops * {width}; x += {width}) {{")
        self.write(self.program.steps[first], loop_name, 0, " + x")
        for series, at in sorted(carried, key=lambda one: one[1]):
            latest = self.name("n" if own[series] == at + 1 else "c", series, at + 1)
            self.text.append(f"{self.name('c', series, at)} = {latest};")
        self.text.append("}")
        self.text.append("x = vec_unknown(x);")  # or the loop would keep addresses for what follows
        for lines in self.program.steps[end:]:
            self.write(lines, end_name, length, " + x")
