# SPDX-License-Identifier: Apache-2.0
"""The table at the end, the line meanwhile, and what is judged when all is over."""

from soak import watch
from soak.clock import CLOCK
from soak.ledger import DISK_STOOD_STILL


def text_table(head, rows):
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _counter(child, *path, lives=None):
    """Sum over lives of a number in what the server said about itself."""
    total = 0
    for life in child.lives if lives is None else lives:
        value = life.counters
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        total += value or 0
    return total


def storage_hits_after_restarts(child):
    return _counter(child, "cached_tokens", "storage", lives=child.lives[1:])


def progress(ledger, children):
    """One line."""
    memory = " ".join(f"{c.name} {c.life.samples[-1].rss_kib // 1024}" for c in children if c.life and c.life.samples)
    ends = sum(n for what, n in ledger.events.items() if what.startswith(("kill ", "terminate ")))
    return (f"[{ledger.seconds():5.0f} s] {ledger.total('requests'):,} requests, {ledger.total('tokens'):,} tokens "
            f"right, {ledger.total('failed in windows')} failed in windows, {ledger.total('failed outside windows')} "
            f"outside; {ends} restarts, {sum(ledger.events.values()) - ends} other troubles; "
            f"from storage {sum(_counter(c, 'cached_tokens', 'storage') for c in children):,}; MiB: {memory}")


def requests_table(ledger, servers):
    rows = []
    for child in servers:
        n = ledger.counts[child.name]
        rows.append([child.name, f"{n['requests']:,}", f"{n['tokens']:,}", n["wrong answers"], f"{n['abandoned']:,}",
                     n["failed in windows"], n["failed outside windows"], n["restarts"]])
    rows.append(["all"] + [f"{sum(int(str(row[i]).replace(',', '')) for row in rows):,}" for i in range(1, 8)])
    return text_table(["server", "requests", "tokens right", "wrong", "abandoned", "failed in windows",
                       "failed outside", "restarts"], rows)


def hits_table(servers):
    rows = []
    for child in servers:
        rows.append([child.name, f"{_counter(child, 'prompt_tokens'):,}"]
                    + [f"{_counter(child, 'cached_tokens', tier):,}" for tier in ("device", "host", "storage")]
                    + [f"{storage_hits_after_restarts(child):,}"]
                    + [f"{_counter(child, *path):,}" for path in (("cache", "stored_pages"), ("storage", "evicted"),
                                                                 ("cache", "corrupt_pages"),
                                                                 ("cache", "internal_errors"))])
    return text_table(["server", "prompt tokens", "from device", "host", "storage", "storage after a restart",
                       "pages stored", "evicted", "corrupt", "internal errors"], rows)


def memory_table(children):
    """Of the longest life of each process, and the peak of all its lives."""
    rows = []
    for child in children:
        lives = [life for life in child.lives if life.samples]
        if not lives:
            continue
        life = max(lives, key=lambda one: one.samples[-1].seconds - one.samples[0].seconds)
        samples = life.samples
        judged = [one for one in lives if watch.judged_samples(one)]
        rises = [watch.growth([s.rss_kib for s in watch.judged_samples(one)]) for one in judged]
        rows.append([child.name, len(child.lives), f"{samples[-1].seconds - samples[0].seconds:.0f} s",
                     f"{samples[0].rss_kib:,}", f"{samples[-1].rss_kib:,}",
                     f"{max(s.rss_kib for one in lives for s in one.samples):,}",
                     f"{samples[0].descriptors}, {samples[-1].descriptors}, {max(s.descriptors for s in samples)}",
                     f"{samples[0].threads}, {samples[-1].threads}, {max(s.threads for s in samples)}",
                     len(judged), f"{max(rises):+,.0f}" if rises else "-"])
    return text_table(["process", "lives", "longest", "its KiB first", "last", "most of all lives",
                       "its fds first, last, most", "threads", "judged", "most KiB grown in a second half"], rows)


def events_table(ledger):
    kinds = sorted({what.rsplit(" ", 1)[0] for what in ledger.events if what != "flush done"})
    names = sorted({what.rsplit(" ", 1)[1] for what in ledger.events if what != "flush done"})
    rows = [[kind] + [ledger.events[f"{kind} {name}"] or "" for name in names] for kind in kinds]
    return text_table(["trouble", *names], rows)


def index_text(metadata):
    """The page index, as it was last seen."""
    figures = metadata.life.counters.values() if metadata.life else []
    return "the index at the end: " + ", ".join(
        [f"{len(figures)} namespaces"]
        + [f"{sum(one[name] for one in figures):,} {name}" for name in ("pages", "stored", "quarantined", "leased")])


def judge(ledger, servers, children, ended):
    """What can be said only at the end: fails the ledger."""
    for child in children:
        for number, life in enumerate(child.lives):
            for text in watch.why_not_flat(life, watch.most_memory(child.lives[:number])):
                ledger.fail(f"{child.name}, life {life.number}: {text}")
        for text in watch.why_peaks_grow([life.samples for life in child.lives], ledger.begun, ended):
            ledger.fail(f"{child.name}: {text}")
    for child in servers:
        if _counter(child, "cache", "internal_errors"):
            ledger.fail(f"{child.name} counted {_counter(child, 'cache', 'internal_errors')} internal errors")
        if not ledger.counts[child.name]["tokens"]:
            ledger.fail(f"{child.name}: no token was checked: the soak proved nothing")
        if len(child.lives) < 2:
            ledger.fail(f"{child.name} was never restarted: the soak proved nothing about it; make it longer")
        elif not storage_hits_after_restarts(child):
            ledger.fail(f"{child.name}: nothing came from storage after a restart: the soak proved nothing")


def full(ledger, servers, children, processor_seconds, seconds):
    flushes = sum(n for what, n in ledger.events.items() if what.startswith("flush ") and what != "flush done")
    notes = [f"{ledger.events['flush done']} of {flushes} flushes found their server idle"]
    for what in ("starts refused", "attaches refused"):
        if ledger.total(what):
            notes.append(f"{ledger.total(what)} {what} while the metadata server was away")
    if ledger.total(DISK_STOOD_STILL):
        notes.append(f"{ledger.total(DISK_STOOD_STILL)} {DISK_STOOD_STILL}, and which were tried again")
    if CLOCK.still_moments:
        notes.append(f"the machine stood still {len(CLOCK.still_moments)} times, for {CLOCK.still_seconds:.0f} s in "
                     "all, which did not count")
    return "\n\n".join([
        requests_table(ledger, servers), hits_table(servers), events_table(ledger), memory_table(children),
        index_text(children[-1]) + "\n"
        f"{'; '.join(notes)}; the slowest request took {ledger.slowest_seconds:.2f} s; "
        f"{processor_seconds / seconds:.2f} cores used"])
