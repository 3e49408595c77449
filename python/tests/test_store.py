# SPDX-License-Identifier: Apache-2.0
"""larder.Store and larder.Space on the real library."""

import array
import ctypes
import hashlib
import subprocess
import sys
import threading
import time

import pytest

import larder

KV = larder.Pool("kv", 64, "kv layout")
STATE = larder.Pool("mamba", 32, "state layout", larder.HitPolicy.TRAILING_PAGES, 1)
MARKER = larder.Pool("marker", 0, "none")


def key(text):
    return hashlib.sha256(str(text).encode()).hexdigest()


@pytest.fixture
def store():
    with larder.Store("memory") as opened:
        yield opened


def space_of(store, pools=(KV,), **options):
    return store.space(**{"page_size": 16, "identity": "model", "pools": list(pools), **options})


def filled(size, seed=0):
    return bytearray(hashlib.shake_128(str(seed).encode()).digest(size))


def address_of(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def test_the_library_says_what_it_is():
    assert larder.__version__
    assert {"file", "memory"} <= set(larder.backends())
    assert "directory" in larder.option_help("file") and "timeout_seconds" in larder.option_help()


def test_page_keys_are_the_chain_that_sglang_has():
    tokens = list(range(1, 129))
    keys = larder.page_keys(tokens, 64)
    assert keys[0].hex().startswith("0c8f4629") and keys[1].hex().startswith("e9c2a460")
    assert larder.page_keys(array.array("I", tokens), 64) == keys
    assert larder.page_keys(array.array("q", tokens), 64) == keys
    assert larder.page_keys(tokens[64:], 64, keys[0]) == keys[1:] == larder.page_keys(tokens[64:], 64, keys[0].hex())
    assert larder.page_keys(tokens[:63], 64) == []


@pytest.mark.parametrize(
    "make, code, text",
    [
        (lambda: larder.Store("nothing"), "INVALID_ARGUMENT", "memory"),
        (lambda: larder.Store("memory", {"what": 1}), "INVALID_ARGUMENT", "what"),
        (lambda: larder.Store("memory", "{"), "INVALID_ARGUMENT", "JSON|configuration"),
    ],
)
def test_a_store_that_cannot_be_opened_says_why(make, code, text):
    with pytest.raises(larder.Error, match=text) as caught:
        make()
    assert caught.value.code is larder.Code[code] and caught.value.message


def test_pages_come_back_through_a_layout(store):
    space = space_of(store)
    buffer = filled(64 * 10)
    layout = larder.PageLayout([(address_of(buffer), 64, 40), (address_of(buffer) + 40, 64, 24)], 16, 160)
    assert (layout.segment_count, layout.page_bytes, layout.slots_per_page, layout.slots) == (2, 64, 16, 160)
    keys = [key(i) for i in range(10)]
    before = bytes(buffer)
    assert space.put(keys, [16 * i for i in range(10)], layout) == [larder.Code.OK] * 10
    buffer[:] = bytes(len(buffer))
    order = array.array("q", [16 * i for i in reversed(range(10))])
    assert space.get([bytes.fromhex(k) for k in keys[:9]] + [key("no")], order, layout) == [0] * 9 + [2]
    got = [bytes(buffer[64 * i : 64 * i + 64]) for i in range(10)]
    assert got[1:] == [before[64 * (9 - i) : 64 * (9 - i) + 64] for i in range(1, 10)]
    assert got[0] == bytes(64)


def test_pages_come_back_through_buffers_and_addresses(store):
    space = space_of(store, (KV, STATE, MARKER))
    data, state = filled(64), filled(32, 1)
    group = [larder.Page(key(1), state, "mamba"), larder.Page(key(1), None, "marker"), larder.Page(key(1), bytes(data))]
    assert space.put_pages(group) == [0, 0, 0]
    head, tail, small = bytearray(24), bytearray(40), bytearray(32)
    pages = [
        larder.Page(key(1), [head, (address_of(tail), 40)]),
        larder.Page(bytes.fromhex(key(1)), small, "mamba"),
        larder.Page(key(1), None, "marker"),
        larder.Page(key(2), bytearray(64)),
    ]
    assert space.get_pages(pages) == [0, 0, 0, larder.Code.NOT_FOUND]
    assert bytes(head + tail) == bytes(data) and small == state


@pytest.mark.parametrize(
    "call",
    [
        lambda space, layout: space.get([key(1)], [0, 16], layout),
        lambda space, layout: space.get(["zz" * 32], [0], layout),
        lambda space, layout: space.get([key(1)[:62]], [0], layout),
        lambda space, layout: space.get([b"short"], [0], layout),
        lambda space, layout: space.get(b"x" * 33, [0], layout),
        lambda space, layout: space.get([key(1)], [1], layout),
        lambda space, layout: space.get([key(1)], [160], layout),
        lambda space, layout: space.get([key(1)], [-16], layout),
        lambda space, layout: space.get([key(1)], array.array("q", [-16]), layout),
        lambda space, layout: space.get([key(1)], [(1 << 63) - 16], layout),
        lambda space, layout: space.get([key(1)], array.array("h", [0]), layout),
        lambda space, layout: larder.page_keys([1 << 32], 1),
        lambda space, layout: larder.page_keys([1], 0),
        lambda space, layout: larder.page_keys(array.array("f", [1.5]), 1),
        lambda space, layout: larder.page_keys(array.array("i", [-1]), 1),
        lambda space, layout: larder.page_keys((ctypes.c_uint32.__ctype_be__ * 2)(1, 2), 1),
        lambda space, layout: space.put([key(1)], [0], layout, parent="no key"),
        lambda space, layout: space.put_pages([larder.Page(key(1), bytes(63))]),
        lambda space, layout: space.put_pages([larder.Page(key(1), "x" * 64)]),
        lambda space, layout: space.put_pages([larder.Page(key(1), [[bytes(64)]])]),
        lambda space, layout: space.put_pages([larder.Page(key(1), [(1, 2, 3)])]),
        lambda space, layout: larder.PageLayout([(1, 0, 0)], 16, 16),
        lambda space, layout: larder.PageLayout([], 0, 16),
        lambda space, layout: space.exists([key(1)], [larder.Need("kv", larder.HitPolicy.TRAILING_PAGES, 0)]),
    ],
)
def test_wrong_arguments_are_errors(store, call):
    buffer = bytearray(640)
    layout = larder.PageLayout([(address_of(buffer), 64, 64)], 16, 160)
    with pytest.raises(larder.Error) as caught:
        call(space_of(store), layout)
    assert caught.value.code is larder.Code.INVALID_ARGUMENT


def test_a_wrong_page_behind_others_is_an_error_that_names_it(store):
    space = space_of(store)
    pages = [larder.Page(key(1), bytes(64)), larder.Page(key(2), bytes(63)), larder.Page(key(3), bytes(64))]
    with pytest.raises(larder.Error, match="page 1: the segments have 63 bytes") as caught:
        space.put_pages(pages)
    assert caught.value.code is larder.Code.INVALID_ARGUMENT
    assert space.exists([key(1)]).best == 0


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda space: space.get_pages([larder.Page(key(1), bytes(64))]), BufferError),
        (lambda space: space.get_pages([larder.Page(key(1), bytearray(64), "nothing")]), KeyError),
        (lambda space: space.exists(None), TypeError),
        (lambda space: space.exists([3]), larder.Error),
        (lambda space: larder.page_keys(["a"], 1), TypeError),
        (lambda space: larder.Store("memory", log="a file's name"), TypeError),
        (lambda space: larder.Store("memory", {"max_size": object()}), TypeError),
    ],
)
def test_wrong_types_are_errors(store, call, error):
    with pytest.raises(error):
        call(space_of(store))


