# SPDX-License-Identifier: Apache-2.0
"""LarderStorage: SGLang's storage backend."""

import contextlib
import logging
import threading
import time
from typing import Any, Callable, Optional, Sequence, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

import larder
from larder.sglang import heads, opening, queries, tensors, transfers
from larder.sglang.identity import (
    Identity,
    is_attached_at_run_time,
    is_offloading_decode_server,
    keeps_beliefs,
    machines,
)
from larder.sglang.metrics_page import MetricsPage, plugin_metrics
from larder.sglang.patience import LEAST_SECONDS, Deadline, Patience
from larder.sglang.pools import ANCHOR, MappedPool, Reach, Unusable, is_split_but_stored_once, map_pool, memory_of
from larder.sglang.ranks import splits_layers
from larder.sglang.settings import Settings, read_settings
from larder.sglang.spaces import NotReady, OpenSpace, SpaceTable
from larder.sglang.trouble import Meter, Trouble
from larder.sglang.weight_guard import WeightGuard

logger = logging.getLogger("larder.sglang")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
# Codes of a page that are no news: it is not there, or the store's policy declined it.
_QUIET_CODES = frozenset({int(larder.Code.OK), int(larder.Code.NOT_FOUND), int(larder.Code.UNSUPPORTED)})
_OK, _DECLINED = int(larder.Code.OK), int(larder.Code.UNSUPPORTED)
_SMALL_PAGE_TOKENS = 16
_MOST_SECONDS = 4.5  # of a read: twice that is less than the 10 s that SGLang waits for its threads
_DETACH_SECONDS = 1.0  # that a detach waits for a store; then it is closed in the background

T = TypeVar("T")


def _log(level: int, where: str, message: str) -> None:
    logger.log(_LEVELS[min(max(level, 0), 3)], "larder: %s: %s", where, message)


class FailedQuery(Exception):
    """Whether the store has the pages is not known."""


