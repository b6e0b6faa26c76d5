"""
series.py - sums of rows shifted by whole pixels, in vectors that hold several pixels.

A series is an endless row of 16-byte pixels; all pixels before the first one are zero. Let V be
the number of pixels in a vector. vector(j) of a series writes the C that computes its pixels
j * V .. j * V + V - 1 and returns the Value that holds them (None: they are zero). A vector
that exists already is used again, so a module only lists, step by step, which vectors of which
series are stored. A shift by whole vectors costs nothing, any other costs one `join` of two
neighbours. Sum first adds all terms whose shifts have the same remainder, then shifts.

Program records the lines of each step. Most steps differ only in their place: they become a
loop. The steps at both ends stay straight-line code, and the same code works for all lengths.
"""
from collections import Counter
from dataclasses import dataclass

from lines import WIDTH

PIXEL_BYTES = 16


@dataclass(frozen=True)
class Value:
    """A vector in a C variable: vector j of a series."""

    series: object  # hashable; does not change from step to step
    j: int


@dataclass
class Line:
    """The C line dest = text; {0}, {1}.. in text are the sources, {at} is a place in memory."""

    text: str
    sources: tuple = ()
    dest: Value = None
    base: str = None
    index: int = 0  # in vectors, from base
    moves: bool = True  # the place advances with each step

    def at_step(self, step):
        """Return a key that is equal for lines that differ only in their step."""
        dest = self.dest and (self.dest.series, self.dest.j - step)
        sources = tuple((value.series, value.j - step) for value in self.sources)
        index = self.index - (step if self.base and self.moves else 0)
        return self.text, sources, dest, self.base, index


class Program:
    """The lines of one function, step by step, for rows of n_vectors vectors."""

    def __init__(self, isa, n_vectors, hold):
        self.width = WIDTH[isa]
        self.pixels = self.width // PIXEL_BYTES
        self.n_vectors = n_vectors
        self.hold = hold  # steps after which a vector from memory is loaded again
        self.steps = []  # each is a list of lines
        self.defined = {}  # Value -> (step, line) that defines it
        self.uses = Counter()  # Value -> number of lines that use it
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
        """Return the XOR of values, in the order of their definition; None if there are none."""
        left = sorted(values, key=self.defined.get)
        part = 0
        while len(left) > 1:
            taken = left[:3]
            text = "{0} ^ {1}" if len(taken) == 2 else f"xor3_{self.width}({{0}}, {{1}}, {{2}})"
            left[:3] = [self.define((series, part), j, text, taken)]
            part += 1
        return left[0] if left else None

    def join(self, series, j, low, high, by):
        """Return pixels by .. by + V - 1 of the two neighbouring vectors low and high."""
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
        """Return the number of pixels of vector j that exist."""
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
        if self.by:  # this part of the shift is common to all: it is applied to the sum
            self.inner = Sum(program, [(series, shift - self.by) for series, shift in terms])
            return
        self.added = [(series, shift // pixels) for series, shift in terms if shift % pixels == 0]
        others = [(series, shift) for series, shift in terms if shift % pixels != 0]
        if others:
            self.added.append((Sum(program, others), 0))

    def values(self, j):
        """Return the values whose XOR is vector j."""
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
    """terms / (1 + z^lag): pixel x is the sum of the terms there and of its own pixel x - lag."""

    def __init__(self, program, terms, lag):
        self.program = program
        self.name = program.name_series()
        self.made = {}
        # 1 / (1 + z^a) is (1 + z^a) / (1 + z^2a): doubles the lag until a vector fits into it.
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
    """Writes the C of a program: straight-line code, or a loop of its equal steps."""

    def __init__(self, program, pointers):
        """Arguments: pointers maps each base to the C that declares it."""
        self.program = program
        self.pointers = dict(pointers)
        self.series = {}  # series -> its number in the names of variables
        self.text = []

    def longest_run(self):
        """Return (first, length) of the longest run of steps that differ only in their place."""
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
        """Write lines, with the C variables named by name_of.

        Places that move: origin (in vectors) is subtracted, and x (C text) is added.
        """
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
        """Return the vectors that a step of the loop passes on to later steps, and its own ones.

        The first is a list of (series, j relative to the step), the second a map series -> j.
        """
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
        """Write code for rows of any length: its argument n_loops is the number of loop steps."""
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
        # Else the compiler would keep addresses for the lines below in registers of the loop.
        self.text.append("x = vec_unknown(x);")
        for lines in self.program.steps[end:]:
            self.write(lines, end_name, length, " + x")
