# SPDX-License-Identifier: Apache-2.0
"""Answers of SGLang's server are the same whether it computes a prompt or reads it from device, host or Larder; after a
kill; with a damaged store; and with another number of ranks."""

import pathlib
import shutil

import checkpoint
from sglang_server import PAGE, check_same, larder_files


def whole_pages(prompt):
    """Tokens of a prompt that can be cached: the last one is always computed."""
    return (len(prompt) - 1) // PAGE * PAGE


def damage(folder):
    """Flips the high byte of a float in each 4 KiB of all files below `folder`: several in each page."""
    step = 4096
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob("*")):
        with path.open("r+b") as file:
            size = path.stat().st_size
            for at in range(step // 2 + 3, size, step):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 0xFF]))


def test_full_attention(start, prompts, tmp_path):
    storage = larder_files(tmp_path / "store")
    with start(**storage) as server:
        computed = server.ask_all(prompts)
        assert computed[0].cached == 0
        assert len({tuple(answer.tokens) for answer in computed}) == len(prompts), "prompts have the same answer"
        again = server.ask_all(prompts)
        stored = server.read_back(prompts)
        check_same(computed, server.ask_together(prompts))
        server.kill()
    with start(**storage) as server:
        restarted = server.ask_all(prompts)
        salted = server.ask_all(prompts[2:], cache_salt="another tenant")
        server.flush()
        damage(tmp_path / "store")
        damaged = server.ask_all(prompts)
        repaired = server.read_back(prompts)
    for answers in (again, stored, restarted, repaired):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
    assert any(answer.tiers["host"] for answer in again)
    assert all(answer.tiers["storage"] for answer in restarted)
    check_same(computed[2:], salted)
    assert not any(answer.cached for answer in salted)
    check_same(computed, damaged)
    assert not any(answer.tiers["storage"] for answer in damaged)


def test_new_weights_find_nothing_of_the_old_ones(start, qwen2, prompts, tmp_path):
    """The folder of a model gets other weights, and its server starts again with the same store."""
    storage = larder_files(tmp_path / "store")
    model = shutil.copytree(qwen2, tmp_path / "model")
    with start(model, **storage) as server:
        old = server.ask_all(prompts)
        server.read_back(prompts)
    checkpoint.qwen2(model, seed=1)
    with start(model, **storage) as server:
        new = server.ask_all(prompts)
        check_same(new, server.read_back(prompts))
    assert not any(answer.tiers["storage"] for answer in new)
    assert not any(one.agrees_with(other) for one, other in zip(old, new, strict=True))


def test_a_wrong_byte_is_another_answer(start, prompts, tmp_path):
    """What the other tests compare can fail: SGLang's own backend has no checksums."""
    with start(hicache_storage_backend="file", hicache_storage_backend_extra_config=f'{{"prefetch_threshold": {PAGE}, '
               f'"file_storage_path": "{tmp_path / "files"}"}}') as server:  # fmt: skip
        computed = server.ask_all(prompts)
        server.read_back(prompts)
        server.flush()
        damage(tmp_path / "files")
        damaged = server.ask_all(prompts)
    assert all(answer.tiers["storage"] for answer in damaged), damaged
    assert not any(wrong.agrees_with(right) for wrong, right in zip(damaged, computed))


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
        server.kill()
    with start(lfm2, **options) as server:
        restarted = server.ask_all(talks)
        status, said = server.ask("/hicache/storage-backend/clear", method="POST")
        assert status == 200, said
        server.flush()
        computed = server.ask_all(talks)
    assert computed[0].cached == 0
    ends = [len(talk) - 3 for talk in talks]  # of the answer its last token was never fed to the model
    for answers in (again, stored, restarted):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == ends
    assert all(answer.tiers["storage"] for answer in restarted)


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