class LarderStorage(HiCacheStorage):
    """Pages of SGLang's host pools in a store of Larder; one object per rank. larder.sglang lists the options.

    Raises in the constructor only (ValueError, larder.Error): unknown options, a directory that cannot be used, at run
    time one whose disk hangs, weights that have no fingerprint. Later troubles are misses, each counted and logged at
    most once a minute per kind; but see _on_failed_query().
    Threads: several at once; close() waits for the calls in flight, and after it everything is a miss.
    The host pools' memory is used during calls only, and is held as long as this object lives.
    """

    def __init__(self, storage_config: Any, kwargs: Optional[dict[str, Any]] = None) -> None:
        settings = read_settings(storage_config)
        self._settings = settings
        self._config = storage_config
        self._trouble = Trouble()
        self._meter = Meter()
        self._cancel = larder.Cancel()
        self._seen: dict[str, Any] = {}
        self._is_closed = False
        self._scheduler = threading.get_ident()
        self._identity = Identity(storage_config, settings)
        self._store = opening.open_store(
            lambda: larder.Store(settings.backend, settings.store, log=_log), _name_of(settings),
            opening.ATTACH_SECONDS if is_attached_at_run_time() else None,
        )  # fmt: skip
        try:
            self._begin(settings, storage_config)
        except BaseException:  # the store would be open for as long as somebody has the error
            with contextlib.suppress(larder.Error):
                self._store.close(_DETACH_SECONDS)
            raise

    def _begin(self, settings: Settings, storage_config: Any) -> None:
        self._spaces = SpaceTable(self._store, self._identity.text, settings.ranks, settings.pieces)
        self._guard = WeightGuard(self._identity)
        self._query_patience = Patience(settings.timeout_seconds)
        self._get_patience = Patience(settings.timeout_seconds)
        self._put_patience = Patience(settings.put_timeout_seconds, LEAST_SECONDS)
        self._clear_patience = Patience(settings.put_timeout_seconds)
        self._clearing = threading.Lock()
        self._is_clear_owed = False
        self._has_told_of_parents = False
        _tell_of_reach(settings, storage_config)
        _tell_of_patience(settings.timeout_seconds)
        if not settings.has_interface_v1:
            logger.warning(
                "larder: the extra config has no \"interface_v1\": 1; pages are copied on their way, and beginnings of "
                "prompts may leave the store before what follows them"
            )
        if settings.has_file_storage_path:
            logger.info("larder: file_storage_path (SGLang's --file-storage-path) has no effect")
        self._metrics_page = self._open_metrics_page(settings)

    def _open_metrics_page(self, settings: Settings) -> Optional[MetricsPage]:
        if settings.metrics_port is None:
            return None
        host, port = settings.metrics_host, settings.metrics_port
        # One that cannot listen does not raise: at an attach the other ranks would wait for this one for ever.
        page = MetricsPage(host, port, self.store_metrics, on_open=_tell_of_metrics)
        if page.trouble is None:
            _tell_of_metrics(page)
        else:
            self._trouble.note(
                "metrics_port", f"cannot listen on {host}:{port}: {page.trouble}; this rank tries again every 10 s"
            )
        return page

    # ---- life; the scheduler's thread ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(ANCHOR, mem_pool_host)
        self._guard.watch(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(queries.pool_name(host_pool_name), host_pool)

    def on_host_pools_registered(self) -> None:
        """Opens the space now, so that a trouble shows in the log at the start and not with the first request."""
        self._call("open", lambda: None, lambda current: None)

    def clear(self) -> bool:
        """Drops the pages of this model's present weights: of all pools and ranks. Those of its other weight versions
        may stay, and other models' do.

        False: it failed, and is owed. SGLang does not look, and tells its caller that all is cleared: so every call
        tries again first, and is a miss until it is done. (An exception would only be logged, and SGLang would go on
        to believe that the store has the pages.)
        """
        with self._clearing:
            self._is_clear_owed = True
            self._clear_patience = Patience(self._settings.put_timeout_seconds)
            return self._try_clear()

    def _try_clear(self) -> bool:
        """With _clearing."""
        try:
            with self._clear_patience.deadline() as deadline:
                self._spaces.clear(deadline)
        except Exception as error:
            self._trouble.note("clear", _how_to_clear(error))
            return False
        self._is_clear_owed = False
        return True

    def _has_cleared(self) -> bool:
        """Whether no clear is owed any more."""
        if not self._is_clear_owed or self._is_closed:
            return True
        if not self._clearing.acquire(blocking=False):
            return False  # another thread is at it
        try:
            return not self._is_clear_owed or self._try_clear()
        finally:
            self._clearing.release()

    def get_stats(self) -> Optional[Any]:
        """SGLang's StorageMetrics of the transfers since the last call; None if there are none."""
        return self._meter.take()

    def troubles(self) -> dict[str, int]:
        """Failures by kind since the start."""
        return self._trouble.counts()

    def store_stats(self) -> dict[str, Any]:
        """The store's statistics (docs/c_api.md lists the keys); empty when it is closed."""
        try:
            return self._store.stats()
        except larder.Error:
            return {}

    def store_metrics(self) -> str:
        """The same as Prometheus text, with troubles(), whether a clear is owed, and which namespace is whose."""
        try:
            store = self._store.metrics()
        except larder.Error:
            return ""
        return store + plugin_metrics(
            self._trouble.counts(), self._is_clear_owed, self._spaces.namespaces(), self._settings.ranks.folder
        )

    def close(self) -> None:
        """Ends the calls in flight, then closes the store. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_clear_owed:
            self._trouble.note("clear", "it never succeeded: the next attach finds what it should have dropped")
        if self._metrics_page is not None:
            self._metrics_page.close()
        self._guard.close()
        self._cancel.set()
        try:
            if not self._spaces.close(_DETACH_SECONDS):
                self._trouble.note("close", f"calls in flight did not end in {_DETACH_SECONDS} s")
            self._store.close(_DETACH_SECONDS)
        except larder.Error as error:
            self._trouble.note("close", f"{error.message}; the store is closed when it answers", logging.WARNING)
            threading.Thread(target=opening.close_later, args=(self._store,), name="larder-close", daemon=True).start()
        except Exception as error:
            self._trouble.note("close", error)

    def _register(self, name: str, host_pool: Any) -> None:
        if self._seen.get(name) is host_pool:
            return
        self._seen[name] = host_pool
        try:
            is_replicated = bool(self._config.is_mla_model)
            pool = map_pool(name, host_pool, is_replicated, self._identity.draft, self._settings.pieces)
            if self._config.tp_size > 1 and is_split_but_stored_once(pool, is_replicated):
                self._trouble.note(
                    f"pool {name}",
                    "differs between tensor-parallel ranks, but SGLang stores it on the first only: no prefix that "
                    "needs it is restorable on the others",
                    logging.WARNING,
                )
            self._spaces.add_pool(pool)
            self._lend_memory(name, pool)
            if name == ANCHOR:
                self._tell_of_pieces(host_pool)
                _tell_of_small_pages(pool.slots_per_page)
            logger.info(
                "larder: pool %s: %s, %d bytes a page, %s", name, type(host_pool).__name__, pool.page_bytes,
                pool.reach.value,
            )  # fmt: skip
            if pool.reach in (Reach.LISTED, Reach.COPIED):
                logger.warning("larder: pool %s: pages are %s one by one: slower", name, pool.reach.value)
        except Unusable as error:
            self._spaces.remove_pool(name)
            self._trouble.note(f"pool {name}", f"cannot be stored: {error}")
        except Exception as error:
            self._spaces.remove_pool(name)
            self._trouble.note(f"pool {name}", error)

    def _tell_of_pieces(self, host_pool: Any) -> None:
        """What SGLang has made of tp_lcm_size: it leaves it out, without a word, where pages cannot be in pieces."""
        wanted, has = self._config.tp_lcm_size, self._config.tp_size
        if self._settings.pieces > 1:
            (first, ranks), *_ = self._settings.ranks.tp_of_pieces(self._settings.pieces)
            logger.info(
                "larder: each page is in %d pieces, those of the ranks %d to %d of %d", self._settings.pieces, first,
                first + self._settings.pieces - 1, ranks,
            )  # fmt: skip
        elif wanted and wanted > has and not self._config.is_mla_model:
            logger.warning(
                "larder: tp_lcm_size is %d and has no effect: the host layout is %s, and heads are divided in %s only. "
                "Servers with %d tensor-parallel ranks find the pages, others do not",
                wanted, getattr(host_pool, "layout", "unknown"), heads.LAYOUT, has,
            )  # fmt: skip

    def _tell_of_parents(self, extra_info: Any) -> None:
        """Once. SGLang takes its key out of the extra config, so what it is set to shows with the first write."""
        if self._has_told_of_parents or getattr(extra_info, "prefix_keys", ()) is not None:
            return
        self._has_told_of_parents = True
        if is_offloading_decode_server():
            logger.info(
                "larder: SGLang's offload of a decode server does not say which page comes before another: beginnings "
                "of prompts may leave the store before what follows them"
            )
            return
        logger.warning(
            "larder: the extra config has no \"hicache_storage_pass_prefix_keys\": true; the store cannot see which "
            "page comes before another, and beginnings of prompts may leave it before what follows them"
        )

    def _lend_memory(self, name: str, pool: MappedPool) -> None:
        """Registers the pool's memory with the device, once, where the device works on it itself."""
        if self._settings.store.get("zero_copy") not in (True, "true") or pool.layout is None:
            return
        try:
            self._store.add_memory(memory_of(pool.layout))
        except larder.Error as error:  # transfers work without
            logger.info("larder: pool %s: its memory is not registered: %s", name, error.message)

    # ---- queries ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the first on the anchor pool has."""
        if not keys:
            return 0

        def work(current: OpenSpace) -> int:
            with self._query_patience.deadline() as deadline:
                return queries.leading_pages(current, keys, deadline, self._cancel)

        return self._call("exists", lambda: 0, work, self._on_failed_query)

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Optional[Sequence[Any]] = None, extra_info: Any = None
    ) -> Any:
        """Every jointly restorable length (restorable_prefix_pages), the longest, and each pool's own boundary."""
        return self._call(
            "exists",
            lambda: PoolTransferResult(0, {}, []),
            lambda current: self._query(current, keys, pool_transfers),
            self._on_failed_query,
        )

    def _on_failed_query(self, error: Exception) -> None:
        """With buffer_only SGLang keeps in mind what the store has, and what a query does not find it writes anew. An
        exception tells it nothing of the store; its threads catch it, but its scheduler does not."""
        if not self._is_closed and keeps_beliefs() and threading.get_ident() != self._scheduler:
            raise FailedQuery(f"larder: nobody knows what the store has: {error}") from error

    def _query(self, current: OpenSpace, keys: Sequence[str], pool_transfers: Optional[Sequence[Any]]) -> Any:
        if not keys:
            return PoolTransferResult(0, {}, [])
        try:
            needs = queries.needs_of(current, pool_transfers)
        except queries.UnknownPool as error:
            self._trouble.note("unknown pool", error)
            return PoolTransferResult(0, {}, [])
        with self._query_patience.deadline() as deadline:
            found = queries.query(current, keys, needs, deadline, self._cancel)
        return PoolTransferResult(found.best, queries.boundaries(found, needs), found.restorable)

    # ---- transfers out of and into host pools ----

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move_anchor(False, keys, host_indices, extra_info)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move_anchor(True, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._move_pools(False, transfers, extra_info)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._move_pools(True, transfers, extra_info)

    def _move_anchor(self, is_put: bool, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        with self._patience(is_put).deadline() as deadline:
            return self._move_pool(is_put, deadline, ANCHOR, keys, host_indices, extra_info)

    def _move_pools(self, is_put: bool, asked: Optional[Sequence[Any]], extra_info: Any) -> dict[Any, list[bool]]:
        with self._patience(is_put).deadline() as deadline:
            return {
                one.name: self._move_pool(
                    is_put, deadline, queries.pool_name(one.name), one.keys, one.host_indices, extra_info
                )
                for one in asked or ()
            }

    def _move_pool(
        self,
        is_put: bool,
        deadline: Deadline,
        name: str,
        keys: Optional[Sequence[str]],
        host_indices: Any,
        extra_info: Any,
    ) -> list[bool]:
        keys = keys or []

        def work(current: OpenSpace) -> list[bool]:
            pool = current.pools.get(name)
            if pool is None:
                raise queries.UnknownPool(f"pool {name} is not registered, or cannot be stored")
            if is_put:
                self._tell_of_parents(extra_info)
                if not self._may_store(current):
                    return [False] * len(keys)
            begin = time.perf_counter()
            move = transfers.Move(current, is_put, deadline, self._cancel)
            codes = transfers.move_pages(move, pool, keys, host_indices, _last_prefix_key(extra_info))
            return self._answer(is_put, codes, pool.page_bytes, time.perf_counter() - begin)

        if not keys:
            return []
        return self._call("set" if is_put else "get", lambda: [False] * len(keys), work)

    def _patience(self, is_put: bool) -> Patience:
        return self._put_patience if is_put else self._get_patience

    def _may_store(self, current: OpenSpace) -> bool:
        if self._guard.may_store(current.identity):
            return True
        self._trouble.note("set: new weights", _how_to_store_again(), logging.WARNING)
        return False

    def _answer(self, is_put: bool, codes: list[int], page_bytes: int, seconds: float) -> list[bool]:
        """What the store's policy declined to write is dealt with: SGLang gives up a node at its first failure."""
        moved = codes.count(_OK)
        done = [code == _OK or (is_put and code == _DECLINED) for code in codes]
        if self._config.enable_storage_metrics:
            self._meter.add(is_put, moved, moved * page_bytes, seconds)
        if moved < len(codes):
            for code in set(codes) - _QUIET_CODES:
                kind = f"{'set' if is_put else 'get'}: {larder.Code(code).name.lower()}"
                self._trouble.note(kind, f"{codes.count(code)} of {len(codes)} pages", logging.WARNING)
        return done

    # ---- flat tensors: what SGLang uses without interface_v1 ----

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Optional[Any]:
        """Reads a page of the anchor pool into a flat tensor; without one, into a new tensor of bytes."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Optional[Sequence[Any]] = None, target_sizes: Any = None
    ) -> list[Optional[Any]]:
        """Returns the tensors; None for pages that are not there."""

        def work(current: OpenSpace) -> list[Optional[Any]]:
            begin = time.perf_counter()
            targets = _targets(current, len(keys), target_locations)
            with self._get_patience.deadline() as deadline:
                move = transfers.Move(current, False, deadline, self._cancel)
                codes = transfers.move_tensors(move, current.anchor, keys, targets)
            done = self._answer(False, codes, current.anchor.page_bytes, time.perf_counter() - begin)
            return [target if is_done else None for target, is_done in zip(targets, done)]

        return self._call("get", lambda: [None] * len(keys), work)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a page of the anchor pool out of a flat tensor."""
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Optional[Sequence[Any]] = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether all pages were stored."""

        def work(current: OpenSpace) -> bool:
            given = values if values is not None else target_locations
            if given is None or len(given) != len(keys) or any(value is None for value in given):
                raise ValueError(f"{len(keys)} keys, but not as many tensors")
            if not self._may_store(current):
                return False
            begin = time.perf_counter()
            flat = [tensors.flat_on_cpu(value) for value in given]
            with self._put_patience.deadline() as deadline:
                move = transfers.Move(current, True, deadline, self._cancel)
                codes = transfers.move_tensors(move, current.anchor, keys, flat)
            return all(self._answer(True, codes, current.anchor.page_bytes, time.perf_counter() - begin))

        return self._call("set", lambda: False, work)

    # ---- the wall that no exception passes ----

    def _call(
        self,
        kind: str,
        miss: Callable[[], T],
        work: Callable[[OpenSpace], T],
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> T:
        """on_error: called after an error of work() was noted; what it raises passes."""
        try:
            if not self._has_cleared():
                return miss()
            current = self._spaces.enter()
            try:
                self._guard.may_store(current.identity)  # queries see an update, too
                return work(current)
            finally:
                self._spaces.leave(current)
        except NotReady as error:
            self._trouble.note("not ready", error, logging.INFO if self._is_closed else logging.WARNING)
        except larder.Error as error:
            self._trouble.note(f"{kind}: {error.code.name.lower()}", error.message)
            on_error(error)
        except Exception as error:
            self._trouble.note(f"{kind}: {type(error).__name__}", error)
            on_error(error)
        return miss()


def _how_to_store_again() -> str:
    if is_offloading_decode_server():
        return (
            "the weights changed, and a decode server that offloads shows its storage neither a flush nor the weights "
            "with which other servers have computed its prompts: nothing is stored until the server is started anew, "
            "with these weights, after its prefill servers have them"
        )
    return (
        "the weights changed, and SGLang's cache was not flushed since: nothing is stored until it is. A flush before "
        "the update does not count: update first, then flush (\"flush_cache\": true in the update, or /flush_cache "
        "after it)"
    )


def _how_to_clear(error: Exception) -> object:
    """What the log says of a clear that failed: the error, and the way out where trying again is none."""
    if not isinstance(error, larder.Error) or error.code is not larder.Code.UNSUPPORTED:
        return error
    return (
        f"{error.message}. This store can never clear, so from now on everything is a miss. Remove the pages with the "
        "store's own means, or name the weights anew (weights_fingerprint); then detach and attach, or start anew"
    )


def _name_of(settings: Settings) -> str:
    directory = settings.store.get("directory")
    return f"{settings.backend} store" if directory is None else f"{settings.backend} store {directory}"


def _tell_of_metrics(page: MetricsPage) -> None:
    logger.info("larder: metrics at http://%s:%d/metrics", page.host, page.port)


def _tell_of_reach(settings: Settings, config: Any) -> None:
    """Where one rank cannot find what another has stored."""
    backend, is_shared = settings.backend, bool(settings.store.get("share_directory"))
    if backend == "memory" and not is_shared and config.is_mla_model and config.tp_size > 1:
        logger.warning(
            "larder: the backend is \"memory\", which each rank has for itself; of this model SGLang stores on the "
            "first of %d ranks only, so nothing is restorable on the others: set share_directory, or another backend",
            config.tp_size,
        )
    if settings.ranks.tp_has_cp and config.is_mla_model and splits_layers():
        logger.warning(
            "larder: with --enable-dsa-cache-layer-split each context parallel rank has other layers, of which SGLang "
            "stores those of the first rank only: nothing is restorable on the others"
        )
    if backend == "file" and machines() > 1:
        logger.warning(
            "larder: the backend is \"file\", whose ranks share one machine, and the server has %d: a rank finds what "
            "was stored on its own machine only, and what is stored once for all ranks is missing on the others. With "
            "several machines use \"backend\": \"hf3fs\" with a metadata_server_url, or \"mooncake\"", machines(),
        )  # fmt: skip


def _tell_of_patience(timeout_seconds: float) -> None:
    if timeout_seconds > _MOST_SECONDS:
        logger.warning(
            "larder: timeout_seconds is %g: a batch of a hybrid model may wait that long twice, and where SGLang "
            "flushes or detaches while a read takes 10 s the server ends; set %g or less",
            timeout_seconds, _MOST_SECONDS,
        )  # fmt: skip


def _tell_of_small_pages(tokens: int) -> None:
    if tokens < _SMALL_PAGE_TOKENS:
        logger.warning(
            "larder: a page has %d token(s): each is stored, found and checked for itself, which is slow; start SGLang "
            "with --page-size 64, or what your attention backend takes",
            tokens,
        )


def _last_prefix_key(extra_info: Any) -> Optional[str]:
    prefix = getattr(extra_info, "prefix_keys", None)
    return prefix[-1] if prefix else None


def _targets(current: OpenSpace, count: int, given: Optional[Sequence[Any]]) -> list[Any]:
    """Flat tensors in CPU memory to read into. Raises ValueError."""
    if given is None:
        template = current.anchor.host_pool.get_dummy_flat_data_page()
        return [tensors.empty_like(template) for _ in range(count)]
    if len(given) != count:
        raise ValueError(f"{count} keys, but {len(given)} tensors")
    for target in given:
        if target is None or not target.is_contiguous() or str(target.device) != "cpu":
            raise ValueError("a target is no contiguous tensor in CPU memory")
    return list(given)
