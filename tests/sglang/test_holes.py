# SPDX-License-Identifier: Apache-2.0
"""Holes of storage backends: what SGLang's own `file` backend gives back after a change or damage, and what Larder.

Each test shows both, in two assertions.  The ones about `file` record what SGLang 0.5.23 does; should one of them
fail with a later SGLang, a hole has been closed there.
"""

import pytest
import torch
from rig import cases, content, faults, holes, larder_backend, world
from rig.holes import ALL, ALL_WRONG, NOTHING, Given
from rig.moody import Moody, compile_library
from sglang.srt.runtime_context import get_context

LAYOUTS = [("page_first", "page_first_direct"), ("page_first_direct", "page_first"), ("layer_first", "page_first")]
TYPES = [
    (torch.bfloat16, torch.float16),
    (torch.float8_e4m3fn, torch.float8_e5m2),
    (torch.bfloat16, torch.float8_e4m3fn),
]
OWN_FINGERPRINT = {"weights_fingerprint": None}  # made of the model's files, not given by the operator


def changed(backend, first, second, pages=holes.PAGES):
    """Stores with the settings `first`; returns what a server with the settings `second` gets back."""
    holes.fill(backend, pages, **first)
    return holes.look_again(backend, pages, **second)


# -- another meaning of the same bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first,second", LAYOUTS)
def test_another_layout_of_the_host_memory(tmp_path, first, second):
    """`file` keys pages by their tokens alone: heads and layers come back in the wrong order."""
    assert changed(holes.stock(tmp_path), {"layout": first}, {"layout": second}) == ALL_WRONG
    assert changed(holes.ours(tmp_path), {"layout": first}, {"layout": second}) == NOTHING


def test_a_change_of_the_layout_that_leaves_the_bytes_alone(tmp_path):
    """From page_first_direct to layer_first a flat page stays the same: `file` is right there, and Larder misses."""
    first, second = {"layout": "page_first_direct"}, {"layout": "layer_first"}
    assert changed(holes.stock(tmp_path), first, second) == ALL
    assert changed(holes.ours(tmp_path), first, second) == NOTHING


@pytest.mark.parametrize("first,second", TYPES, ids=str)
def test_another_type_of_the_cache(tmp_path, first, second):
    """`file` reads the bytes as numbers of the other type; where pages get smaller, the first half of a file."""
    assert changed(holes.stock(tmp_path), {"dtype": first}, {"dtype": second}) == ALL_WRONG
    assert changed(holes.ours(tmp_path), {"dtype": first}, {"dtype": second}) == NOTHING


def test_a_type_with_larger_pages(tmp_path):
    """`file` finds its files too short: an exception in the storage thread, which SGLang takes as a miss."""
    first, second = {"dtype": torch.float8_e5m2}, {"dtype": torch.bfloat16}
    assert changed(holes.stock(tmp_path), first, second) == NOTHING
    assert changed(holes.ours(tmp_path), first, second) == NOTHING


def test_the_store_of_another_model_under_the_same_name(tmp_path):
    """A model with one layer more (a packed draft) left its pages there: `file` gives out their first layers."""
    first, second = {"kind": "mha_mtp", "seed": 1}, {"kind": "mha", "seed": 2}
    assert changed(holes.stock(tmp_path), first, second) == ALL_WRONG
    backend = holes.ours(tmp_path)
    assert changed(backend, first, second) == NOTHING
    holes.fill(backend, **second)
    assert holes.look_again(backend, **first) == ALL


def test_the_store_of_another_model_under_another_name(tmp_path):
    """Here `file` is right, too: the served name is part of its file names.  Both models keep their pages."""
    first, second = {"model_name": "one", "seed": 1}, {"model_name": "other", "seed": 2}
    for backend in (holes.stock(tmp_path), holes.ours(tmp_path)):
        assert changed(backend, first, second) == NOTHING
        holes.fill(backend, **second)
        assert holes.look_again(backend, **first) == ALL


def test_a_directory_that_is_not_a_store_of_larder(tmp_path):
    """`file` writes into any directory; Larder refuses one with foreign files when it is attached, and leaves them."""
    holes.fill(holes.stock(tmp_path))
    before = sorted(path.name for path in (tmp_path / "stock").iterdir())
    with world.World() as w, pytest.raises(world.RigError, match="no file of a Larder store"):
        w.attach(larder_backend.describe(tmp_path / "stock"))
    assert sorted(path.name for path in (tmp_path / "stock").iterdir()) == before
    holes.fill(holes.ours(tmp_path))
    foreign = holes.stock(tmp_path, file_storage_path=str(tmp_path / "ours"))
    assert holes.look_again(foreign) == NOTHING
    assert holes.look_again(holes.ours(tmp_path)) == ALL