def test_exists_says_which_lengths_and_which_pages(store):
    space = space_of(store, (KV, STATE))
    keys = [key(i) for i in range(70)]
    space.put_pages([larder.Page(k, filled(64)) for k in keys[:68]])
    space.put_pages([larder.Page(keys[i], filled(32), "mamba") for i in (2, 65, 69)])
    found = space.exists(keys, present=True)
    assert found.restorable == [3, 66] and found.best == 66 and found.restorable_mask == 1 << 2 | 1 << 65
    assert found.present["kv"] == [True] * 68 + [False] * 2
    assert [i for i, there in enumerate(found.present["mamba"]) if there] == [2, 65, 69]
    assert space.exists(keys, [larder.Need("kv")]).best == 68
    window = larder.Need("mamba", larder.HitPolicy.TRAILING_PAGES, 2)
    assert space.exists(keys, [window]).restorable == []
    assert space.exists(b"".join(bytes.fromhex(k) for k in keys)).best == 66
    assert space.exists([]).restorable == [] and space.exists([]).best == 0
    alone = space.exists(keys, [], present=True)  # of no pool: the anchor counts all the same
    assert alone.best == 68 and alone.present == {}


@pytest.mark.parametrize(
    "other, is_found",
    [
        ({}, True),
        ({"identity": "other"}, False),
        ({"page_size": 32}, False),
        ({"adapter": "lora"}, False),
        ({"salt": "tenant"}, False),
        ({"tp": (1, 2)}, False),
        ({"pp": (1, 2)}, False),
        ({"cp": (1, 2)}, False),
        ({"pools": [larder.Pool("kv", 64, "another layout")]}, False),
        ({"pools": [larder.Pool("kv2", 64, "kv layout")]}, False),
        ({"pools": [KV, STATE]}, True),
    ],
)
def test_a_page_is_found_under_its_whole_identity_only(store, other, is_found):
    space_of(store).put_pages([larder.Page(key(1), filled(64))])
    anchor = other.get("pools", [KV])[0].name
    assert (space_of(store, **other).exists([key(1)], [larder.Need(anchor)]).best == 1) is is_found


