# SPDX-License-Identifier: Apache-2.0
"""The extra config: which keys are SGLang's, which are ours, and which are the store's."""

import difflib
import os
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional

import larder
from larder.sglang.ranks import Ranks, read_ranks

# Keys that SGLang reads, and that may still be there.
_ENGINE_KEYS = frozenset(
    {
        "allocator",
        "backend_name",
        "class_name",
        "file_storage_path",
        "hicache_storage_pass_prefix_keys",
        "interface_v1",
        "module_path",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "tp_lcm_size",
    }
)
_OWN_KEYS = frozenset(
    {
        "backend",
        "draft_weights_fingerprint",
        "engine_version",
        "metrics_host",
        "metrics_port",
        "put_timeout_seconds",
        "rank_directories",
        "timeout_seconds",
        "weights_fingerprint",
    }
)

_PATHS = ("directory", "share_directory", "file_path_prefix", "metadata_directory")
_SHARE_OF_DISKS = 80  # percent, of all stores of a server: the default of one store


@dataclass(frozen=True)
class Settings:
    """What the operator has set. `store`: the store's options."""

    backend: str
    store: dict[str, Any]
    weights_fingerprint: Optional[str]
    draft_weights_fingerprint: Optional[str]
    engine_version: Optional[str]
    timeout_seconds: float
    put_timeout_seconds: float
    has_interface_v1: bool
    has_file_storage_path: bool
    metrics_host: str
    metrics_port: Optional[int]  # of this rank; None: no page
    ranks: Ranks
    pieces: int  # of each page: 1, or tp_lcm_size / tp_size


def read_settings(config: Any, ranks: Optional[Ranks] = None) -> Settings:
    """config: a HiCacheStorageConfig. ranks: where SGLang does not run, which says them else. Raises ValueError, which
    says what to set."""
    extra: Mapping[str, Any] = config.extra_config or {}
    store = {key: value for key, value in extra.items() if key not in _ENGINE_KEYS and key not in _OWN_KEYS}
    backend = _text(extra, "backend") or "file"
    ranks, pieces = ranks or read_ranks(config), _pieces(config)
    directory = _text(store, "directory")
    _refuse_homes(store)
    rank_directories = extra.get("rank_directories", False)
    if not isinstance(rank_directories, bool):
        raise ValueError(f"larder: rank_directories is {rank_directories!r}; true or false")
    if rank_directories:
        store["directory"] = _rank_directories(config, ranks, directory)
        if backend == "file":
            store.setdefault("max_size", f"{max(1, _SHARE_OF_DISKS // ranks.count)}%")
    elif backend == "file" and directory and (config.tp_lcm_size or ranks.is_one_of_several):
        store.setdefault("share_directory", directory.split(":")[0].rstrip("/") + ".share")
    _refuse_unknown(backend, store)
    if backend == "hf3fs" and ranks.is_one_of_several:
        _require_one_index(store)
    return Settings(
        backend=backend,
        store=store,
        weights_fingerprint=_text(extra, "weights_fingerprint"),
        draft_weights_fingerprint=_text(extra, "draft_weights_fingerprint"),
        engine_version=_text(extra, "engine_version"),
        timeout_seconds=_seconds(extra, "timeout_seconds", 4.0),
        put_timeout_seconds=_seconds(extra, "put_timeout_seconds", 5.0),
        has_interface_v1=bool(extra.get("interface_v1", 0)),
        has_file_storage_path="file_storage_path" in extra,
        metrics_host=_host(extra, "metrics_host") or "127.0.0.1",
        metrics_port=_metrics_port(ranks, extra.get("metrics_port")),
        ranks=ranks,
        pieces=pieces,
    )