def test_other_scales_in_the_same_file(tmp_path):
    """The server multiplies 8-bit numbers of the cache with the scales of a file: `file` gives the same bytes, which
    are other numbers then. (The seed stands for the scales: the device would hold other bytes.)"""
    path = tmp_path / "scales.json"
    scaled = {"dtype": torch.float8_e4m3fn, "server_args": {"quantization_param_path": str(path)}}
    for backend, found in ((holes.stock(tmp_path), ALL_WRONG), (holes.ours(tmp_path), NOTHING)):
        path.write_text('{"kv_cache": {"scaling_factor": {"0": {"0": 1.0}}}}')
        holes.fill(backend, seed=1, **scaled)
        path.write_text('{"kv_cache": {"scaling_factor": {"0": {"0": 2.0}}}}')
        assert holes.look_again(backend, seed=2, **scaled) == found


# -- other weights -----------------------------------------------------------------------------------------------------


def with_model(path, seed):
    """Returns the settings of a World that serves the model in the folder `path`."""
    return {"seed": seed, "server_args": {"model_path": str(path)}}


def test_other_weights_in_the_same_folder(tmp_path):
    """A fine-tune that replaces the model's files, shapes and sizes alike: Larder sees it by samples of the weights."""
    path = tmp_path / "model"
    holes.model_folder(path, seed=1)
    backends = [holes.stock(tmp_path), holes.ours(tmp_path, **OWN_FINGERPRINT)]
    for backend in backends:
        holes.fill(backend, **with_model(path, 1))
    path.rename(tmp_path / "before")
    holes.model_folder(path, seed=2)
    assert holes.look_again(backends[0], **with_model(path, 2)) == ALL_WRONG
    assert holes.look_again(backends[1], **with_model(path, 2)) == NOTHING
    path.rename(tmp_path / "after")
    (tmp_path / "before").rename(path)
    assert holes.look_again(backends[1], **with_model(path, 1)) == ALL


def test_another_folder_under_the_same_served_name(tmp_path):
    """Two models that are served under one name have one store in `file`, and two spaces of a store in Larder."""
    one, other = holes.model_folder(tmp_path / "one", seed=1), holes.model_folder(tmp_path / "other", seed=2)
    assert changed(holes.stock(tmp_path), with_model(one, 1), with_model(other, 2)) == ALL_WRONG
    backend = holes.ours(tmp_path, **OWN_FINGERPRINT)
    assert changed(backend, with_model(one, 1), with_model(other, 2)) == NOTHING
    assert holes.look_again(backend, **with_model(one, 1)) == ALL


def after_an_update(backend, path, settled):
    """What a server gets back after an update to version v2, and after one back to the version before.

    In between the server stores the prompt with the new weights.
    """
    with world.World(backend, **with_model(path, 1)) as w:
        tokens = holes.prompt(w)
        w.insert(tokens)
        if settled:
            w.wait_backup()
        holes.update_weights(w, "v2", seed=2)
        new = holes.look(w, tokens)
        w.insert(tokens)
        w.wait_backup()
        holes.update_weights(w, "default", seed=1)
        return new, holes.look(w, tokens)


def test_weights_updated_at_run_time(tmp_path):
    """`file` gives out the state of the weights before; Larder only when the version of these weights is back."""
    path = holes.model_folder(tmp_path / "model", seed=1)
    assert after_an_update(holes.stock(tmp_path), path, settled=True) == (ALL_WRONG, ALL)
    assert after_an_update(holes.ours(tmp_path, **OWN_FINGERPRINT), path, settled=True) == (NOTHING, ALL)


def test_weights_updated_while_a_backup_is_on_its_way(tmp_path):
    """SGLang sets the new version first and flushes then: a backup in between carries the old weights' state."""
    path = holes.model_folder(tmp_path / "model", seed=1)
    assert after_an_update(holes.stock(tmp_path), path, settled=False) == (ALL_WRONG, ALL)
    new, _ = after_an_update(holes.ours(tmp_path, **OWN_FINGERPRINT), path, settled=False)
    assert new == NOTHING


def test_an_update_that_names_no_version_needs_a_clear(tmp_path):
    """Neither backend can notice it.  After a clear of the storage nothing of before is left in either."""
    path = holes.model_folder(tmp_path / "model", seed=1)
    for backend in (holes.stock(tmp_path), holes.ours(tmp_path, **OWN_FINGERPRINT)):
        with world.World(backend, **with_model(path, 1)) as w:
            tokens = holes.prompt(w)
            w.insert(tokens)
            w.wait_backup()
            holes.update_weights(w, None, seed=2)
            w.clear()
            assert holes.look(w, tokens) == NOTHING


