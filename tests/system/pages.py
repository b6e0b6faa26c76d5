"""Files of 4 KB pages that identify themselves, and a model of what each page may hold.

A page repeats one word of 32 bytes (magic, page number, generation, a mix of both), so that a page from another
place, of two generations, or of other bytes is noticed. A page that was never written has generation 0.

PageFile is the model of one file: a writer reports what it is going to write (`start`), what was acknowledged
(`written`) and what was synced (`synced`); `check` compares a read of the whole file with the model.

    a page may hold   any generation that was started, from the last required one on
    required          synced data; with `through` also acknowledged data; with `settled` data that was read
"""
import itertools
import os
import struct
import threading

PAGE = 4096
MIB = 1 << 20
PAGES_OF_MIB = MIB // PAGE
WRONG_MAX = 4  # stops after so many faults: an error takes seconds
PAGES_OF_ERROR = 32  # after an unreadable piece it tries so many pages at once, then each
WORD = struct.Struct("<QQQQ")
MAGIC = 0x65676170_6F7A6F72
HOLE = bytes(PAGE)


def page_of(number, generation):
    mixed = (number * 0x9E3779B97F4A7C15 ^ generation * 0xC2B2AE3D27D4EB4F) & (1 << 64) - 1
    return WORD.pack(MAGIC, number, generation, mixed) * (PAGE // WORD.size)


def generation_of(page, number):
    """Returns the generation of the page; None for any other contents, such as a mixture of two."""
    if page == HOLE:
        return 0
    magic, _, generation, _ = WORD.unpack_from(page)
    return generation if magic == MAGIC and page == page_of(number, generation) else None


def describe(page, number):
    """Describes for messages which words of which generation are in the page, in order."""
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
        self.last = [HOLE] * n_pages  # read, or required
        self.later = {}               # page number -> generations started since, oldest first
        self.acked = {}               # page number -> newest acknowledged generation that is not in `last`

    def start(self, number):
        """Returns the next bytes for the page, which has no other writer meanwhile."""
        with self.lock:
            generation = next(self.generations)
            self.later.setdefault(number, []).append(generation)
        return page_of(number, generation)

    def written(self, number, page, through=False):
        """Records an acknowledgement; through: the data must outlive its client."""
        generation = generation_of(page, number)
        with self.lock:
            if through:
                self._settle(number, page, generation)
            else:
                self.acked[number] = generation

    def unsynced(self):
        """Returns the writes that a sync beginning now will cover."""
        with self.lock:
            return dict(self.acked)

    def synced(self, covered):
        """Records that a sync that began after `covered = unsynced()` succeeded."""
        with self.lock:
            for number, generation in covered.items():
                if generation in self.later.get(number, ()):
                    self._settle(number, page_of(number, generation), generation)

    def crashed(self):
        """Records that the writers' client is gone: no sync will cover its acknowledged writes."""
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
        """Reads all through fd, without concurrent writes; returns the faults as text, a line per page.

        settled: the data read now must stay, whatever else fails.
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
        """Yields (page number, bytes or OSError), in pieces as large as possible."""
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