def _refuse_unknown(backend: str, store: Iterable[str]) -> None:
    """The store refuses unknown keys too, but knows neither SGLang's keys nor ours, one of which may be meant."""
    of_backend = larder.option_help(backend)
    if not of_backend or "*" in of_backend:
        return  # the store says which backends there are; a plug-in has keys of its own
    of_store = larder.option_help(None)
    known = {key.casefold(): key for key in (*_ENGINE_KEYS, *_OWN_KEYS, *of_backend, *of_store)}
    for key in store:
        if key in of_backend or key in of_store:
            continue
        others = [other for other in larder.backends() if key in larder.option_help(other)]
        near = difflib.get_close_matches(key.strip().casefold(), sorted(known), 1)
        if others:
            hint = f": {key!r} belongs to \"backend\": \"{others[0]}\", and the backend is {backend!r}."
        else:
            hint = f"; did you mean {known[near[0]]!r}?" if near else "."
        raise ValueError(
            f"larder: the extra config has no key {key!r}{hint} Its keys: {_list(_OWN_KEYS)}; of backend {backend!r}: "
            f"{_list(of_backend)}; of every store: {_list(of_store)}; SGLang's: {_list(_ENGINE_KEYS)}"
        )


def _refuse_homes(store: Mapping[str, Any]) -> None:
    """No shell reads the extra config, and the store would lie in the folder in which SGLang was started."""
    for key in _PATHS:
        value = store.get(key)
        if isinstance(value, str) and any(path.startswith("~") for path in value.split(":")):
            raise ValueError(
                f"larder: {key} is {value!r}; '~' is a home directory to a shell only, and here a folder of that name: "
                "write the whole path"
            )


def _require_one_index(store: Mapping[str, Any]) -> None:
    """The default is an index in the process, whose journal has one place for all ranks."""
    if not store.get("metadata_server_url") and not store.get("share_directory"):
        raise ValueError(
            "larder: several ranks on hf3fs need one page index: set metadata_server_url to that of a `larder "
            "metadata-server`, or, if they all are on this machine, share_directory to a directory where they meet"
        )


def _list(keys: Iterable[str]) -> str:
    return " ".join(sorted(keys))


def _pieces(config: Any) -> int:
    """SGLang says whether pages are in pieces; that their number is whole it has asserted, if at all."""
    ranks = config.tp_lcm_size
    if not ranks:
        return 1
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1 or ranks % config.tp_size:
        raise ValueError(
            f"larder: tp_lcm_size is {ranks!r}; a number that each server's tensor-parallel ranks divide, here "
            f"{config.tp_size}: their least common multiple"
        )
    return int(ranks // config.tp_size) if config.should_split_heads else 1


def _rank_directories(config: Any, ranks: Ranks, directory: Optional[str]) -> str:
    if config.is_mla_model and config.tp_size > 1:
        raise ValueError(
            "larder: rank_directories does not fit this model: its KV is the same on all tensor-parallel ranks, and "
            "SGLang stores it on the first only. Leave it out: the ranks then share one store."
        )
    if config.tp_lcm_size:
        raise ValueError(
            "larder: rank_directories does not fit tp_lcm_size: a server with another number of ranks would not find "
            "their pages. Leave one of them out."
        )
    if not directory:
        raise ValueError("larder: rank_directories needs `directory`")
    return ":".join(os.path.join(folder, ranks.folder) for folder in directory.split(":"))


def _metrics_port(ranks: Ranks, given: Any) -> Optional[int]:
    """Each rank is a process, and has the next port."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 65535:
        raise ValueError(f"larder: metrics_port is {given!r}; a port from 1 to 65535, the first rank's")
    return given + ranks.number


def _text(extra: Mapping[str, Any], key: str) -> Optional[str]:
    value = extra.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"larder: {key} is {value!r}; it is a text, not empty")
    return value


def _host(extra: Mapping[str, Any], key: str) -> Optional[str]:
    value = _text(extra, key)
    try:
        encoded = (value or "").encode("idna")
    except UnicodeError as error:
        raise ValueError(f"larder: {key} is {value!r}; a host's name or address ({error})") from error
    if b"\0" in encoded:
        raise ValueError(f"larder: {key} is {value!r}; a host's name or address")
    return value


def _seconds(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = extra.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3600:
        raise ValueError(f"larder: {key} is {value!r}; seconds, above 0 and at most 3600")
    return float(value)
