#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds conversations with a running server and says, round by round, what the time to the first token went to.

  tests/sglang_clients/ttft_shares.py --url http://127.0.0.1:30000 [--parallel 4] [--clients 10] [--rounds 12]

Tokens of a tier are means of a round, all else are its medians; times in milliseconds:
  queue     before the request started: it waited for storage, or for room on the device
  compute   from its start to its first token: copies to the device, and the steps, which others share
  rest      what the client saw beyond that: JSON, HTTP, sockets
docs/reference_engine.md has a table of it, and what it means.
"""

import argparse
import statistics

from conversations import Load, converse

HEAD = ("round", "prompt", "computed", "device", "host", "storage", "TTFT", "queue", "compute", "rest")
_ROW = "{:>5} {:>7,} {:>9,} {:>7,} {:>7,} {:>8,} {:>8.1f} {:>7.1f} {:>8.1f} {:>6.1f}"
_WIDTHS = (5, 7, 9, 7, 7, 8, 8, 7, 8, 6)


def row_of(number, turns):
    """The medians of one round."""

    def median(of):
        return statistics.median(map(of, turns))

    return (
        number,
        turns[0].prompt_tokens,
        round(median(lambda turn: turn.prompt_tokens - turn.cached)),
        *(round(statistics.mean(getattr(turn, tier) for turn in turns)) for tier in ("device", "host", "storage")),
        median(lambda turn: turn.ttft) * 1e3,
        median(lambda turn: turn.queue) * 1e3,
        median(lambda turn: turn.server_ttft - turn.queue) * 1e3,
        median(lambda turn: turn.ttft - turn.server_ttft) * 1e3,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of a server that has just been started")
    for name, value in (("clients", 10), ("rounds", 12), ("new-tokens", 256), ("output-tokens", 256), ("parallel", 4)):
        parser.add_argument(f"--{name}", type=int, default=value, help="(%(default)s)")
    given = parser.parse_args()
    load = Load(given.clients, given.rounds, given.new_tokens, given.output_tokens, given.parallel, vocabulary=512)
    turns = converse(given.url, load)
    print(" ".join(name.rjust(width) for name, width in zip(HEAD, _WIDTHS)))
    for number in range(load.rounds):
        print(_ROW.format(*row_of(number, [turn for turn in turns if turn.round == number])))


if __name__ == "__main__":
    main()
