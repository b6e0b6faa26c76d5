"""Tests of the checker of histories (tests/tools/linear.py): it accepts correct histories and
refuses wrong ones."""
import itertools
import os
import random
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))

from linear import Cas, Counter, Log, Name, Op, Register, Violation, check, check_one  # noqa: E402


def op(who, call, args, result, begin, end):
    return Op(who, call, args if isinstance(args, tuple) else (args,), result, begin, end)


def w(who, value, begin, end, key="x"):
    return op(who, "write", (key, value), None, begin, end)


def r(who, value, begin, end, key="x"):
    return op(who, "read", (key,), value, begin, end)


def add(who, result, begin, end):
    return op(who, "add", "n", result, begin, end)


def append(who, item, begin, end):
    return op(who, "append", item, None, begin, end)


RIGHT = {
    "one after the other": (Register(0), [w("a", 1, 0, 1), r("b", 1, 2, 3), w("b", 2, 4, 5), r("a", 2, 6, 7)]),
    "a read beside a write sees either": (Register(0), [w("a", 1, 0, 10), r("b", 0, 1, 2), r("b", 1, 3, 4)]),
    "writes at once end in any order": (Register(0), [w("a", 1, 0, 10), w("b", 2, 0, 10), r("c", 1, 11, 12)]),
    "a killed write that never was": (Register(0), [w("a", 1, 0, None), r("b", 0, 5, 6), r("b", 0, 7, 8)]),
    "a killed write that came late": (Register(0), [w("a", 1, 0, None), r("b", 0, 5, 6), r("b", 1, 7, 8)]),
    "a killed read tells nothing": (Register(0), [w("a", 1, 0, 1), r("b", None, 2, None), r("c", 1, 3, 4)]),
    "many killed writes": (Register(0), [w("k%d" % i, i, i, None) for i in range(1, 13)] +
                           [r("b", 7, 20, 21), r("b", 3, 22, 23)]),
    "swaps": (Cas(0), [op("a", "cas", ("x", 0, 1), True, 0, 5), op("b", "cas", ("x", 0, 2), False, 0, 5),
                       op("b", "cas", ("x", 1, 2), True, 6, 7), op("a", "is", ("x", 2), True, 8, 9)]),
    "a killed swap that was done": (Cas(0), [op("a", "cas", ("x", 0, 1), None, 0, None),
                                             op("b", "is", ("x", 1), True, 2, 3)]),
    "a name": (Name(), [op("a", "create", "x", True, 0, 1), op("b", "create", "x", False, 2, 3),
                        op("b", "unlink", "x", True, 4, 9), op("a", "exists", "x", True, 5, 6),
                        op("a", "exists", "x", False, 7, 8)]),
    "a killed creation": (Name(), [op("a", "create", "x", None, 0, None), op("b", "create", "x", True, 2, 3),
                                   op("b", "unlink", "x", True, 4, 5), op("b", "exists", "x", True, 6, 7)]),
    "a counter": (Counter(), [add("a", 1, 0, 5), add("b", 2, 1, 6), add("a", 3, 7, 8)]),
    "a killed addition": (Counter(), [add("a", 1, 0, 1), add("k", None, 2, None), add("b", 3, 5, 6)]),
    "a log": (Log(["a0", "b0", "a1"]), [append("a", "a0", 0, 2), append("b", "b0", 1, 3), append("a", "a1", 4, 5),
                                        op("b", "length", (), 2, 4, 5)]),
    "a killed line that is there": (Log(["k0", "a0"]), [append("k", "k0", 0, None), append("a", "a0", 1, 2)]),
    "a killed line that is not there": (Log(["a0"]), [append("k", "k0", 0, None), append("a", "a0", 1, 2)]),
}

