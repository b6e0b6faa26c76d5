"""
flow.py - straight-line code whose sums are used again later: assigns registers by looking ahead.

A Flow is a list of sums and stores in the order in which they run. The terms of a sum are
pixels in memory and earlier sums. Registers are assigned when the list is complete. If no
register is free, the value whose next use is furthest away loses its own (Belady): a pixel is
loaded again later, a sum is stored to scratch memory on the stack.
"""
from bisect import bisect_right

from lines import At, Lines

NEVER = 1 << 30


class Flow(Lines):
    """Like Lines, but in two passes: a sum is only a number until function() writes the C."""

    def __init__(self, isa, pixel_bytes, spare=3):
        super().__init__(isa, pixel_bytes, spare)
        # (sum, its sources), (place, (what to store,)) or (None, (what to prefetch,))
        self.steps = []
        self.n_sums = 0
        self.n_slots = 0

    def xor(self, *sources):
        """Add a sum of two or three sources, each an At or a result of xor(); return its number."""
        assert 2 <= len(sources) <= 3
        self.n_sums += 1
        self.steps.append((self.n_sums, sources))
        return self.n_sums

    def xor_all(self, sources):
        """Add a sum of any number of sources, which are added in order; return its number."""
        left = list(sources)
        while len(left) > 3:
            left[:3] = [self.xor(*left[:3])]
        return left[0] if len(left) == 1 else self.xor(*left)

    def put(self, place, what):
        self.steps.append((place, (what,)))

    def fetch(self, at):
        self.steps.append((None, (at,)))

    def address(self, at):
        if at.base == "scratch":
            return f"scratch + {at.index * self.width}"
        return super().address(at)

    def write_down(self):
        uses = {}  # value -> the steps that use it
        for number, (result, sources) in enumerate(self.steps):
            for source in sources if result else ():
                uses.setdefault(source, []).append(number)
        homes = {}  # sum -> its place in memory
        inside = {}  # value -> the variable that holds it
        slots = []  # free places in the scratch memory

        def next_use(what, number):
            after = uses.get(what, ())
            at = bisect_right(after, number)
            return after[at] if at < len(after) else NEVER

        def forget(what):
            del inside[what]
            if homes.get(what, At("", 0)).base == "scratch":
                slots.append(homes[what])

        def make_room(number, wanted):
            while len(inside) > self.held_max:
                victim = max((w for w in inside if w not in wanted),
                             key=lambda w: (next_use(w, number), isinstance(w, At)))
                if next_use(victim, number) != NEVER and not isinstance(victim, At) \
                        and victim not in homes:
                    if not slots:
                        slots.append(At("scratch", self.n_slots))
                        self.n_slots += 1
                    homes[victim] = slots.pop(0)
                    store(homes[victim], inside[victim])
                del inside[victim]

        def enter(what, number, wanted):
            if what not in inside:
                place = what if isinstance(what, At) else homes[what]
                inside[what] = self.define(f"ld{self.width}({self.address(place)})")
                make_room(number, wanted)
            return inside[what]

        def store(at, name):
            self.text.append(f"st{self.width}({self.address(at)}, {name});")
            self.text.append("vec_stay();")

        for number, (result, sources) in enumerate(self.steps):
            if result is None:
                super().fetch(*sources)
                continue
            names = [enter(source, number, sources) for source in sources]
            if isinstance(result, At):
                store(result, names[0])
                if not isinstance(sources[0], At):
                    homes.setdefault(sources[0], result)
            for source in dict.fromkeys(sources):
                if next_use(source, number) == NEVER:
                    forget(source)
            if not isinstance(result, At):
                if len(names) == 3:
                    expression = f"xor3_{self.width}({', '.join(names)})"
                else:
                    expression = " ^ ".join(names)
                inside[result] = self.define(expression)
                make_room(number, (result,))

    def function(self, name, args, pointers, first=(), last=()):
        self.write_down()
        if self.n_slots:
            self.text[:0] = [f"_Alignas(64) uint8_t memory[{self.n_slots * self.width}];",
                             "uint8_t *scratch = memory;",
                             '__asm__("" : "+r"(scratch)); /* others might write it: see vec_stay() */']
        return super().function(name, args, pointers, first, last)
