# SPDX-License-Identifier: Apache-2.0
"""The checks that a storage backend has to pass, for every model kind, layout and tree core.

A test file derives a class from `CacheCases` and says how its backend is made:

    class TestLarder(cases.CacheCases):
        def backend(self, name, folder):
            return settings.dynamic("larder_sglang", "LarderStorage", "larder", path=str(folder / name))
"""

import pytest
import torch

from . import pools, ranks, world

CORES = ("rust", "python")
COMBINATIONS = [(kind, layout, core) for kind, layout in pools.combinations() for core in CORES]
IDENTITIES = [(None, None), ("L1", None), (None, "S"), ("L1", "S"), ("S", None), (None, "L1")]


def tokens_of(pages, page_size, start=1000):
    """Returns a sequence of `pages` pages and a few tokens more."""
    return list(range(start, start + pages * page_size + 3))


def expect(actual, expected, what):
    """Fails with words when the two differ."""
    if actual != expected:
        raise world.RigError(f"rig: {what}: {actual}, expected {expected}")


def expect_restored(w, tokens, pages, *identity):
    """Fetches, loads and compares `tokens`; the store has to have their first `pages` pages and no more."""
    expect(w.prefetch(tokens, *identity), pages, "pages fetched from the store")
    expect(w.load_back(tokens, *identity), pages, "pages loaded to the device")
    w.check(tokens, *identity, pages=pages)


def round_trip(backend, **settings):
    """Puts two turns of a conversation, loses device and host, and gets them back: in this World and in another."""
    with world.World(backend, **settings) as w:
        tokens = tokens_of(7, w.page_size)
        w.insert(tokens[: 4 * w.page_size])
        w.insert(tokens)
        w.wait_backup()
        w.check(tokens, pages=7)
        w.flush()
        expect_restored(w, tokens, 7)
    with world.World(backend, **settings) as w:
        expect_restored(w, tokens, 7)


def restore_points(backend, **settings):
    """A store with prefixes of 3 and of 6 pages, asked for 5: models with a Mamba state get 3, all others 5."""
    with world.World(backend, **settings) as w:
        tokens = tokens_of(6, w.page_size)
        w.insert(tokens[: 3 * w.page_size])
        w.insert(tokens)
        w.flush()
        expect_restored(w, tokens[: 5 * w.page_size], 3 if w.device.has_mamba else 5)
        w.flush()
        expect_restored(w, tokens, 6)


def partial_hit(backend, **settings):
    """A store with 3 pages of a prompt of 7 gives these 3; what is put on top of them is kept as well."""
    with world.World(backend, **settings) as w:
        tokens = tokens_of(7, w.page_size)
        w.insert(tokens[: 3 * w.page_size])
        w.flush()
        expect_restored(w, tokens, 3)
        w.insert(tokens)
        w.flush()
        expect_restored(w, tokens, 7)


def branches(backend, **settings):
    """Two prompts with 3 pages in common are both restored, also when one is on the device already."""
    with world.World(backend, **settings) as w:
        size = w.page_size
        one = tokens_of(6, size)
        other = one[: 3 * size] + tokens_of(3, size, start=9000)
        w.insert(one)
        w.insert(other)
        w.flush()
        expect_restored(w, one, 6)
        w.restore(other)
        w.check(other, pages=6)
        w.check(one, pages=6)


def identities(backend, **settings):
    """The same tokens under another LoRA or another salt are other pages: neither found nor mixed up."""
    with world.World(backend, **settings) as w:
        tokens = tokens_of(4, w.page_size)
        for number, identity in enumerate(IDENTITIES):
            w.insert(tokens, *identity)
            w.flush()
            for unknown in IDENTITIES[number + 1 :]:
                expect(w.prefetch(tokens, *unknown), 0, f"pages of {unknown} that only {identity} has")
        for identity in IDENTITIES:
            w.flush()
            expect_restored(w, tokens, 4, *identity)


def detach_and_attach(backend, **settings):
    """A backend attached, detached and attached again at run time; nothing is fetched or kept in between."""
    with world.World(**settings) as w:
        tokens = tokens_of(4, w.page_size)
        w.attach(backend)
        w.insert(tokens)
        w.detach()
        w.flush()
        expect(w.prefetch(tokens), 0, "pages fetched without a backend")
        later = tokens_of(2, w.page_size, start=5000)
        w.insert(later)
        w.flush()
        w.attach(backend)
        expect_restored(w, tokens, 4)
        expect(w.prefetch(later), 0, "pages fetched that were put without a backend")


def clearing(backend, **settings):
    """After `clear` nothing is found, and what is put then is."""
    with world.World(backend, **settings) as w:
        tokens = tokens_of(4, w.page_size)
        w.insert(tokens)
        w.wait_backup()
        w.clear()
        w.flush()
        expect(w.prefetch(tokens), 0, "pages fetched from a cleared store")
        w.insert(tokens)
        w.flush()
        expect_restored(w, tokens, 4)


