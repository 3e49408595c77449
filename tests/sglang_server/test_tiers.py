# SPDX-License-Identifier: Apache-2.0
"""Answers of SGLang's server are the same whether it computes a prompt or reads it from device, host or Larder; after a
kill; with a damaged store; and with several ranks."""

import shutil

import checkpoint
import pytest
from sglang_server import PAGE, check_same, larder_files
from store_files import damage, damage_pool


def whole_pages(prompt):
    """Tokens of a prompt that can be cached: the last one is always computed."""
    return (len(prompt) - 1) // PAGE * PAGE


def cold(prompts):
    """Others, whose first pages nobody has stored."""
    return [prompt[::-1] for prompt in prompts]


def test_full_attention(start, qwen2, prompts, tmp_path):
    storage = larder_files(tmp_path / "store")
    model = shutil.copytree(qwen2, tmp_path / "model")
    with start(model, **storage) as server:
        computed = server.ask_all(prompts)
        assert computed[0].cached == 0
        assert len({tuple(answer.tokens) for answer in computed}) == len(prompts), "prompts have the same answer"
        again = server.ask_all(prompts)
        stored = server.read_back(prompts)
        check_same(computed, server.ask_together(prompts))
        server.kill_while_it_answers(cold(prompts))
    with start(model, **storage) as server:
        restarted = server.ask_all(prompts)
        interrupted = server.ask_all(cold(prompts))
        salted = server.ask_all(prompts[2:] + cold(prompts), cache_salt="another tenant")
        server.flush()
        damage(tmp_path / "store")
        damaged = server.ask_all(prompts)
        repaired = server.read_back(prompts)
    for answers in (again, stored, restarted, repaired):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
    assert any(answer.tiers["host"] for answer in again)
    assert all(answer.tiers["storage"] for answer in restarted)
    check_same(computed[2:] + interrupted, salted)
    assert not any(answer.cached for answer in salted)
    check_same(computed, damaged)
    assert not any(answer.tiers["storage"] for answer in damaged)

    # The folder of the model gets other weights: nothing of the old ones is found. The host keeps nothing this time.
    checkpoint.qwen2(model, seed=1)
    with start(model, hicache_host_memory_mode="buffer_only", **storage) as server:
        new = server.ask_all(prompts)
        check_same(new, server.read_back(prompts))
    assert not any(answer.tiers["storage"] for answer in new)
    assert not any(one.agrees_with(other) for one, other in zip(computed, new, strict=True))


def test_sliding_window(start, mellum, prompts, tmp_path):
    """Half of the layers need the last pages only, and SGLang stores no others of them."""
    storage = larder_files(tmp_path / "store")
    with start(mellum, **storage) as server:
        computed = server.ask_all(prompts)
        again = server.ask_all(prompts)
        stored = server.read_back(prompts)
        server.kill_while_it_answers(cold(prompts))
    with start(mellum, **storage) as server:
        restarted = server.ask_all(prompts)
        interrupted = server.ask_all(cold(prompts))
        salted = server.ask_all(cold(prompts), cache_salt="another tenant")
        server.flush()
        assert damage_pool(tmp_path / "store", "swa")
        damaged = server.ask_all(prompts)
        repaired = server.read_back(prompts)
    for answers in (again, stored, restarted, repaired):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
    assert all(answer.tiers["storage"] for answer in restarted)
    check_same(interrupted, salted)
    check_same(computed, damaged)
    assert not any(answer.tiers["storage"] for answer in damaged)


def test_recurrent_states(start, lfm2, prompts, tmp_path):
    """A conversation goes on from its state, which stands where the last answer ended and nowhere else."""
    options = larder_files(tmp_path / "store", prefetch_threshold=1) | {
        "page_size": 1,
        "disable_overlap_schedule": True,
        "max_mamba_cache_size": 24,
    }
    with start(lfm2, **options) as server:
        first = server.ask_all(prompts)
        talks = [prompt + answer.tokens + [5, 6] for prompt, answer in zip(prompts, first, strict=True)]
        again = server.ask_all(talks)
        stored = server.read_back(talks)
        server.kill_while_it_answers(cold(prompts))
    with start(lfm2, **options) as server:
        restarted = server.ask_all(talks)
        interrupted = server.ask_all(cold(prompts))
        salted = server.ask_all(cold(prompts), cache_salt="another tenant")
        server.flush()
        assert damage_pool(tmp_path / "store", "mamba")
        damaged = server.ask_all(talks)
        server.flush()
        server.ask_all(prompts)  # whose answers leave the states behind that the talks need
        server.ask_all(talks)
        repaired = server.read_back(talks)
        status, said = server.ask("/hicache/storage-backend/clear", method="POST")
        assert status == 200, said
        server.flush()
        computed = server.ask_all(talks)
    assert computed[0].cached == 0
    ends = [len(talk) - 3 for talk in talks]  # of the answer its last token was never fed to the model
    for answers in (again, stored, restarted, repaired):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == ends
    assert all(answer.tiers["storage"] for answer in restarted)
    check_same(interrupted, salted)
    check_same(computed, damaged)
    assert not any(answer.tiers["storage"] for answer in damaged)


def test_two_ranks_store_and_one_reads(start, prompts, tmp_path):
    """`tp_lcm_size`: pages in pieces, so that servers with other numbers of ranks find each other's."""
    storage = larder_files(tmp_path / "store", tp_lcm_size=2)
    with start(tp=2, hicache_mem_layout="page_head", **storage) as server:
        computed = server.ask_all(prompts)
        stored = server.read_back(prompts)
        server.kill()
    with start(tp=1, hicache_mem_layout="page_head", **storage) as server:
        alone = server.ask_all(prompts)
    for answers in (stored, alone):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
    assert all(answer.tiers["storage"] for answer in alone)


@pytest.mark.parametrize("ranks", [{"dp_size": 2}, {"pp_size": 2}], ids=["replicas", "stages"])
def test_replicas_and_stages(start, prompts, tmp_path, ranks):
    """Two replicas share what one of them has computed; each of two stages of a pipeline stores its layers."""
    with start(**ranks, **larder_files(tmp_path / "store")) as server:
        computed = server.ask_all(prompts)
        server.generate(prompts[0])  # replicas take turns: from here on each has the other's prompts
        stored = server.read_back(prompts)
    check_same(computed, stored)
    assert [answer.cached for answer in stored] == [whole_pages(prompt) for prompt in prompts]
