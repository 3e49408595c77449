# SPDX-License-Identifier: Apache-2.0
"""Answers of the real server are the same from every tier: computed, from device, host and Larder, after a kill, from a
damaged store, and with another number of ranks."""

import pathlib

from sglang_server import PAGE, larder_files


def whole_pages(prompt):
    """Tokens of a prompt that can be cached: the last one is always computed."""
    return (len(prompt) - 1) // PAGE * PAGE


def damage(folder, step=4096):
    """Flips the high byte of a float in each `step` bytes of all files below `folder` that have that many."""
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob("*")):
        with path.open("r+b") as file:
            size = path.stat().st_size
            for at in range(step // 2 + 3, size, step):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 0xFF]))


def ask_all(server, prompts):
    """The answers to `prompts`, one after the other."""
    return [server.generate(prompt) for prompt in prompts]


def check_same(computed, others):
    """Fails unless the answers are those that were computed."""
    for number, (first, answer) in enumerate(zip(computed, others, strict=True)):
        assert answer.agrees_with(first), f"answer {number}: {answer} instead of {first}"


def test_full_attention(start, prompts, tmp_path):
    storage = larder_files(tmp_path / "store")
    with start(**storage) as server:
        computed = ask_all(server, prompts)
        assert computed[0].cached == 0
        assert len({tuple(answer.tokens) for answer in computed}) == len(prompts), "prompts have the same answer"
        again = ask_all(server, prompts)
        server.flush()
        stored = ask_all(server, prompts)
        server.kill()
    with start(**storage) as server:
        restarted = ask_all(server, prompts)
        server.flush()
        damage(tmp_path / "store")
        damaged = ask_all(server, prompts)
    for answers in (again, stored, restarted):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
    assert any(answer.tiers["host"] for answer in again)
    for answers in (stored, restarted):
        assert all(answer.tiers["storage"] for answer in answers)
    check_same(computed, damaged)
    assert all(answer.tiers["storage"] < answer.cached or answer.cached == 0 for answer in damaged)


def test_a_wrong_byte_is_another_answer(start, prompts, tmp_path):
    """What the other tests compare can fail: SGLang's own backend has no checksums."""
    with start(hicache_storage_backend="file", hicache_storage_backend_extra_config=f'{{"prefetch_threshold": {PAGE}, '
               f'"file_storage_path": "{tmp_path / "files"}"}}') as server:  # fmt: skip
        computed = ask_all(server, prompts)
        server.flush()
        damage(tmp_path / "files", step=256)
        damaged = ask_all(server, prompts)
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
        first = ask_all(server, prompts)
        talks = [prompt + answer.tokens + [5, 6] for prompt, answer in zip(prompts, first, strict=True)]
        again = ask_all(server, talks)
        server.flush()
        stored = ask_all(server, talks)
        server.kill()
    with start(lfm2, **options) as server:
        restarted = ask_all(server, talks)
        status, said = server.ask("/hicache/storage-backend/clear", method="POST")
        assert status == 200, said
        server.flush()
        computed = ask_all(server, talks)
    assert computed[0].cached == 0
    ends = [len(talk) - 3 for talk in talks]  # of the answer its last token was never fed to the model
    for answers in (again, stored, restarted):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == ends
    for answers in (stored, restarted):
        assert all(answer.tiers["storage"] for answer in answers)


def test_two_ranks_store_and_one_reads(start, prompts, tmp_path):
    """`tp_lcm_size`: pages in pieces, so that servers with other numbers of ranks find each other's."""
    storage = larder_files(tmp_path / "store", tp_lcm_size=2)
    with start(tp=2, hicache_mem_layout="page_head", **storage) as server:
        computed = ask_all(server, prompts)
        server.flush()
        stored = ask_all(server, prompts)
        server.kill()
    with start(tp=1, hicache_mem_layout="page_head", **storage) as server:
        alone = ask_all(server, prompts)
    for answers in (stored, alone):
        check_same(computed, answers)
        assert [answer.cached for answer in answers] == [whole_pages(prompt) for prompt in prompts]
        assert all(answer.tiers["storage"] for answer in answers)
