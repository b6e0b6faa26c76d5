#!/usr/bin/python3
"""plot.py - draw the results of bench_codec in the style of the papers' figures.

    bench_codec --json codec.json && tests/bench/codec/plot.py codec.json docs/img

Writes codec-encode.svg (cycles of encoding a block, 4 and 8 KB), codec-decode-4k.svg and codec-decode-8k.svg
(cycles of decoding by number of lost rows). Each bar is a code. The full part of a bar is the computation of
parities or lost rows; the pale part on top is the copy of the other rows. The dashed line is memcpy of all n
packets, or of the k packets of a block. Bars that leave the picture are cut and show their number. Needs no
library. Prints a table of the largest blocks for docs/CODEC.md.
"""
import json
import os
import sys

COLOURS = {"mojette": "#0b6e4f", "mojette-finite": "#57a773", "mojette-nonsys": "#a9d6b8",
           "isa-l new": "#274690", "isa-l old": "#7a9be0", "raid": "#8d5fd3",
           "jerasure vandermonde": "#c8553d", "jerasure cauchy": "#f28f3b"}
BAR, GAP, HEIGHT, LEFT, TOP, LEGEND = 15, 16, 240, 52, 64, 22


def kind(code, newest):
    """Returns the colour of a code; None: it is not drawn."""
    if code.endswith(" raid"):
        return "raid" if code.startswith(newest) else None
    if code.startswith("isa-l "):
        return "isa-l new" if code == newest else "isa-l old"
    return code if code in COLOURS else None


class Case:
    """Figures of one case by (code, op, lost, copy)."""

    def __init__(self, case):
        self.k, self.n = case["k"], case["n"]
        self.cycles = {(f["code"], f["op"], f["lost"], f["copy"]): f["cycles"] for f in case["figures"]}
        self.codes = list(dict.fromkeys(f["code"] for f in case["figures"]))

    def bars(self, op, lost):
        """Yields (code, kind, cycles of computing, cycles with copies)."""
        newest = next((c for c in self.codes if c.startswith("isa-l ")), "isa-l")
        for code in self.codes:
            if kind(code, newest) is None or (code, op, lost, True) not in self.cycles:
                continue
            both = self.cycles[code, op, lost, True]
            plain = self.cycles[code, op, lost, False]
            if code == "mojette-nonsys":
                plain = both  # no row is a projection: nothing to copy
            yield code, kind(code, newest), min(plain if lost or op == "encode" else 0, both), both


def text(x, y, words, size=11, anchor="middle", extra=""):
    return '<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s"%s>%s</text>' % (x, y, size, anchor, extra, words)


def group(case, op, lost, x, scale):
    """Draws the bars of one group, its memcpy line and its label. Returns (svg, x after it, codes drawn)."""
    out, seen, start = [], {}, x
    for code, colour, plain, both in case.bars(op, lost):
        seen[code] = COLOURS[colour]
        for cycles, opacity in ((both, 0.35), (plain, 1)):
            h = min(cycles * scale, HEIGHT)
            out.append('<rect x="%.1f" y="%.1f" width="%d" height="%.1f" fill="%s" opacity="%g"/>'
                       % (x, TOP + HEIGHT - h, BAR - 2, h, COLOURS[colour], opacity))
        top = TOP + HEIGHT - min(both * scale, HEIGHT)
        words = "%.0f" % both if plain == 0 or both - plain < 1 else "%.0f + %.0f" % (plain, both - plain)
        inside, x_text = top < TOP + 54, x + BAR - 4
        y_text = TOP + 3 if inside else top - 3
        out.append(text(x_text, y_text, words, 9, "end" if inside else "start",
                        ' stroke="#fff" stroke-width="2" paint-order="stroke" transform="rotate(-90 %.1f %.1f)"'
                        % (x_text, y_text)))
        x += BAR
    y = TOP + HEIGHT - min(case.cycles["memcpy", op, lost, False] * scale, HEIGHT)
    out.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#000" stroke-dasharray="5 3"/>'
               % (start - 5, y, x + 5, y))
    return out, x + GAP, seen