def test_replicated_pools_are_one_for_all_ranks(store):
    shared = larder.Pool("kv", 64, "latent", replicated=True)
    space_of(store, (shared,), tp=(0, 2)).put_pages([larder.Page(key(1), filled(64))])
    assert space_of(store, (shared,), tp=(1, 2)).exists([key(1)]).best == 1


def test_clear_of_a_space_leaves_the_others(store):
    one, other = space_of(store), space_of(store, identity="other")
    for space in (one, other):
        space.put_pages([larder.Page(key(1), filled(64))])
    one.clear()
    assert one.exists([key(1)]).best == 0 and other.exists([key(1)]).best == 1
    assert len(one.digest()) == 32 and one.digest() != other.digest()


def test_closed_handles_are_errors_and_closing_again_is_none(store):
    space = space_of(store)
    store.close()
    store.close()
    space.close()
    for call in (lambda: space.exists([key(1)]), store.stats, space.digest, lambda: space_of(store)):
        with pytest.raises(larder.Error) as caught:
            call()
        assert caught.value.code is larder.Code.INVALID_ARGUMENT


def test_statistics_and_metrics_are_text_that_parses(store):
    space_of(store).put_pages([larder.Page(key(1), filled(64))])
    assert isinstance(store.stats(), dict) and store.stats()
    assert isinstance(store.metrics(), str)


def test_a_file_store_keeps_pages(tmp_path):
    data = filled(64)
    for round_number in range(2):
        with larder.Store("file", {"directory": str(tmp_path / "store"), "max_size": "1G"}) as store:
            with space_of(store) as space:
                if round_number == 0:
                    assert space.put_pages([larder.Page(key(1), data)], durable=True) == [0]
                into = bytearray(64)
                assert space.get_pages([larder.Page(key(1), into)]) == [0] and into == data


