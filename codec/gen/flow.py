"""
flow.py - straight lines whose sums need more than one place to wait in: registers are given by
looking ahead.

A Flow is a list of sums and stores in the order they are to be done, of pixels in memory and of sums
made before. When all are known, each gets a register for as long as it is worth one: who is
wanted last goes first (Belady), pixels to be loaded again, sums to a scratch on the stack.
"""
from bisect import bisect_right

from lines import At, Lines

NEVER = 1 << 30


class Flow(Lines):
    """As Lines, in two passes: sums are numbers until function() writes them down."""

    def __init__(self, isa, pixel_bytes, spare=3):
        super().__init__(isa, pixel_bytes, spare)
        self.steps = []  # (sum, its sources), (place, (what goes there,)) or (None, (what to fetch,))
        self.n_sums = 0
        self.n_slots = 0

    def xor(self, *sources):
        """One sum of two or three, whatever they are: At or the result of xor()."""
        assert 2 <= len(sources) <= 3
        self.n_sums += 1
        self.steps.append((self.n_sums, sources))
        return self.n_sums

    def xor_all(self, sources):
        """The sum of any number of them, the last ones last."""
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
        uses = {}  # what -> the steps that want it
        for number, (result, sources) in enumerate(self.steps):
            for source in sources if result else ():
                uses.setdefault(source, []).append(number)
        homes = {}  # sum -> where it is in memory
        inside = {}  # what -> the variable that has it
        slots = []  # of the scratch, free

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
                             '__asm__("" : "+r"(scratch)); /* it is known to others: see vec_stay() */']
        return super().function(name, args, pointers, first, last)
