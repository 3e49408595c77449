# SPDX-License-Identifier: Apache-2.0
"""`larder proxy` before the real llama-server for a set time: killed, stopped, emptied; every token is checked.

What it shares with tools/soak.py comes from there: processes, ledger, clients' loop, samples, tables.

    settings        what is asked for, and the pairs of a proxy and its llama-server
    pairs           both processes of a pair; what they leave in files
    asking          the requests: /completion and chats, whole and as streams
    conversations   what is said, and what a plain llama-server answered
    verdict         whether an answer is right: rounding told apart from wrong tokens
    clients         threads that converse
    chaos           threads that make trouble
    watch           samples of both processes, their files, llama-servers that end by themselves
    report          the table at the end
    command         all of it together
"""