def test_memory_may_be_registered_later(tmp_path):
    data, into = bytearray(filled(64)), bytearray(64)
    with larder.Store("file", {"directory": str(tmp_path / "store"), "zero_copy": True}) as store:
        regions = [(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 64) for memory in (data, into)]
        try:
            store.add_memory(regions)
        except larder.Error as error:  # no io_uring here, or little locked memory
            assert error.code in (larder.Code.UNSUPPORTED, larder.Code.OVERLOADED)
        with space_of(store) as space:
            assert space.put_pages([larder.Page(key(1), data)]) == [0]
            assert space.get_pages([larder.Page(key(1), into)]) == [0] and into == data
    with pytest.raises(larder.Error):
        store.add_memory(regions)


def test_a_file_store_belongs_to_one(tmp_path):
    config = {"directory": str(tmp_path / "store")}
    with larder.Store("file", config):
        with pytest.raises(larder.Error) as caught:
            larder.Store("file", config)
        assert caught.value.code is larder.Code.CONFLICT


CHILD = """
import sys
import larder
pools = [larder.Pool("kv", 64, "latent", replicated=True), larder.Pool("mamba", 64, "state")]
store = larder.Store("file", {"directory": sys.argv[1], "share_directory": sys.argv[1] + ".share"})
space = store.space(page_size=16, identity="model", pools=pools, tp=(int(sys.argv[2]), 2))
data = bytes([int(sys.argv[2])]) * 64
for line in sys.stdin:
    what, key = line.split()
    if what == "put":
        answer = space.put_pages([larder.Page(key, data, "mamba"), larder.Page(key, data)])
    else:
        into = bytearray(64)
        answer = [*space.get_pages([larder.Page(key, into, what)]), into[0]]
    print(*map(int, answer), flush=True)
store.close()
"""


