"""Programs at work on mounts, and what they must find: git, and sqlite with writers on several mounts."""
import sqlite3
import subprocess
import sys


def run(*cmd, **kw):
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    assert r.returncode == 0, "%s: exit %d\n%s" % (" ".join(cmd), r.returncode, r.stdout[-4000:])
    return r.stdout


def make_repository(path, commits):
    """Makes a repository of `commits` commits by fast-import: many small files that change over time."""
    run("git", "init", "-q", "-b", "main", path)
    stream = []
    for i in range(commits):
        text = "line %d\n" % i * (1 + i % 40)
        stream.append("commit refs/heads/main\nmark :%d\ncommitter T <t@example.org> %d +0000\n"
                      "data 8\ncommit %d\n" % (i + 1, 1600000000 + i, i % 10))
        if i:
            stream.append("from :%d\n" % i)
        stream.append("M 100644 inline dir%d/file%d.txt\ndata %d\n%s\n" % (i % 17, i % 301, len(text), text))
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input="".join(stream), text=True,
                   check=True)


def use_git(origin, commits, folder):
    """Clones a repository of make_repository() into the folder, and has git check and repack it."""
    repo = folder + "/clone"
    run("git", "clone", "-q", "--no-hardlinks", origin, repo)
    assert run("git", "-C", repo, "rev-list", "--count", "HEAD").strip() == str(commits)
    run("git", "-C", repo, "fsck", "--full", "--strict")
    run("git", "-C", repo, "gc", "-q", "--aggressive", "--prune=now")
    run("git", "-C", repo, "fsck", "--full", "--strict")
    assert run("git", "-C", repo, "status", "--porcelain").strip() == ""
    # A clone inside the file system makes hard links.
    run("git", "clone", "-q", "--local", repo, folder + "/second")
    run("git", "-C", folder + "/second", "fsck", "--full")


def make_database(path):
    """Makes what SqliteWriter writes to."""
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute("pragma journal_mode=delete").fetchone()[0] == "delete"
    db.execute("create table t (n integer primary key, who text, sum integer, data blob)")
    db.execute("create index t_who on t (who, n)")
    db.execute("create table last (who text, n integer)")
    db.execute("insert into t values (0, '', 0, '')")
    db.execute("insert into last values ('', 0)")
    db.close()


# A writer that keeps the database open: a line of input is the number of the last row that must exist, -1 for
# "any".
WRITER = r"""
import sqlite3, sys
path, who = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None, timeout=120)
assert db.execute("pragma journal_mode").fetchone()[0] == "delete"
for line in sys.stdin:
    want = int(line)
    db.execute("begin immediate")
    n, sum_before = db.execute("select n, sum from t order by n desc limit 1").fetchone()
    if want >= 0:
        assert n == want, "row %d is the last, not %d" % (n, want)
    db.execute("insert into t values (?, ?, ?, ?)", (n + 1, who, sum_before + n + 1, b"%d " % (n + 1) * (n * 37 % 900)))
    db.execute("update last set who = ?, n = ?", (who, n + 1))
    db.execute("commit")
    print(n + 1, flush=True)
"""


class SqliteWriter:
    """A process that adds a row in each transaction."""

    def __init__(self, path, who):
        self.p = subprocess.Popen([sys.executable, "-c", WRITER, path, who], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start(self, want):
        self.p.stdin.write("%d\n" % want)
        self.p.stdin.flush()

    def answer(self):
        line = self.p.stdout.readline()
        assert line, self.p.communicate()[1][-3000:]
        return int(line)

    def end(self):
        self.p.kill()
        self.p.communicate()


def check_database(path, n):
    """Fails unless the database is sound and has exactly the n rows that writers have added."""
    db = sqlite3.connect(path)
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert db.execute("select count(*), max(n), max(sum) from t").fetchone() == (n + 1, n, n * (n + 1) // 2)
    assert db.execute("select n from last").fetchone() == (n,)
    assert db.execute("select count(*) from t where length(data) != length(n || ' ') * ((n - 1) * 37 % 900) "
                      "and n > 0").fetchone() == (0,)
    db.close()
