# SPDX-License-Identifier: Apache-2.0
"""Which of its server's processes this one is."""

from dataclasses import dataclass
from typing import Any

Place = tuple[int, int]  # (rank, size)


@dataclass(frozen=True)
class Ranks:
    """Tensor, pipeline, context and data parallel; with DP attention tp is that of an attention group.

    tp_has_cp: whether tp counts the context parallel ranks, too.
    """

    tp: Place
    pp: Place
    cp: Place
    dp: Place
    tp_has_cp: bool = False

    @property
    def is_one_of_several(self) -> bool:
        """Whether other processes of this server have a storage backend, too."""
        return self.count > 1

    @property
    def count(self) -> int:
        """Of the processes of this server that have a storage backend."""
        count = 1
        for _, size in self._places:
            count *= size
        return count

    @property
    def number(self) -> int:
        """From 0 on, another one for each process."""
        number = 0
        for rank, size in self._places:
            number = number * size + rank
        return number

    @property
    def _places(self) -> list[Place]:
        """Each process has others of them than all others."""
        return [self.dp, self.pp, *([] if self.tp_has_cp else [self.cp]), self.tp]

    @property
    def folder(self) -> str:
        return f"tp{self.tp[0]}_pp{self.pp[0]}_cp{self.cp[0]}_dp{self.dp[0]}"

    def tp_of_pieces(self, pieces: int) -> list[Place]:
        """Where the pieces of this rank's pages belong (heads.py)."""
        rank, size = self.tp
        return [(rank * pieces + piece, size * pieces) for piece in range(pieces)]


def read_ranks(config: Any) -> Ranks:
    """config: a HiCacheStorageConfig, which numbers data parallel ranks with DP attention only; replicas SGLang's
    runtime context does."""
    replica, replicas = _read("dp_rank", 0), _read("dp_size", 1)
    groups = _read("attn_dp_size", 1)
    dp = (config.dp_rank, max(groups, config.dp_rank + 1)) if groups > 1 or config.dp_rank else (replica, replicas)
    tp_has_cp = _has_cp_in_tp(config)
    # The first of all ranks then stores for those of the other context parallel ranks, too, which have the same pages.
    is_shared = tp_has_cp and config.is_mla_model and not splits_layers()
    return Ranks(
        tp=(config.tp_rank, config.tp_size),
        pp=(config.pp_rank, config.pp_size),
        cp=(0, 1) if is_shared else (config.attn_cp_rank, config.attn_cp_size),
        dp=dp,
        tp_has_cp=tp_has_cp,
    )


def splits_layers() -> bool:
    """Whether context parallel ranks have other layers each (--enable-dsa-cache-layer-split)."""
    return bool(_read("enable_dsa_cache_layer_split", 0))


def _has_cp_in_tp(config: Any) -> bool:
    """Without DP attention SGLang gives the number of a rank among all tensor parallel ones: its groups of context
    parallel ranks divide them."""
    tp: int = config.tp_size
    cp: int = config.attn_cp_size
    return cp > 1 and tp % cp == 0 and tp == _read("tp_size", tp)


def _read(name: str, absent: int) -> int:
    """Of SGLang's runtime context; `absent` if it is not published, or None: no data parallel controller."""
    try:
        from sglang.srt.runtime_context import get_parallel

        return int(getattr(get_parallel(), name))
    except Exception:  # SGLang raises errors of several kinds
        return absent