def new_weights(w, version, seed):
    """An update that SGLang's cache is not flushed after: what it holds is of the weights before."""
    get_context().override("scheduler.weight_version", weight_version=version)
    w.content = content.Content((seed, str(w.settings.dtype)), w.settings.tp_rank, w.page_size)


def test_weights_updated_before_the_attach_and_not_flushed(tmp_path):
    """SGLang backs up on a hit what it computed before the attach: state of the old weights, under the new version."""
    selective = {"server_args": {"hicache_write_policy": "write_through_selective"}}
    ours = holes.ours(tmp_path)
    with world.World(**selective) as w:
        tokens = holes.prompt(w)
        w.insert(tokens)
        new_weights(w, "v2", seed=2)
        w.attach(ours)
        w.insert(tokens)
        w.wait_backup()
        w.flush()
        assert holes.look(w, tokens) == NOTHING
        w.insert(tokens)
        w.insert(tokens)
        w.flush()
        assert holes.look(w, tokens) == ALL  # the flush has settled it


@pytest.mark.parametrize("version", ["v2", "default"])
def test_weights_updated_and_not_flushed_around_a_detach(tmp_path, version):
    """The next attach knows it still, also if the version is the first one again."""
    selective = {"server_args": {"hicache_write_policy": "write_through_selective"}}
    ours = holes.ours(tmp_path)
    with world.World(ours, **selective) as w:
        tokens = holes.prompt(w)
        new_weights(w, "v1.5", seed=3)
        w.insert(tokens)  # by v1.5
        assert w.store.batch_exists(["0" * 64]) == 0  # the guard has seen it
        new_weights(w, version, seed=2)
        w.detach()
        w.attach(ours)
        w.insert(tokens)
        w.wait_backup()
        w.flush()
        assert holes.look(w, tokens) == NOTHING
        w.insert(tokens)
        w.insert(tokens)
        w.detach()
        w.attach(ours)
        w.flush()
        assert holes.look(w, tokens) == ALL


def test_weights_updated_and_flushed_before_a_detach(tmp_path):
    """The next attach stores at once, although the version is not the one of the start."""
    ours = holes.ours(tmp_path)
    with world.World(ours) as w:
        tokens = holes.prompt(w)
        holes.update_weights(w, "v2", seed=2)
        w.detach()
        w.attach(ours)
        w.insert(tokens)
        w.flush()
        assert holes.look(w, tokens) == ALL


# -- damage ------------------------------------------------------------------------------------------------------------


def after_damage(backend, folder, act, page, pool=0, **how):
    """Stores the prompt, damages one page on disk, and starts anew.

    Returns what is given back at once, at the next try, and after the prompt was computed and stored again; and how
    many corrupt pages Larder has counted.
    """
    holes.fill(backend, **how)
    act(folder, holes.needle(page, pool, **how))
    with world.World(backend, **how) as w:
        tokens = holes.prompt(w)
        given = []
        for _ in range(2):
            given.append(holes.look(w, tokens))
            w.flush()
        corrupt = w.store.troubles().get("get: corrupt") if hasattr(w.store, "troubles") else None
        w.insert(tokens)
        w.flush()
        return [*given, holes.look(w, tokens), corrupt]


@pytest.mark.parametrize("page", [0, 3, 5])
def test_a_flipped_bit(tmp_path, page):
    """`file` gives it to the model, now and for ever.  Larder serves the pages before, drops this one, and heals."""
    stock = after_damage(holes.stock(tmp_path), tmp_path / "stock", holes.flip_a_bit, page)
    assert stock == [ALL_WRONG, ALL_WRONG, ALL_WRONG, None]
    ours = after_damage(holes.ours(tmp_path), tmp_path / "ours", holes.flip_a_bit, page)
    assert ours == [Given(page, True), Given(page, True), ALL, 1]


def test_a_truncated_file(tmp_path):
    """`file` fails for the whole prompt, and never writes the page again.  Larder misses what is lost, and heals."""
    stock = after_damage(holes.stock(tmp_path), tmp_path / "stock", holes.truncate, 3)
    assert stock == [NOTHING, NOTHING, NOTHING, None]
    first, second, healed, _ = after_damage(holes.ours(tmp_path), tmp_path / "ours", holes.truncate, 3)
    assert (first.is_right, second.is_right, healed) == (True, True, ALL)
    assert first == second and first.pages <= 3