def test_ranks_are_processes_that_share_a_store(tmp_path):
    """What is the same on both is found by the other, what is a rank's own is not."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "store"), str(rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip

    def ask(rank, question):
        ranks[rank].stdin.write(question + "\n")
        ranks[rank].stdin.flush()
        return [int(word) for word in ranks[rank].stdout.readline().split()]

    try:
        for rank, other in ((0, 1), (1, 0)):
            assert ask(rank, f"put {key(rank)}") == [0, 0]
            assert ask(other, f"kv {key(rank)}") == [0, rank]
            assert ask(rank, f"mamba {key(rank)}") == [0, rank]
            assert ask(other, f"mamba {key(rank)}") == [larder.Code.NOT_FOUND, 0]
        for process in ranks:
            process.stdin.close()
        assert [process.wait(30) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_threads_share_a_space_while_it_is_closed():
    """Calls in flight end well, later ones are errors; nothing crashes."""
    store = larder.Store("memory")
    space = space_of(store)
    wrong, begun = [], threading.Barrier(5)

    def work(seed):
        begun.wait()
        for i in range(100000):
            page = larder.Page(key((seed, i % 50)), filled(64, (seed, i % 50)))
            try:
                space.put_pages([page])
                into = bytearray(64)
                if space.get_pages([larder.Page(page.key, into)]) != [0] or into != page.data:
                    wrong.append((seed, i))
            except larder.Error as error:
                if error.code is not larder.Code.INVALID_ARGUMENT:
                    wrong.append(error)
                return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.2)
    store.close()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_log_is_called(tmp_path):
    lines = []
    store = larder.Store("file", {"directory": tmp_path / "store"}, log=lambda *line: lines.append(line))
    space_of(store).put_pages([larder.Page(key(1), filled(64))])
    store.close()
    assert all(level in range(4) and isinstance(where, str) and isinstance(text, str) for level, where, text in lines)


def test_the_log_stays_with_the_open_store_when_another_cannot_be_opened(tmp_path):
    lines, others = [], []
    with larder.Store("memory", log=lambda *line: lines.append(line)):
        with pytest.raises(larder.Error):
            larder.Store("memory", {"what": 1}, log=lambda *line: others.append(line))
        larder.Store("file", {"directory": str(tmp_path / "store"), "max_size": "10%"}).close()
    assert [text for _, _, text in lines if "max_size is 10%" in text] and others == []


def test_hex_digits_of_either_case_and_nothing_else(store):
    digits = "0123456789abcdefABCDEF"
    text = (digits * 3)[:64]
    with space_of(store) as space:
        space.put_pages([larder.Page(bytes.fromhex(text), filled(64))])
        assert space.exists([text]).best == space.exists([text.upper()]).best == 1
        for place in range(64):
            for wrong in "/:@G`g\x00\x7f ":
                with pytest.raises(larder.Error, match=r"keys\[0\] is neither"):
                    space.exists([text[:place] + wrong + text[place + 1 :]])
        with pytest.raises(larder.Error, match=r"keys\[1\] is neither"):
            space.exists([text, "é" + text[1:]])


def test_answers_of_two_spaces_are_joined(store):
    """Pages in pieces: what both have. Answers to other questions are refused."""
    keys = [key(i) for i in range(70)]
    spaces = [space_of(store, (KV, STATE), tp=(rank, 2)) for rank in range(2)]
    for space, states in zip(spaces, ((2, 40, 66), (2, 50, 66))):
        space.put_pages([larder.Page(k, filled(64)) for k in keys[:68]])
        space.put_pages([larder.Page(keys[i], filled(32), "mamba") for i in states])
    one, other = (space.exists(keys, present=True) for space in spaces)
    assert (one & other).restorable == [3, 67] and (one & other).best == 67
    assert [i for i, there in enumerate((one & other).present["mamba"]) if there] == [2, 66]
    for question in (spaces[1].exists(keys[:69], present=True), spaces[1].exists(keys)):
        with pytest.raises(ValueError, match="different questions"):
            one & question


def test_leading_pages_are_those_of_the_anchor(store):
    keys = [key(i) for i in range(200)]
    with space_of(store, (KV, STATE)) as space:
        assert space.leading_pages(keys) == space.leading_pages([]) == 0
        space.put_pages([larder.Page(k, filled(64)) for k in keys[:130] + keys[131:]])
        assert space.leading_pages(keys) == 130  # whatever the states are
        assert space.leading_pages(keys[:100]) == 100
        assert space.exists(keys).best == 0


@pytest.mark.parametrize("text", ["identity", "adapter", "salt"])
def test_a_zero_character_is_an_error_and_no_end(store, text):
    with pytest.raises(larder.Error, match=f"{text} holds a zero character"):
        space_of(store, **{text: "a\0b"})
    with pytest.raises(larder.Error, match="layout of a pool holds a zero"):
        space_of(store, [larder.Pool("kv", 64, "a\0b")])


def test_a_close_that_is_wrong_leaves_the_store_to_be_closed(tmp_path):
    store = larder.Store("file", {"directory": str(tmp_path / "store")})
    with pytest.raises(larder.Error, match="timeout"):
        store.close(-1)
    store.close()
    larder.Store("file", {"directory": str(tmp_path / "store")}).close()


_FORK = """
import os, signal, sys, larder
store = larder.Store("memory")
space = store.space(page_size=16, identity="model", pools=[larder.Pool("kv", 64, "kv layout")])
child = os.fork()
if child == 0:
    signal.alarm(20)  # it hangs
    open_another = lambda: store.space(page_size=16, identity="model", pools=space.pools)
    for call in (store.stats, lambda: space.leading_pages([bytes(32)]), open_another):
        try:
            call()
            os._exit(1)
        except larder.Error as error:
            assert "fork" in str(error), error
    store.close()
    space.close()
    del space, store
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert space.leading_pages([bytes(32)]) == 0
"""


def test_a_child_of_fork_leaves_the_handles_of_its_parent_alone():
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=60)
