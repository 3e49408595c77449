# SPDX-License-Identifier: Apache-2.0
"""SGLang's `--hicache-storage-prefetch-policy` with a store that hangs, behind Larder: how long a request waits, and
that its answer is right whatever has come."""

import concurrent.futures
import time

import pytest
from rig.moody import Moody, compile_library, until
from sglang_server import check_same, larder_storage

PATIENCE = 120  # seconds that Larder waits for the store: longer than any request here may take


@pytest.fixture
def moody(tmp_path):
    """A store that hangs on command."""
    store = Moody(compile_library(tmp_path), tmp_path)
    yield store
    store.settle()


def test_a_store_that_hangs(servers, moody, prompts):
    server = servers[0]
    plain = {"backend": "plugin", "library": str(moody.library), "control": str(moody.path), "store": str(moody.store)}
    storage = larder_storage(**plain | {"timeout_seconds": PATIENCE, "prefetch_timeout_base": 0.3})
    server.attach(**storage)
    computed = server.ask_all(prompts)
    check_same(computed, server.read_back(prompts))

    for policy in ("best_effort", "timeout"):
        server.attach(policy, **storage)
        server.flush()
        moody.mood("hang", "read")
        begin = time.monotonic()
        answers = server.ask_all(prompts)
        assert time.monotonic() - begin < PATIENCE, f"{policy}: requests waited for the store"
        assert not any(answer.tiers["storage"] for answer in answers), policy
        check_same(computed, answers)
        moody.settle()

        # What hung has ended, late, and spoils nothing: with time, all is found.
        server.attach("wait_complete", **storage)
        check_same(computed, server.read_back(prompts))

    server.flush()
    moody.mood("hang", "read")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.generate, prompts[3])
        until(lambda: moody["hung"] > 0, "the begin of the hang")
        done, _ = concurrent.futures.wait([waiting], timeout=1)  # longer than prefetch_timeout_base
        assert not done, "the request did not wait"
        moody.settle()
        answer = waiting.result()
    assert answer.tiers["storage"] == answer.cached > 0
    check_same(computed[3:], [answer])
