# SPDX-License-Identifier: Apache-2.0
"""Helps to show a hole in a storage backend: damages what it has stored, and says what it gives back then."""

import contextlib
import dataclasses
import hashlib
import json
import os

from . import cases, content, larder_backend, settings, world

PAGES = 6


@dataclasses.dataclass(frozen=True)
class Given:
    """How many pages came back to the device, and whether all of their bytes are the model's."""

    pages: int
    is_right: bool


NOTHING = Given(0, True)
ALL = Given(PAGES, True)
ALL_WRONG = Given(PAGES, False)


def stock(folder, **config):
    """Describes SGLang's `file` backend with its store in `folder`."""
    return settings.file_backend(folder / "stock", **config)


def ours(folder, **config):
    """Describes Larder's backend with its store in `folder`; small, so that its files can be searched."""
    return larder_backend.describe(folder / "ours", **({"max_size": "64M"} | config))


def prompt(w, pages=PAGES):
    """Returns the prompt of all tests here."""
    return cases.tokens_of(pages, w.page_size)


def look(w, tokens):
    """Fetches `tokens`, loads them, and compares the device's bytes with those that the model of `w` computes."""
    w.prefetch(tokens)
    pages = w.load_back(tokens)
    try:
        w.check(tokens)
    except world.RigError as error:
        if "wrong bytes" not in str(error):
            raise
        return Given(pages, False)
    return Given(pages, True)


def fill(backend, pages=PAGES, **how):
    """Stores the prompt with a World of its own, and shows that it is restored as long as nothing changes."""
    with world.World(backend, **how) as w:
        tokens = prompt(w, pages)
        w.insert(tokens)
        w.flush()
        cases.expect(look(w, tokens), Given(pages, True), "what an unchanged server gets back")


def look_again(backend, pages=PAGES, **how):
    """Returns what a new World with other settings gets back of the prompt."""
    with world.World(backend, **how) as w:
        return look(w, prompt(w, pages))


# -- damage -------------------------------------------------------------------------------------------------------


def needle(page, pool=0, pages=PAGES, **how):
    """Returns bytes that are in page `page` of the prompt, and nowhere else: the first row of a pool's memory."""
    with world.World(**how) as w:
        part = w.device.parts[pool]
        digest = w.content.chain(prompt(w, pages), None, None)[page]
        rows = w.page_size // part.divisor
        return bytes(w.content.page_bytes(digest, part, 0, rows)[0].numpy())


def parts_of(**how):
    """Returns the names of the memories of a model, in the order that `needle` counts them."""
    with world.World(**how) as w:
        return [part.name for part in w.device.parts]


def find(folder, wanted):
    """Returns (path, offset) of the one place below `folder` where the bytes `wanted` are stored."""
    places = []
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        data = path.read_bytes()
        at = data.find(wanted)
        while at >= 0:
            places.append((path, at))
            at = data.find(wanted, at + 1)
    if len(places) != 1:
        raise world.RigError(f"rig: {len(places)} places in {folder} have the bytes of the page, expected 1")
    return places[0]


def flip_a_bit(folder, wanted):
    """Flips one bit of the page that holds `wanted`."""
    path, at = find(folder, wanted)
    with open(path, "r+b") as file:
        file.seek(at + 1)
        byte = file.read(1)[0]
        file.seek(at + 1)
        file.write(bytes([byte ^ 4]))


def truncate(folder, wanted):
    """Cuts the file that holds `wanted` off in the middle of these bytes."""
    path, at = find(folder, wanted)
    os.truncate(path, at + len(wanted) // 2)


# -- models ---------------------------------------------------------------------------------------------------------


def model_folder(path, seed):
    """Makes a folder with config.json and one file of weights; folders of two seeds differ in the weights alone."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["RigForCausalLM"], "num_hidden_layers": 4}))
    weights = hashlib.shake_128(f"weights {seed}".encode()).digest(4096)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2048], "data_offsets": [0, len(weights)]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return path


def update_weights(w, version, seed):
    """The scheduler's part of an update of the weights at run time: another version, another model, a flush.

    The steps are those of SGLang's Scheduler.record_weight_version_change and flush_cache_after_weight_update.
    """
    from sglang.srt.runtime_context import get_context, get_serving

    if version is not None and version != get_serving().weight_version:
        get_context().override("scheduler.weight_version", weight_version=version)
    w.content = content.Content((seed, str(w.settings.dtype)), w.settings.tp_rank, w.page_size)
    w.flush()


@contextlib.contextmanager
def away(folder):
    """A folder that is not there for a while, as with a mount that went away."""
    hidden = folder.with_name(folder.name + ".away")
    folder.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(folder)