def panel(groups, title, x):
    """Draws groups under one title with an axis of their own: [(label, case, op, lost)]."""
    most = 1.2 * max(b for _, case, op, lost in groups for _, c, _, b in case.bars(op, lost) if c.startswith("isa"))
    step = next(s for s in (50, 100, 200, 500, 1000, 10**6) if most / s <= 8)
    out, seen, start = [], {}, x
    for label, case, op, lost in groups:
        bars, behind, codes = group(case, op, lost, x, HEIGHT / most)
        out += bars
        out.append(text((x + behind - GAP) / 2, TOP + HEIGHT + 16, label))
        seen.update(codes)
        x = behind
    grid = []
    for i in range(int(most / step) + 1):
        y = TOP + HEIGHT - i * step * HEIGHT / most
        grid.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ccc"/>' % (start - 8, y, x - GAP + 8, y))
        grid.append(text(start - 12, y + 4, "%d" % (i * step), 10, "end"))
    grid.append(text((start + x - GAP) / 2, TOP - 12, title, 12))
    return grid + out, x - GAP + LEFT, seen


def picture(path, heading, panels):
    x, out, seen = LEFT, [], {}
    for groups, title in panels:
        svg, x, codes = panel(groups, title, x)
        out += svg
        seen.update(codes)
    width = max(x - LEFT + 16, 640)
    out.append(text(12, 20, heading, 14, "start"))
    lx, ly = 12, TOP + HEIGHT + 40
    for name, colour in list(seen.items()) + [("memcpy", None)]:
        if lx + 24 + 7 * len(name) > width:
            lx, ly = 12, ly + LEGEND
        out.append('<rect x="%d" y="%d" width="12" height="12" fill="%s"/>' % (lx, ly - 10, colour) if colour else
                   '<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#000" stroke-dasharray="5 3"/>'
                   % (lx - 4, ly - 4, lx + 14, ly - 4))
        out.append(text(lx + 18, ly, name, 11, "start"))
        lx += 34 + 7 * len(name)
    with open(path, "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif">\n'
                '<rect width="100%%" height="100%%" fill="#fff"/>\n%s\n</svg>\n'
                % (width, ly + 14, "\n".join(out)))


def cell(case, code, op, lost):
    cycles = case.cycles.get((code, op, lost, False))
    return "-" if cycles is None else "%.0f" % cycles


def table(cases):
    """Prints encode / 1 lost / 2 lost / ... of every code, a column for each case, as Markdown."""
    print("| cycles | %s |" % " | ".join(
        "(%d,%d) %s" % (c.n, c.k, " / ".join(["enc"] + ["e%d" % e for e in range(1, c.n - c.k + 1)])) for c in cases))
    print("| --- " * (len(cases) + 1) + "|")
    for code in dict.fromkeys(code for c in cases for code in c.codes):
        print("| %s | %s |" % (code, " | ".join(
            " / ".join([cell(c, code, "encode", 0)] +
                       [cell(c, code, "decode", e) for e in range(1, c.n - c.k + 1)]) for c in cases)))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        cases = [c for c in json.load(f) if c["place"] == "l1"]
    at = {(c["block_bytes"], c["k"]): Case(c) for c in cases}
    sizes, ks = sorted({b for b, _ in at}), sorted({k for _, k in at})

    def name(k):
        return "(%d, %d)" % (at[sizes[0], k].n, k)

    picture(os.path.join(sys.argv[2], "codec-encode.svg"), "Encoding a block: core cycles, hot in L1",
            [([(name(k), at[b, k], "encode", 0) for k in ks], "blocks of %d KB" % (b >> 10)) for b in sizes])
    for b in sizes:
        picture(os.path.join(sys.argv[2], "codec-decode-%dk.svg" % (b >> 10)),
                "Decoding a block of %d KB by number of lost rows: core cycles, hot in L1" % (b >> 10),
                [([("%d lost" % e, at[b, k], "decode", e) for e in range(at[b, k].n - k + 1)], name(k)) for k in ks])
    table([at[sizes[-1], k] for k in ks])


if __name__ == "__main__":
    main()
