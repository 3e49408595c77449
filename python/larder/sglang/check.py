# SPDX-License-Identifier: Apache-2.0
"""`python -m larder.sglang check`: whether an extra config works, in seconds, without SGLang and without its model.

It reads the config with the code that LarderStorage reads it with, opens the store as the first rank of the server
would, but so that it evicts nothing, and moves a few pages under a namespace of its own, which it clears again.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import pwd
import sys
import time
import types
import uuid
from typing import Any, Optional, Sequence

import larder
from larder.sglang import opening
from larder.sglang.ranks import Ranks
from larder.sglang.settings import Settings, read_settings
from larder.sglang.weights import weights_fingerprint

_PAGES = 16
_PAGE_BYTES = 4 << 10  # a disk's block: where others decide what leaves, hardly anything does
_NEEDED = {"backend_name": None, "module_path": "larder_sglang", "class_name": "LarderStorage"}
# What SGLang demands of its own keys before it asks for the storage.
_TYPES: dict[str, tuple[Any, str]] = {
    "prefetch_threshold": (int, "a whole number"),
    "prefetch_timeout_base": ((int, float), "a number of seconds"),
    "prefetch_timeout_per_ki_token": ((int, float), "a number of seconds"),
    "hicache_storage_pass_prefix_keys": (bool, "true or false"),
}
_DESCRIPTION = """\
Says whether an extra config (--hicache-storage-backend-extra-config) works, before SGLang loads its model: reads it,
opens the store, writes, reads and compares pages, and removes them. Run it as SGLang's user, in SGLang's Python, and
before the server: without a share directory a store has one process. The directory is made if absent, and stays. Of a
file store no page is evicted for it."""
_EPILOG = """\
Exit codes: 0 it works, whatever the warnings say; 1 it does not, and the message says why; 2 wrong arguments, no such
file, no JSON; 130 interrupted.

  python -m larder.sglang check @/etc/sglang/larder.json --model-path /models/Qwen3-8B --tp-size 4"""


class DoesNotWork(Exception):
    """The text says what, and how to mend it."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m larder.sglang")
    commands = parser.add_subparsers(dest="command", metavar="check", required=True)
    check = commands.add_parser(
        "check", help="whether an extra config works, before SGLang loads its model", description=_DESCRIPTION,
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    check.add_argument("config", metavar="JSON|@FILE", help="as in SGLang's line; a file is JSON, TOML or YAML")
    check.add_argument("--model-path", metavar="PATH", help="SGLang's; makes the fingerprint of its weights")
    check.add_argument("--revision", metavar="NAME", help="SGLang's, of a model that is named as on a hub")
    for name, whose in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        check.add_argument(
            f"--{name}-size", metavar="N", type=_size, default=1, help=f"SGLang's number of {whose}-parallel ranks (1)"
        )
    arguments = parser.parse_args(words)
    try:
        extra = _read_extra_config(arguments.config)
    except (OSError, ValueError, ImportError) as error:
        check.error(str(error))
    try:
        _check(extra, arguments)
    except (DoesNotWork, ValueError, OSError, larder.Error) as error:
        print(f"does not work: {_with_hint(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print("it works")
    return 0


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _read_extra_config(given: str) -> dict[str, Any]:
    """As SGLang does it. Raises OSError, ValueError, ImportError."""
    if given.startswith("@"):
        path = given[1:]
        ending = os.path.splitext(path)[1].lower()
        parser = {".json": "json", ".toml": "tomllib", ".yaml": "yaml", ".yml": "yaml"}.get(ending)
        if parser is None:
            raise ValueError(f"{path!r}: SGLang reads files that end in .json, .toml, .yaml or .yml")
        with open(path, encoding="utf-8") as file:
            given = file.read()
        module = importlib.import_module(parser)
        read = getattr(module, "safe_load" if parser == "yaml" else "loads")
    else:
        path, read = "the extra config", json.loads
    try:
        extra = read(given)
    except Exception as error:  # each of the three modules has errors of its own
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(extra, dict):
        raise ValueError(f"{path}: it has to be an object, such as {{\"directory\": \"/cache/larder\"}}")
    return extra


def _check(extra: dict[str, Any], arguments: argparse.Namespace) -> None:
    _require_engine_keys(extra)
    settings = _settings(dict(extra), arguments)
    _tell("backend", settings.backend)
    for key, why in (
        ("interface_v1", "pages are copied on their way; set it to 1"),
        ("hicache_storage_pass_prefix_keys", "beginnings of prompts may leave the store before what follows; set true"),
    ):
        if not extra.get(key):
            _tell("warning", f"no \"{key}\": {why}")
    folders = _absolute(settings.store, "directory")
    share = _absolute(settings.store, "share_directory")
    _require_owner([*folders, *share, *_paths_of_3fs(settings.store)])
    begin = time.monotonic()
    store = opening.open_store(
        lambda: larder.Store(settings.backend, _without_eviction(settings)), _name(settings.backend, folders), None,
        "this check waits for it (Ctrl-C ends it)",
    )  # fmt: skip
    with store:
        _tell_of_room(store, settings, folders, time.monotonic() - begin)
        _tell("share directory", ":".join(share) or "none: this process alone has the store")
        _move_pages(store, settings)
    _tell_of_weights(settings, arguments.model_path, arguments.revision)
    _tell("metrics", _metrics(settings))
    _tell("SGLang", _engine())


def _absolute(store: dict[str, Any], key: str) -> list[str]:
    """The paths of an option."""
    out = []
    for path in [path for path in str(store.get(key) or "").split(":") if path]:
        if not os.path.isabs(path):
            _tell(
                "warning",
                f"{key} {path!r} is {os.path.abspath(path)} here; SGLang takes it relative to the directory in which "
                "it is started: write the whole path",
            )
        out.append(os.path.abspath(path))
    return out


def _paths_of_3fs(store: dict[str, Any]) -> list[str]:
    prefixes = [os.path.dirname(prefix) for prefix in _absolute(store, "file_path_prefix")]
    return prefixes + ([] if store.get("metadata_directory") == "none" else _absolute(store, "metadata_directory"))


def _without_eviction(settings: Settings) -> dict[str, Any]:
    """A file store evicts as soon as it is opened, if it holds more than it may: that is not for a check to begin."""
    if settings.backend == "file" and settings.store.get("evict", "on") == "on":
        return {**settings.store, "evict": "off"}
    return settings.store  # what is no "on" is refused by the store, or is "off"


def _name(backend: str, folders: list[str]) -> str:
    return " ".join([backend, "store", *([":".join(folders)] if folders else [])])


def _require_engine_keys(extra: dict[str, Any]) -> None:
    for key, wanted in _NEEDED.items():
        if key not in extra:
            raise DoesNotWork(f"the extra config has no {key!r}: {json.dumps(wanted or 'larder')}; SGLang demands it")
        if wanted is not None and extra[key] != wanted:
            raise DoesNotWork(f"{key} is {extra[key]!r}; SGLang finds Larder by {json.dumps(wanted)}")
    for key, (kind, text) in _TYPES.items():
        if key in extra and not isinstance(extra[key], kind):
            raise DoesNotWork(f"{key} is {extra[key]!r}; SGLang takes {text}")


def _settings(extra: dict[str, Any], arguments: argparse.Namespace) -> Settings:
    """As of the first rank; of the model it is not known whether its KV is the same on all of them."""
    lcm = extra.pop("tp_lcm_size", None)
    tp = arguments.tp_size
    config = types.SimpleNamespace(
        extra_config=extra, tp_size=tp, is_mla_model=False, tp_lcm_size=lcm,
        should_split_heads=isinstance(lcm, int) and lcm > tp,
    )  # fmt: skip
    ranks = Ranks(tp=(0, tp), pp=(0, arguments.pp_size), cp=(0, 1), dp=(0, arguments.dp_size))
    return read_settings(config, ranks)


def _require_owner(paths: list[str]) -> None:
    """What root makes in another user's directory, or writes into it, that user's server could not open."""
    if os.geteuid() != 0:
        return
    for path in paths:
        there = path
        while not os.path.exists(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        owner = os.stat(there).st_uid
        if owner == 0:
            continue
        why = f"{there} belongs to user {_user(owner)}, and root asks; check it as that user"
        raise DoesNotWork(why if there == path else f"{why}, or, if SGLang is to run as root, make {path} first")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _tell_of_room(store: larder.Store, settings: Settings, folders: list[str], seconds: float) -> None:
    held = store.stats().get("store", {})
    used, limit = held.get("physical_bytes", 0), held.get("capacity_bytes", 0)
    of = f" of {limit:,}" if limit else ""
    _tell("store", f"{held.get('pages', 0):,} pages, {used:,}{of} bytes; opened in {seconds:.2f} s")
    if settings.backend == "file" and used > limit > 0:
        then = "takes nothing new" if settings.store.get("evict") == "off" else f"evicts {used - limit:,} bytes or more"
        _tell("warning", f"the store holds more than max_size: as SGLang opens it, it {then}")
    free_on = {}
    for folder in folders if settings.backend == "file" else ():  # a plug-in's may be anything
        system = os.statvfs(folder)
        free = system.f_bavail * system.f_frsize
        free_on[os.stat(folder).st_dev] = free
        _tell("directory", f"{folder}: {free:,} bytes free")
    if free_on and limit > used + sum(free_on.values()):
        _tell("warning", "max_size is more than what the store has and what is free: the disk will be full before")


def _move_pages(store: larder.Store, settings: Settings) -> None:
    pool = larder.Pool("check", page_bytes=_PAGE_BYTES, layout="random bytes")
    identity = f"larder.sglang check {uuid.uuid4().hex}"
    keys = larder.page_keys(list(range(_PAGES)), 1)
    written = [os.urandom(_PAGE_BYTES) for _ in keys]
    back = [bytearray(_PAGE_BYTES) for _ in keys]
    with store.space(page_size=1, identity=identity, pools=[pool]) as space:
        begin = time.monotonic()
        is_declined = False
        try:
            is_declined = not _put(space, keys, written, settings.put_timeout_seconds)
            middle = time.monotonic()
            pages = [larder.Page(key, data, pool.name) for key, data in zip(keys, back)]
            if not is_declined:
                _require_ok("read", space.get_pages(pages, timeout=settings.timeout_seconds))
        finally:
            _clear(space, settings.put_timeout_seconds)
        end = time.monotonic()
    if is_declined:
        _tell("pages", "not written, so none was read")
        _tell("warning", _why_declined(settings))
        return
    if written != back:
        raise DoesNotWork("pages come back with other bytes than those that were written: do not use this store")
    _tell(
        "pages",
        f"{_PAGES} of {_PAGE_BYTES >> 10} KiB: written in {middle - begin:.3f} s, read in {end - middle:.3f} s, equal",
    )


def _put(space: larder.Space, keys: list[bytes], data: list[bytes], timeout: float) -> bool:
    """False: the store declined pages."""
    parents: list[Optional[bytes]] = [None, *keys[:-1]]
    pages = [larder.Page(key, bytearray(one), "check", parent) for key, one, parent in zip(keys, data, parents)]
    declined = int(larder.Code.UNSUPPORTED)
    codes = space.put_pages(pages, timeout=timeout)
    if declined in codes:  # admission: second_offer
        codes = space.put_pages(pages, timeout=timeout)
    _require_ok("written", [code for code in codes if code != declined])
    return declined not in codes


def _why_declined(settings: Settings) -> str:
    """A code does not say which of them it is."""
    reasons = []
    if settings.backend == "file":
        is_off = settings.store.get("evict") == "off"
        reasons.append(f"it is full, and {'evict is off' if is_off else 'this check evicts nothing'}")
    if settings.store.get("max_writes_per_day", "unlimited") != "unlimited":
        reasons.append("max_writes_per_day of today is used up")
    return "the store takes no pages now: " + (", or ".join(reasons) or "it declines them, by its own policy")


def _require_ok(what: str, codes: list[int]) -> None:
    failed = [code for code in codes if code != int(larder.Code.OK)]
    if failed:
        names = ", ".join(sorted({larder.Code(code).name for code in failed}))
        raise DoesNotWork(f"{len(failed)} of {len(codes)} pages could not be {what}: {names}")


def _clear(space: larder.Space, timeout: float) -> None:
    try:
        space.clear(timeout)
    except larder.Error as error:
        _tell("warning", f"the pages of this check stay in the store: {error.message}")


def _tell_of_weights(settings: Settings, path: Optional[str], revision: Optional[str]) -> None:
    if settings.weights_fingerprint is not None:
        _tell("weights", f"{settings.weights_fingerprint!r}, by weights_fingerprint")
        return
    if path is None:
        _tell("weights", "not looked at: give --model-path")
        return
    begin = time.monotonic()
    try:
        fingerprint = weights_fingerprint(path, revision)
    except ValueError as error:
        raise DoesNotWork(f"{error}. Set weights_fingerprint in the extra config to a text that names them") from error
    _tell("weights", f"{fingerprint}, made in {time.monotonic() - begin:.2f} s")


def _metrics(settings: Settings) -> str:
    if settings.metrics_port is None:
        return "none: set metrics_port for a page of each rank"
    return f"http://{settings.metrics_host}:{settings.metrics_port}/metrics of the first rank"


def _engine() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "not in this Python; the store was checked all the same"


def _with_hint(error: Exception) -> str:
    if isinstance(error, larder.Error) and error.code is larder.Code.CONFLICT:
        return f"{error}. A server that runs has it: check before its start, or with a share_directory for both"
    return str(error).removeprefix("larder: ")


def _tell(what: str, text: str) -> None:
    print(f"{what + ':':17}{text}", flush=True)
