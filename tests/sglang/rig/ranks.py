# SPDX-License-Identifier: Apache-2.0
"""Runs the same task in several processes that are the ranks of one model, joined by a gloo group on this machine."""

import multiprocessing
import os
import queue
import tempfile
import time
import traceback

TIMEOUT = 180.0


def run(count, task, *args):
    """Calls `task(rank, count, group, *args)` in `count` processes; returns their results in the order of the ranks.

    `task` is a function of a module.  Fails with the traceback of the first rank that failed, or after the timeout.
    """
    # The processes are forked from a server that has imported SGLang and has no threads: the import takes seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rig.warm"])
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        processes = [
            context.Process(target=_rank, args=(rank, count, meeting, answers, task, args), daemon=True)
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(count, answers)
        finally:
            for process in processes:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(count, answers):
    """Returns the ranks' results."""
    results = {}
    deadline = time.monotonic() + TIMEOUT
    while len(results) < count:
        try:
            rank, result, error = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            missing = sorted(set(range(count)) - set(results))
            raise AssertionError(f"rig: no answer of the ranks {missing} within {TIMEOUT} s") from None
        if error:
            raise AssertionError(f"rig: rank {rank} of {count} failed\n{error}")
        results[rank] = result
    return [results[rank] for rank in range(count)]


def _rank(rank, count, meeting, answers, task, args):
    """The life of one process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        import torch

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
        group = torch.distributed.new_group(list(range(count)), backend="gloo")
        result = task(rank, count, group, *args)
        torch.distributed.barrier(group=group)
        answers.put((rank, result, None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
