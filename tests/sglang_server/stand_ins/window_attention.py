# SPDX-License-Identifier: Apache-2.0
"""Layers with a sliding window in SGLang's attention on the CPU. It writes their K and V to the slots of the window's
pool, and reads at the slots of the other pool; here it reads where it has written."""

import functools


def _in_its_pool(run):
    """`run` of the attention, with slots of the window's pool for layers that have a window."""

    @functools.wraps(run)
    def call(self, query, output, k_cache, v_cache, req_to_token, *more, sliding_window_size=None, **options):
        if sliding_window_size is not None and self.use_sliding_window_kv_pool:
            req_to_token = self.token_to_kv_pool.translate_loc_from_full_to_swa(req_to_token)
        options["sliding_window_size"] = sliding_window_size
        return run(self, query, output, k_cache, v_cache, req_to_token, *more, **options)

    return call


def install():
    """Puts it into SGLang's attention."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        setattr(TorchNativeAttnBackend, name, _in_its_pool(getattr(TorchNativeAttnBackend, name)))