def foreign(backend, first, second):
    """What a server with the settings `first` stored is not found, or right, for one with the settings `second`."""
    with world.World(backend, **first) as w:
        tokens = tokens_of(4, w.page_size)
        w.insert(tokens)
        w.flush()
        expect_restored(w, tokens, 4)
    with world.World(backend, **second) as w:
        w.restore(tokens)


def ranks_round_trip(rank, count, group, backends, settings=None):
    """One rank of `count`, for each (kind, backend): its own part of every page, all ranks in step.

    Returns the numbers of pages restored.
    """
    world.quiet()
    restored = []
    for kind, backend in backends:
        place = {"tp_rank": rank, "tp_size": count, "group": group}
        with world.World(backend, kind=kind, **place, **(settings or {})) as w:
            tokens = tokens_of(6, w.page_size)
            w.insert(tokens[: 4 * w.page_size])
            w.insert(tokens)
            w.flush()
            expect_restored(w, tokens, 6)
            restored.append(w.check(tokens))
    return restored


def ranks_restore(rank, count, group, backends, settings=None):
    """One rank of `count`, which has stored nothing itself, for each (kind, backend) of `ranks_round_trip`.

    Returns the numbers of pages restored.
    """
    world.quiet()
    restored = []
    for kind, backend in backends:
        place = {"tp_rank": rank, "tp_size": count, "group": group}
        with world.World(backend, kind=kind, **place, **(settings or {})) as w:
            restored.append(w.restore(tokens_of(6, w.page_size)))
    return restored


class CacheCases:
    """The cases for one backend; `skip(kind, layout)` names what it can not keep, in words, or is None."""

    FORMATS_APART = True  # False: pages of another layout or type are given out, a hole in the backend
    RANK_KINDS = ("mha", "mamba", "mla", "mla_mamba")

    def backend(self, name, folder):
        """Returns the Backend whose store is called `name`; one name is one store. `folder` is empty at first."""
        raise NotImplementedError

    def skip(self, kind, layout):
        """Returns why the backend can not keep models of `kind` in `layout`, or None."""

    @pytest.fixture
    def store(self, tmp_path, request):
        """A Backend with a store of its own."""
        return self.backend(request.node.nodeid, tmp_path)

    def _skip(self, kind, layout):
        if reason := self.skip(kind, layout):
            pytest.skip(reason)

    @pytest.mark.parametrize("kind,layout,core", COMBINATIONS)
    def test_round_trip(self, store, kind, layout, core):
        self._skip(kind, layout)
        round_trip(store, kind=kind, layout=layout, core=core)

    @pytest.mark.parametrize("case", [restore_points, partial_hit, branches, clearing], ids=lambda case: case.__name__)
    @pytest.mark.parametrize("kind", pools.KINDS)
    def test_case(self, store, case, kind):
        self._skip(kind, "page_first")
        case(store, kind=kind)

    @pytest.mark.parametrize("kind", ["mha", "mamba_swa"])
    @pytest.mark.parametrize("core", CORES)
    def test_identities(self, store, kind, core):
        identities(store, kind=kind, core=core)

    @pytest.mark.parametrize("kind", ["mha", "mamba", "dsa", "mha_draft"])
    def test_detach_and_attach(self, store, kind):
        detach_and_attach(store, kind=kind)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
    @pytest.mark.parametrize("page_size", [16, 64])
    def test_types_and_page_sizes(self, store, dtype, page_size):
        round_trip(store, kind="swa", dtype=dtype, page_size=page_size)

    @pytest.mark.parametrize("kind", ["mha", "mamba_swa"])
    def test_more_pages_than_a_batch(self, store, kind):
        with world.World(store, kind=kind, pages=320) as w:
            tokens = tokens_of(300, w.page_size)
            w.insert(tokens)
            w.flush()
            expect_restored(w, tokens, 300)

    @pytest.mark.parametrize(
        "first,second", [("page_first", "page_first_direct"), ("page_first_direct", "layer_first")]
    )
    def test_another_layout_is_not_mixed_up(self, store, first, second):
        """A backend may convert the pages or miss them."""
        if not self.FORMATS_APART:
            pytest.skip("the backend mixes up layouts")
        foreign(store, {"layout": first}, {"layout": second})

    @pytest.mark.parametrize(
        "first,second", [(torch.bfloat16, torch.float16), (torch.float8_e4m3fn, torch.float8_e5m2)], ids=str
    )
    def test_another_type_is_not_mixed_up(self, store, first, second):
        if not self.FORMATS_APART:
            pytest.skip("the backend mixes up types")
        foreign(store, {"dtype": first}, {"dtype": second})
        with world.World(store, dtype=second) as w:
            expect(w.prefetch(tokens_of(4, w.page_size)), 0, "pages of another type")

    @pytest.mark.parametrize("count", [2, 4])
    def test_ranks(self, tmp_path, count):
        backends = [(kind, self.backend(f"{kind}-{count}", tmp_path)) for kind in self.RANK_KINDS]
        restored = ranks.run(count, ranks_round_trip, backends)
        expect(restored, [[6] * len(backends)] * count, "pages restored per rank and kind")
