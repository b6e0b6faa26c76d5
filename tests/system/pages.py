"""Files of 4 KB pages that say what they are, and a model of what each page may hold.

A page is one word of 32 bytes (magic, page number, generation, a mix of both) over and over, so that a
page of another place, of two generations, or of nothing at all is seen. Page never written: generation 0.

PageFile is the model of one file: whoever writes tells it first what it is going to write (`start`), then what
was acknowledged (`written`) and what was synced (`synced`); `check` holds a read of the whole file against it.

    a page may hold   any generation that was started, from the last one that must be there on
    must be there     what was synced; with `through` also what was only acknowledged; what was read, with `settled`
"""
import itertools
import os
import struct
import threading

PAGE = 4096
MIB = 1 << 20
PAGES_OF_MIB = MIB // PAGE
WRONG_MAX = 4  # more are not looked for: an error takes seconds
PAGES_OF_ERROR = 32  # where more cannot be read, so many are tried, then each
WORD = struct.Struct("<QQQQ")
MAGIC = 0x65676170_6F7A6F72
HOLE = bytes(PAGE)


def page_of(number, generation):
    mixed = (number * 0x9E3779B97F4A7C15 ^ generation * 0xC2B2AE3D27D4EB4F) & (1 << 64) - 1
    return WORD.pack(MAGIC, number, generation, mixed) * (PAGE // WORD.size)


def generation_of(page, number):
    """Of the page that belongs there; None for anything else, such as a mixture of two."""
    if page == HOLE:
        return 0
    magic, _, generation, _ = WORD.unpack_from(page)
    return generation if magic == MAGIC and page == page_of(number, generation) else None


def describe(page, number):
    """For people: which words of which generation, in order."""
    words = [WORD.unpack_from(page, at) for at in range(0, PAGE, WORD.size)]
    runs = [(name, len(list(group))) for name, group in itertools.groupby(
        "zeros" if not any(w) else "generation %d" % w[2] if w[0] == MAGIC and w[1] == number else
        "page %d, generation %d" % w[1:3] if w[0] == MAGIC else "garbage" for w in words)]
    return ", ".join("%d x %s" % (n * WORD.size, name) for name, n in runs)


class PageFile:
    """The model of one file. Thread: any."""

    def __init__(self, n_pages):
        self.lock = threading.Lock()
        self.generations = itertools.count(1)
        self.last = [HOLE] * n_pages  # what was read, or must be there
        self.later = {}               # page number -> generations started since, oldest first
        self.acked = {}               # page number -> the newest that was acknowledged and is not in `last`

    def start(self, number):
        """The bytes to write next to that page; nobody else writes it meanwhile."""
        with self.lock:
            generation = next(self.generations)
            self.later.setdefault(number, []).append(generation)
        return page_of(number, generation)

    def written(self, number, page, through=False):
        """Acknowledged; through: it must outlive the client that wrote it."""
        generation = generation_of(page, number)
        with self.lock:
            if through:
                self._settle(number, page, generation)
            else:
                self.acked[number] = generation

    def unsynced(self):
        """What a sync that begins now will cover."""
        with self.lock:
            return dict(self.acked)

    def synced(self, covered):
        """A sync that began after `covered = unsynced()` has ended well."""
        with self.lock:
            for number, generation in covered.items():
                if generation in self.later.get(number, ()):
                    self._settle(number, page_of(number, generation), generation)

    def crashed(self):
        """The writers' client is gone: no sync will cover what it was acknowledged."""
        with self.lock:
            self.acked.clear()

    def _settle(self, number, page, generation):
        self.last[number] = page
        self.later[number] = [g for g in self.later.get(number, ()) if g > generation]
        if not self.later[number]:
            del self.later[number]
        if self.acked.get(number, generation + 1) <= generation:
            del self.acked[number]

    def check(self, fd, settled=True):
        """Read all through fd while nobody writes; returns what is wrong, in words, a line a page.

        settled: what was read now must still be there later, whatever else fails.
        """
        wrong = []
        for first in range(0, len(self.last), PAGES_OF_MIB):
            pages = range(first, min(first + PAGES_OF_MIB, len(self.last)))
            for number, got in self._read(fd, pages):
                if isinstance(got, OSError):
                    wrong.append("page %d (block of 8 KB: %d): %s" % (number, number // 2, got.strerror))
                elif got != self.last[number]:
                    self._check_page(number, got, settled, wrong)
                if len(wrong) >= WRONG_MAX:
                    return wrong
        return wrong

    @staticmethod
    def _read(fd, pages):
        """Each (page number, bytes or OSError), read in pieces as large as can be read."""
        n = len(pages)
        try:
            data = os.pread(fd, n * PAGE, pages[0] * PAGE)
        except OSError as e:
            if n == 1:
                yield pages[0], e
            piece = PAGES_OF_ERROR if n > PAGES_OF_ERROR else 1
            for i in range(0, n if n > 1 else 0, piece):
                yield from PageFile._read(fd, pages[i:i + piece])
            return
        for i, number in enumerate(pages):
            yield number, data[i * PAGE:(i + 1) * PAGE]

    def _check_page(self, number, got, settled, wrong):
        generation = generation_of(got, number) if len(got) == PAGE else None
        with self.lock:
            if generation in self.later.get(number, ()):
                if settled:
                    self._settle(number, got, generation)
                return
            wrong.append("page %d holds %s; may hold generations %s" % (
                number, describe(got, number) if len(got) == PAGE else "%d bytes" % len(got),
                [generation_of(self.last[number], number)] + self.later.get(number, [])))
