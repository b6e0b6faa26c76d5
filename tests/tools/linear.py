"""linear.py - could what several clients saw have come from one copy, one operation after the other?

A history is a list of Op: who called what with which arguments, what came back, and when it began and ended (of one
clock). It is linearizable when every operation can be given one moment between its two times, so that a sequential
model, told them in the order of those moments, gives the same results. An operation of unknown outcome (its client was
killed; an error that tells nothing) has no end: its moment comes some time after its beginning, or never.

Method: Wing and Gong's search as Lowe made it "just in time". Events are taken in the order of time, with the set of
all (state, operations under way that have had their moment). When one ends, each of these is carried on until that
operation has had its moment; those that cannot are dropped; nothing left: no order explains it. States are
remembered, so none is searched twice. A history of several independent objects is cut by key first.

    check(ops, Register(0), key=lambda op: op.args[0])    # raises Violation, which tells what happened around it
"""
import collections
import typing


class Op(typing.NamedTuple):
    who: str
    call: str
    args: tuple
    result: typing.Any   # None when end is None
    begin: int
    end: typing.Optional[int]  # None: the outcome is unknown

    def __str__(self):
        return "%s %s%r -> %s  [%d, %s]" % (
            self.who, self.call, self.args, "unknown" if self.end is None else repr(self.result),
            self.begin, "..." if self.end is None else self.end)


class Violation(AssertionError):
    """No order explains the operation `op`."""

    def __init__(self, key, op, states, around):
        self.key, self.op, self.states, self.around = key, op, states, around
        super().__init__("not linearizable%s:\n    %s\npossible before it: %s\naround it:\n%s" % (
            "" if key is None else ", key %r" % (key,), str(op), ", ".join(sorted(map(repr, states))[:20]),
            "\n".join("    " + str(o) for o in around)))


# ---- models: step(state, op) gives the states that op can leave; none when it cannot have had that result ----

class Register:
    """write(key, value), read(key) -> value."""

    def __init__(self, initial):
        self.initial = initial

    def step(self, state, op):
        if op.call == "write":
            return (op.args[1],)
        return (state,) if op.result == state else ()

    @staticmethod
    def changes(op):
        return op.call == "write"


class Cas:
    """cas(key, old, new) -> whether it was old and is new now; is(key, value) -> bool."""

    def __init__(self, initial):
        self.initial = initial

    def step(self, state, op):
        if op.call == "is":
            return (state,) if op.result == (state == op.args[1]) else ()
        if op.end is None:
            return (op.args[2],) if state == op.args[1] else ()
        if op.result != (state == op.args[1]):
            return ()
        return (op.args[2],) if op.result else (state,)

    @staticmethod
    def changes(op):
        return op.call == "cas"


class Name:
    """create(key) -> whether it was made, unlink(key) -> whether it was there, exists(key) -> bool."""
    initial = False

    def step(self, state, op):
        if op.call == "exists":
            return (state,) if op.result == state else ()
        after = op.call == "create"
        if op.end is None:
            return (after,) if state != after else ()
        return (after,) if op.result == (state != after) else ()

    @staticmethod
    def changes(op):
        return op.call != "exists"


class Counter:
    """add(key) -> what it is now, read(key) -> the same."""

    def __init__(self, initial=0):
        self.initial = initial

    def step(self, state, op):
        after = state + (op.call == "add")
        return (after,) if op.end is None or op.result == after else ()

    @staticmethod
    def changes(op):
        return op.call == "add"


class Log:
    """append(item), length() -> how many; order: what the log holds in the end."""
    initial = 0

    def __init__(self, order):
        self.order = order

    def step(self, state, op):
        if op.call == "length":
            return (state,) if op.result == state else ()
        return (state + 1,) if state < len(self.order) and self.order[state] == op.args[0] else ()

    @staticmethod
    def changes(op):
        return op.call == "append"


# ---- the search ----

def carry_on(model, ops, pending, configs, last):
    """All that configs can become once `last`, which is pending, has had its moment."""
    done, seen, todo = set(), set(configs), list(configs)
    while todo:
        state, had = todo.pop()
        if last in had:
            done.add((state, had - {last}))
            continue
        for i in pending - had:
            for after in model.step(state, ops[i]):
                config = (after, had | {i})
                if config not in seen:
                    seen.add(config)
                    todo.append(config)
    return done


def without_the_poorer(ops, configs):
    """Of those that differ only in which unknown operations are used up, the ones with the fewest."""
    groups = collections.defaultdict(list)
    for state, had in configs:
        groups[state, frozenset(i for i in had if ops[i].end is not None)].append(had)
    kept = set()
    for (state, _), hads in groups.items():
        hads.sort(key=len)
        best = []
        for had in hads:
            if not any(b <= had for b in best):
                best.append(had)
        kept.update((state, had) for had in best)
    return kept


def check_one(ops, model, key=None):
    """Of one object; raises Violation."""
    ops = [op for op in ops if op.end is not None or model.changes(op)]
    # At the same moment beginnings come first: then the two may have been at once.
    events = sorted([(op.begin, 0, i) for i, op in enumerate(ops)] +
                    [(op.end, 1, i) for i, op in enumerate(ops) if op.end is not None])
    configs, pending = {(model.initial, frozenset())}, set()
    for _, is_end, i in events:
        if not is_end:
            pending.add(i)
            continue
        after = carry_on(model, ops, pending, configs, i)
        if not after:
            near = sorted(ops, key=lambda op: op.begin)
            at = near.index(ops[i])
            raise Violation(key, ops[i], {state for state, _ in configs}, near[max(0, at - 12):at + 9])
        pending.discard(i)
        configs = without_the_poorer(ops, after)


def check(ops, model, key=None):
    """All objects, each on its own; key(op) tells whose op is. model: one, or a function that makes one of a key."""
    parts = collections.defaultdict(list)
    for op in ops:
        parts[None if key is None else key(op)].append(op)
    for k in sorted(parts, key=repr):
        check_one(parts[k], model(k) if callable(model) else model, k)