@pytest.mark.parametrize("page", [4, 5])
def test_a_damaged_page_of_a_sliding_window(tmp_path, page):
    """The window needs its last two pages.  `file` gives a wrong one; Larder nothing, then what is whole, then all."""
    how = {"kind": "swa"}
    pool = holes.parts_of(**how).index("swa.k")
    stock = after_damage(holes.stock(tmp_path), tmp_path / "stock", holes.flip_a_bit, page, pool, **how)
    assert stock == [ALL_WRONG, ALL_WRONG, ALL_WRONG, None]
    ours = after_damage(holes.ours(tmp_path), tmp_path / "ours", holes.flip_a_bit, page, pool, **how)
    assert ours == [NOTHING, Given(page, True), ALL, 1]


@pytest.mark.parametrize("page", [4, 5])
def test_a_missing_page_of_a_sliding_window(tmp_path, page):
    """A page that is not there when the query is made: both offer the longest prefix whose window is whole."""
    how = {"kind": "swa"}
    pool = holes.parts_of(**how).index("swa.k")
    holes.fill(holes.stock(tmp_path), **how)
    holes.find(tmp_path / "stock", holes.needle(page, pool, **how))[0].unlink()
    assert holes.look_again(holes.stock(tmp_path), **how) == Given(page, True)
    moody = Moody(compile_library(tmp_path), tmp_path)
    with world.World(moody.backend(retry_bytes=0), **how) as w:
        tokens = holes.prompt(w)
        # SGLang backs up four pages and then two, the window's before the others: page 4 of the window is the ninth.
        moody["pass_groups"], moody["fail_groups"] = 4 + page, 1
        w.insert(tokens)
        w.flush()
        assert moody["objects"] == 2 * holes.PAGES - 1
        assert holes.look(w, tokens) == Given(page, True)


def test_a_damaged_state_of_a_mamba_model(tmp_path):
    """There is one state, at the prompt's end: without it no prefix can be resumed."""
    how = {"kind": "mamba"}
    pool = holes.parts_of(**how).index("mamba.temporal")
    stock = after_damage(holes.stock(tmp_path), tmp_path / "stock", holes.flip_a_bit, 5, pool, **how)
    assert stock == [ALL_WRONG, ALL_WRONG, ALL_WRONG, None]
    ours = after_damage(holes.ours(tmp_path), tmp_path / "ours", holes.flip_a_bit, 5, pool, **how)
    assert ours == [NOTHING, NOTHING, ALL, 1]


# -- a backup that failed ----------------------------------------------------------------------------------------------


def test_a_backup_that_fails_once_with_file(tmp_path):
    """The directory is away for one backup.  SGLang does not offer the pages again, however often they are used."""
    with world.World(holes.stock(tmp_path)) as w:
        tokens = holes.prompt(w)
        with holes.away(tmp_path / "stock"):
            w.insert(tokens)
            w.wait_backup()
        for _ in range(3):
            w.insert(tokens)
            w.wait_backup()
        w.flush()
        assert list((tmp_path / "stock").iterdir()) == []
        assert holes.look(w, tokens) == NOTHING


@pytest.mark.parametrize("kind,lost", [("mha", 1), ("mha", 6), ("swa", 2), ("mamba", 1)])
def test_a_backup_that_fails_once_with_larder(tmp_path, kind, lost):
    """Some pages of a node are refused once: Larder keeps them and writes them again by itself; all is restored."""
    moody = Moody(compile_library(tmp_path), tmp_path)
    with world.World(moody.backend(), kind=kind) as w:
        tokens = holes.prompt(w)
        moody["pass_groups"], moody["fail_groups"] = 6 - max(lost, 4), lost
        w.insert(tokens)
        w.wait_backup()
        assert moody["fail_groups"] == 0
        assert faults.stats(w)["retry"]["taken"] == lost
        faults.wait_retries(w)
        w.flush()
        assert holes.look(w, tokens) == ALL


def test_a_backup_that_failed_for_good_is_no_hit(tmp_path):
    """Without memory for another try the page is lost: the pages before it are restored, none behind it."""
    moody = Moody(compile_library(tmp_path), tmp_path)
    with world.World(moody.backend(retry_bytes=0)) as w:
        tokens = holes.prompt(w)
        moody["pass_groups"], moody["fail_groups"] = 2, 1
        w.insert(tokens)
        w.flush()
        cases.expect(holes.look(w, tokens), Given(2, True), "what is restored")
        w.flush()
        w.insert(tokens)  # the request has computed it again
        w.flush()
        assert holes.look(w, tokens) == ALL
