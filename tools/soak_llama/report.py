# SPDX-License-Identifier: Apache-2.0
"""The table at the end, the line meanwhile, and what is judged when all is over."""

from soak import report, watch
from soak.clock import CLOCK
from soak.report import text_table

REUSED = '_reused_tokens_total{from="%s"}'
REQUESTS = 'larder_proxy_requests_total{how="'
SAVES = 'larder_proxy_saves_total{outcome="'
MOST_TIES = 0.01  # of all tokens, and three more


def _counter(child, name, lives=None):
    """Sum over lives of a number in /metrics."""
    return int(sum(life.counters.get(name, 0) for life in (child.lives if lives is None else lives)))


def _counters(child, prefix):
    """{label: sum} of all that begin so; the label is the text up to the next quote."""
    names = {name for life in child.lives for name in life.counters if name.startswith(prefix)}
    return {name[len(prefix):].split('"')[0]: _counter(child, name) for name in sorted(names)}


def _of(pair, name, lives=None):
    """A counter of the proxy, or of the server that needs none."""
    return _counter(pair.proxy, pair.plan.metrics + name, lives)


def storage_tokens_after_restarts(pair):
    return _of(pair, REUSED % "storage", pair.proxy.lives[1:])


def progress(ledger, pairs):
    """One line."""
    processes = [process for pair in pairs for process in pair.processes]
    memory = " ".join(f"{p.name} {p.life.samples[-1].rss_kib // 1024}" for p in processes if p.life and p.life.samples)
    ends = sum(n for what, n in ledger.events.items() if what.startswith(("kill", "terminate")))
    from_storage = sum(_of(pair, REUSED % "storage") for pair in pairs)
    return (f"[{ledger.seconds():5.0f} s] {ledger.total('requests'):,} requests, {ledger.total('tokens'):,} tokens "
            f"right, {ledger.total('failed in windows')} failed in windows, {ledger.total('failed outside windows')} "
            f"outside; {ends} ends, {sum(ledger.events.values()) - ends} other troubles; from storage "
            f"{from_storage:,}; MiB: {memory}")


def reuse_table(pairs):
    rows = []
    for pair in pairs:
        rows.append([pair.name, f"{_of(pair, '_prompt_tokens_total'):,}"]
                    + [f"{_of(pair, REUSED % tier):,}" for tier in ("slot", "host", "storage")]
                    + [f"{storage_tokens_after_restarts(pair):,}", f"{_of(pair, '_corrupt_pages'):,}"]
                    + [f"{_of(pair, name):,}" if pair.plan.has_server else "-" for name in (
                        "_restores_total", "_failed_restores_total", "_ignored_restores_total",
                        "_server_losses_total")])
    return text_table(["server", "prompt tokens", "from slot", "host", "storage", "storage after a restart",
                       "corrupt pages", "restores", "failed", "ignored", "losses seen"], rows)


def outcomes_text(pairs):
    lines = []
    for pair in pairs:
        if not pair.plan.has_server:
            lines.append(f"{pair.name}: saves: {_of(pair, '_saves_total') - _of(pair, '_saves_failed_total')} saved, "
                         f"{_of(pair, '_saves_failed_total')} not; requests: {_of(pair, '_requests_total')}")
            continue
        saves, how = _counters(pair.proxy, SAVES), _counters(pair.proxy, REQUESTS)
        lines.append(f"{pair.name}: saves: " + ", ".join(f"{n} {name}" for name, n in saves.items() if n)
                     + "; requests: " + ", ".join(f"{n} {name}" for name, n in how.items() if n))
    return "\n".join(lines)


def judge(ledger, pairs, ended):
    """What can be said only at the end: fails the ledger."""
    for process in [process for pair in pairs for process in pair.processes]:
        for number, life in enumerate(process.lives):
            for text in watch.why_not_flat(life, watch.most_memory(process.lives[:number])):
                ledger.fail(f"{process.name}, life {life.number}: {text}")
        for text in watch.why_peaks_grow([life.samples for life in process.lives], ledger.begun, ended):
            ledger.fail(f"{process.name}: {text}")
    for pair in pairs:
        counts = ledger.counts[pair.name]
        if not counts["tokens"]:
            ledger.fail(f"{pair.name}: no token was checked: the soak proved nothing")
        if counts["ties"] > 3 + MOST_TIES * counts["tokens"]:
            ledger.fail(f"{pair.name}: {counts['ties']} of {counts['tokens']} tokens were ties: the soak says little")
        mismatches = _counter(pair.proxy, "larder_proxy_prompt_mismatches_total")
        if mismatches:
            ledger.fail(f"{pair.name}: llama-server counted other tokens in prompts than the proxy, {mismatches} times")
        if len(pair.proxy.lives) < 2:
            ledger.fail(f"{pair.name} was never restarted: the soak proved nothing about it; make it longer")
        elif not storage_tokens_after_restarts(pair):
            ledger.fail(f"{pair.name}: nothing came from storage after a restart: the soak proved nothing")


def full(ledger, pairs, watcher, furthest, processor_seconds, seconds):
    processes = [process for pair in pairs for process in pair.processes]
    notes = [f"{ledger.total('ties')} ties; log probabilities differed by at most {furthest:.4f}",
             f"{ledger.total('without the cache')} answers without the cache while llama-server came back",
             f"killed llama-servers were started again {ledger.total('llama-server restarts')} times"]
    if watcher:
        notes.append("most bytes in a store: " + ", ".join(
            f"{pair.name} {watcher.most_stored[pair.name]:,} of {pair.plan.store_bytes:,}" for pair in pairs))
    if CLOCK.still_moments:
        notes.append(f"the machine stood still {len(CLOCK.still_moments)} times, for {CLOCK.still_seconds:.0f} s in "
                     "all, which did not count")
    return "\n\n".join([
        report.requests_table(ledger, [pair.proxy for pair in pairs]), reuse_table(pairs), outcomes_text(pairs),
        report.events_table(ledger), report.memory_table(processes),
        f"{'; '.join(notes)}; the slowest request took {ledger.slowest_seconds:.2f} s; "
        f"{processor_seconds / seconds:.2f} cores used"])
