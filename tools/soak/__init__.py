# SPDX-License-Identifier: Apache-2.0
"""Real `larder` processes for a set time: killed, restarted, paused, their storage switched; every token is checked.

    settings   what is asked for, and the servers that stand for it
    children   processes: starting, signals, health, logs, memory that 3FS leaves behind
    clock      time, but not while the whole machine stands still
    http       the requests
    prompts    conversations, and what the answers must be
    ledger     what happened: requests, windows in which they may fail, failures
    clients    threads that converse
    chaos      threads that make trouble
    watch      samples of memory, descriptors, threads and counters; whether they are flat
    report     the table at the end
    frame      what tools/soak_llama needs of this, too: options, folder, samples, the last words
    command    all of it together
"""