WRONG = {
    "a stale read": (Register(0), [w("a", 1, 0, 1), r("b", 0, 2, 3)]),
    "a value nobody wrote": (Register(0), [w("a", 1, 0, 10), r("b", 2, 2, 3)]),
    "back in time": (Register(0), [w("a", 1, 0, 10), r("b", 1, 1, 2), r("c", 0, 3, 4)]),
    "a write that two saw in other orders": (Register(0), [
        w("a", 1, 0, 3), w("b", 2, 0, 3), r("c", 1, 4, 5), r("d", 2, 6, 7)]),
    "a killed write that came and went": (Register(0), [w("a", 1, 5, None), r("b", 1, 6, 7), r("b", 0, 8, 9)]),
    "a killed write before it was": (Register(0), [r("b", 1, 0, 1), w("a", 1, 5, None)]),
    "two swaps of one": (Cas(0), [op("a", "cas", ("x", 0, 1), True, 0, 5), op("b", "cas", ("x", 0, 2), True, 0, 5)]),
    "a swap that was refused for nothing": (Cas(0), [op("a", "cas", ("x", 0, 1), False, 0, 5)]),
    "two made one name": (Name(), [op("a", "create", "x", True, 0, 5), op("b", "create", "x", True, 0, 5)]),
    "a name that is seen when it is gone": (Name(), [
        op("a", "create", "x", True, 0, 1), op("a", "unlink", "x", True, 2, 3), op("b", "exists", "x", True, 4, 5)]),
    "a name that is not seen yet": (Name(), [op("a", "create", "x", True, 0, 1), op("b", "exists", "x", False, 2, 3)]),
    "one's own mkdir refused": (Name(), [op("a", "create", "x", False, 0, 1)]),
    "a killed creation done twice": (Name(), [
        op("a", "create", "x", None, 0, None), op("b", "unlink", "x", True, 2, 3), op("b", "unlink", "x", True, 4, 5)]),
    "a lost update": (Counter(), [add("a", 1, 0, 5), add("b", 1, 0, 5)]),
    "an update lost later": (Counter(), [add("a", 1, 0, 1), add("b", 2, 2, 3), add("a", 2, 4, 5)]),
    "a killed addition done twice": (Counter(), [add("k", None, 0, None), add("b", 3, 5, 6)]),
    "a lost line": (Log(["a0"]), [append("a", "a0", 0, 1), append("b", "b0", 2, 3)]),
    "lines in the wrong order": (Log(["b0", "a0"]), [append("a", "a0", 0, 1), append("b", "b0", 2, 3)]),
    "a line not seen": (Log(["a0", "b0"]), [append("a", "a0", 0, 1), append("b", "b0", 2, 3),
                                             op("a", "length", (), 1, 4, 5)]),
    "a line twice": (Log(["a0", "a0"]), [append("a", "a0", 0, 1), op("a", "length", (), 2, 2, 3)]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_accepts(name):
    model, ops = RIGHT[name]
    check_one(ops, model)


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    model, ops = WRONG[name]
    with pytest.raises(Violation):
        check_one(ops, model)


def test_objects_are_judged_on_their_own():
    ops = [w("a", 1, 0, 1, "x"), r("b", 0, 2, 3, "y")]
    check(ops, Register(0), key=lambda o: o.args[0])
    with pytest.raises(Violation) as e:
        check(ops + [r("c", 0, 4, 5, "x")], Register(0), key=lambda o: o.args[0])
    assert e.value.key == "x" and e.value.op.who == "c" and e.value.states == {1}


def some_history(rng, n):
    """Makes a history of three clients on a register. Their reads are random: right or wrong."""
    ops, free = [], {"a": 0, "b": 0, "c": 0}
    for i in range(n):
        who = rng.choice(sorted(free))
        begin = free[who] + rng.randrange(1, 4)
        end = begin + rng.randrange(1, 8)
        free[who] = end
        value = rng.randrange(3)
        if rng.random() < 0.5:
            ops.append(w(who, value, begin, None if rng.random() < 0.2 else end))
        else:
            ops.append(r(who, value, begin, end))
    return ops


def by_brute_force(ops, model):
    """Tries every order of the operations with every choice of those whose outcome is unknown."""
    known = [o for o in ops if o.end is not None]
    unknown = [o for o in ops if o.end is None]
    for n in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, n):
            for order in itertools.permutations(known + list(chosen)):
                if any(b.end is not None and b.end < a.begin for i, a in enumerate(order) for b in order[i + 1:]):
                    continue
                state, ok = model.initial, True
                for o in order:
                    after = model.step(state, o)
                    if not after:
                        ok = False
                        break
                    state = after[0]
                if ok:
                    return True
    return False


def test_as_brute_force_says():
    rng, verdicts = random.Random(5), []
    for _ in range(300):
        ops = some_history(rng, 6)
        try:
            check_one(ops, Register(0))
            verdict = True
        except Violation:
            verdict = False
        assert verdict == by_brute_force(ops, Register(0)), "\n".join(map(str, ops))
        verdicts.append(verdict)
    assert 30 < sum(verdicts) < 270  # both verdicts occur


def simulated(rng, n_clients, n_ops, lie=None):
    """Makes operations on a real register, each done at one moment between its times. The first
    read from number `lie` on that can return an old value does so."""
    ops, state, now, free = [], 0, 0, [0] * n_clients
    old = []
    for i in range(n_ops):
        c = rng.randrange(n_clients)
        now = max(now, free[c]) + 10
        begin, end = max(free[c] + 1, now - rng.randrange(30)), now + rng.randrange(1, 30)
        free[c] = end
        if rng.random() < 0.4:
            old.append((state, now))
            state = i + 1
            ops.append(w("c%d" % c, state, begin, end))
        else:
            value = state
            if lie is not None and i >= lie:
                stale = [v for v, gone in old if gone + 100 < begin]
                if stale:
                    value, lie = stale[-1], None
            ops.append(r("c%d" % c, value, begin, end))
    return ops


def test_long_histories_are_judged():
    rng = random.Random(6)
    for _ in range(3):
        check_one(simulated(rng, 8, 4000), Register(0))
        with pytest.raises(Violation):
            check_one(simulated(rng, 8, 4000, lie=2000), Register(0))
