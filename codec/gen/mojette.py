"""
mojette.py - writes the straight-line functions of the systematic Mojette code, for pixels that
are at least as wide as vectors.

Geometry, sweep and names are those of docs/CODEC.md and codec/mojette.c: t = column - row * p.
"""
from itertools import combinations

from lines import BLOCKS, LAYOUTS, WIDTH, At, Lines, Shape

PIXEL_BYTES = 64
AHEAD = 4  # columns between the prefetch of a cache line and the store to it (kernels with far)


class Mojette(Shape):
    form, kind = "mojette", "CODEC_MOJETTE"

    def __init__(self, k, n, block_bytes):
        super().__init__(k, n, block_bytes)
        self.columns = self.row_bytes // PIXEL_BYTES
        self.overhang = {i: abs(p) * (k - 1) for i, p in self.slope.items()}

    def bin(self, i, t):
        """Return the place of bin t of projection i."""
        p = self.slope[i]
        index = t + (p * (self.k - 1) if p > 0 else 0)
        if index < self.columns:
            return At(f"body{i}", index)
        return At(f"overhang{i}", index - self.columns)

    def on_ray(self, p, t, rows):
        """Return the pixels (row, column) in `rows` whose sum is bin t of slope p."""
        return [(row, t + row * p) for row in rows if 0 <= t + row * p < self.columns]


def encode(isa, shape, copies=False, far=False):
    lines = Lines(isa, PIXEL_BYTES)
    k = shape.k
    for step in range(shape.columns + max(shape.overhang.values())):
        if far and step + AHEAD < shape.columns:
            for i in shape.slope:
                lines.fetch(At(f"body{i}", step + AHEAD))
        for i, p in shape.slope.items():
            # The rightmost pixel of the ray is in column `step`, which no earlier step loaded.
            t = step - max(p, 0) * (k - 1)
            ray = shape.on_ray(p, t, range(k))
            if ray:
                pixels = [At(f"row{row}", column) for row, column in ray]
                lines.store(shape.bin(i, t), lines.sum(pixels))
        if copies and step < shape.columns:  # after the sums: takes 8 % less time than before them
            for row in range(k):
                pixel = At(f"row{row}", step)
                lines.store(At(f"body{row}", step), lines.load(pixel))
    pointers = {f"row{row}": (True, f"data + {row * shape.row_bytes}") for row in range(k)}
    for i in range(0 if copies else k, shape.n):
        pointers[f"body{i}"] = (False, f"body[{i}]")
        if shape.overhang.get(i):
            pointers[f"overhang{i}"] = (False, f"overhang[{i}]")
    return shape.encode_kernel(lines, isa, pointers, copies, far)


def decode(isa, shape, lost, via):
    """Rebuild rows `lost` (ascending) from projections `via` and the other rows."""
    lines = Lines(isa, PIXEL_BYTES)
    via = sorted(via, key=lambda i: shape.slope[i])
    slopes = [shape.slope[i] for i in via]
    kept = [row for row in range(shape.k) if row not in lost]
    delay = [0]
    for above, below, p in zip(lost, lost[1:], slopes):
        delay.append(delay[-1] - (below - above) * p)
    for step in range(min(delay), max(delay) + shape.columns):
        for row, i, p, late in reversed(list(zip(lost, via, slopes, delay))):
            column = step - late
            if not 0 <= column < shape.columns:
                continue
            t = column - row * p
            sources = [shape.bin(i, t)]
            sources += [At(f"row{r}", c) for r, c in shape.on_ray(p, t, kept)]
            others = [r for r in lost if r != row]
            sources += [At(f"row{r}", c) for r, c in shape.on_ray(p, t, others)]
            lines.store(At(f"row{row}", column), lines.sum(sources))
    pointers = {f"row{row}": (True, f"body[{row}]") for row in kept}
    pointers |= {f"row{row}": (False, f"data + {row * shape.row_bytes}") for row in lost}
    for i in via:
        pointers[f"body{i}"] = (True, f"body[{i}]")
        if shape.overhang[i]:
            pointers[f"overhang{i}"] = (True, f"overhang[{i}]")
    return shape.decode_kernel(lines, isa, pointers, kept + via)


def kernels(isa):
    for k, n in LAYOUTS[:2]:  # the pixels of the third are narrower: see packed.py
        for block_bytes in BLOCKS:
            shape = Mojette(k, n, block_bytes)
            yield encode(isa, shape)
            yield encode(isa, shape, copies=True)
            if WIDTH[isa] == PIXEL_BYTES:  # else each cache line would be prefetched several times
                yield encode(isa, shape, far=True)
            for n_lost in range(1, n - k + 1):
                for lost in combinations(range(k), n_lost):
                    for via in combinations(range(k, n), n_lost):
                        yield decode(isa, shape, lost, via)
