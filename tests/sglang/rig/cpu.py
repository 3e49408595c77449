# SPDX-License-Identifier: Apache-2.0
"""Stands in for what a machine without a GPU lacks: the copy kernels and the pinning of host memory.

`install()` puts plain copies in the place of the kernels of `sgl_kernel.kvcacheio` and of the two Mamba kernels,
and makes pinning a no-op.  All else (tree, controller, threads, factory, hashing, and the methods of the host
pools that call the kernels) is SGLang's own code.

The kernels move rows of `item_size` bytes.  In a *layer first* memory a layer is a run of rows; in a *page first*
memory a row holds all layers, `layout_dim` bytes apart from the next row; in a *page head* memory the heads of a row
lie apart, each with all tokens of a page.  Indices are row numbers.
"""

import ctypes
import importlib

import torch


def rows_of(tensor, item_size):
    """Returns `tensor` as bytes in rows of `item_size`; fails if that would need a copy."""
    return tensor.view(torch.uint8).view(-1, item_size) if tensor.is_contiguous() else _not_contiguous(tensor)


def _not_contiguous(tensor):
    raise ValueError(f"rig: a kernel got a tensor with gaps: shape {tuple(tensor.shape)}, stride {tensor.stride()}")


def _pairs(src_indices, dst_indices):
    """Returns the row numbers as two lists of one length."""
    if src_indices.numel() != dst_indices.numel():
        raise ValueError(f"rig: {src_indices.numel()} source rows but {dst_indices.numel()} target rows")
    return src_indices.tolist(), dst_indices.tolist()


def _copy_rows(src, dst, src_indices, dst_indices, item_size):
    """Copies rows between two layer first tensors."""
    rows_of(dst, item_size)[dst_indices.long()] = rows_of(src, item_size)[src_indices.long()]


def _copy_at(src, dst, size):
    """Copies `size` bytes between two addresses."""
    ctypes.memmove(dst, src, size)


def transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices, item_size, **_):
    """One layer, one buffer: layer first to layer first."""
    _copy_rows(src, dst, src_indices, dst_indices, item_size)


def transfer_kv_per_layer(src_k, dst_k, src_v, dst_v, src_indices, dst_indices, item_size, **_):
    """One layer, K and V: layer first to layer first."""
    _copy_rows(src_k, dst_k, src_indices, dst_indices, item_size)
    _copy_rows(src_v, dst_v, src_indices, dst_indices, item_size)


def transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim, **_):
    """One layer, one buffer: page first to layer first."""
    layer = slice(layer_id * item_size, (layer_id + 1) * item_size)
    rows_of(dst, item_size)[dst_indices.long()] = rows_of(src, src_layout_dim)[src_indices.long(), layer]


def transfer_kv_per_layer_pf_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim, **_
):
    """One layer, K and V: page first to layer first."""
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim)


def transfer_kv_all_layer_mla(src_layers, dst_layers, src_indices, dst_indices, item_size, num_layers, **_):
    """All layers, one buffer: layer first to layer first; the layers are given by their addresses."""
    sources, targets = _pairs(src_indices, dst_indices)
    bases = list(zip(src_layers.tolist(), dst_layers.tolist(), strict=True))[:num_layers]
    for src_base, dst_base in bases:
        for source, target in zip(sources, targets):
            _copy_at(src_base + source * item_size, dst_base + target * item_size, item_size)


def transfer_kv_all_layer(
    src_k_layers, dst_k_layers, src_v_layers, dst_v_layers, src_indices, dst_indices, item_size, num_layers, **_
):
    """All layers, K and V: layer first to layer first; the layers are given by their addresses."""
    transfer_kv_all_layer_mla(src_k_layers, dst_k_layers, src_indices, dst_indices, item_size, num_layers)
    transfer_kv_all_layer_mla(src_v_layers, dst_v_layers, src_indices, dst_indices, item_size, num_layers)


def transfer_kv_all_layer_mla_lf_pf(
    src_layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers, **_
):
    """All layers, one buffer: layer first (addresses) to page first."""
    sources, targets = _pairs(src_indices, dst_indices)
    rows_of(dst, dst_layout_dim)
    for layer, src_base in enumerate(src_layers.tolist()[:num_layers]):
        dst_base = dst.data_ptr() + layer * item_size
        for source, target in zip(sources, targets):
            _copy_at(src_base + source * item_size, dst_base + target * dst_layout_dim, item_size)


def transfer_kv_all_layer_lf_pf(
    src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers, **_
):
    """All layers, K and V: layer first (addresses) to page first."""
    for src, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(
            src, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
        )


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size, **_):
    """A list of layer first tensors to as many others."""
    for src, dst in zip(src_layers, dst_layers, strict=True):
        _copy_rows(src, dst, src_indices, dst_indices, src[0].nbytes)


def _pages(indices, page_size):
    """Returns the first row of every page; fails if the indices are no whole pages of consecutive rows."""
    pages = indices.view(-1, page_size)
    if not torch.equal(pages, pages[:, :1] + torch.arange(page_size)):
        raise ValueError("rig: a page is not a run of consecutive slots")
    return pages[:, 0].tolist()


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size, **_):
    """One layer: tensors [page, layer, page_size, ...] to layer first tensors."""
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        for source, target in zip(_pages(src_indices, page_size), _pages(dst_indices, page_size), strict=True):
            dst[target : target + page_size].copy_(src[source // page_size][layer_id])


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size, **_):
    """All layers: layer first tensors (all of K, then all of V) to tensors [page, layer, page_size, ...]."""
    per_target = len(src_ptrs) // len(dst_ptrs)
    for number, src in enumerate(src_ptrs):
        dst = dst_ptrs[number // per_target]
        for source, target in zip(_pages(src_indices, page_size), _pages(dst_indices, page_size), strict=True):
            dst[target // page_size][number % per_target].copy_(src[source : source + page_size])


def _by_head(tensor, head_num, page_size, layers):
    """Returns a page head tensor as bytes, [page, head, token, layer, dim]."""
    if not tensor.is_contiguous():
        _not_contiguous(tensor)
    return tensor.view(torch.uint8).view(-1, head_num, page_size, layers, tensor.shape[-1] * tensor.itemsize)


def transfer_kv_per_layer_ph_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim, page_size, head_num, **_
):
    """One layer, K and V: page head to layer first."""
    at = src_indices.long()
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        heads = _by_head(src, head_num, page_size, src_layout_dim // item_size)
        rows = heads[at // page_size, :, at % page_size, layer_id]
        rows_of(dst, item_size)[dst_indices.long()] = rows.reshape(len(at), item_size)


def transfer_kv_all_layer_lf_ph(
    src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers,
    page_size, head_num, **_
):  # fmt: skip
    """All layers, K and V: layer first (addresses) to page head."""
    if dst_layout_dim != item_size * num_layers:
        raise ValueError(f"rig: rows of {dst_layout_dim} bytes for {num_layers} layers of {item_size}")
    sources, targets = _pairs(src_indices, dst_indices)
    for src_layers, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        heads = _by_head(dst, head_num, page_size, num_layers)
        for layer, src_base in enumerate(src_layers.tolist()[:num_layers]):
            for source, target in zip(sources, targets):
                row = (ctypes.c_ubyte * item_size).from_address(src_base + source * item_size)
                values = torch.frombuffer(bytearray(row), dtype=torch.uint8).view(head_num, -1)
                heads[target // page_size, :, target % page_size, layer] = values


def transfer_kv_mamba_lf_pf(src_ptrs, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers, **_):
    """All layers of one Mamba state: layer first (addresses) to page first."""
    transfer_kv_all_layer_mla_lf_pf(
        src_ptrs, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
    )


def transfer_kv_mamba_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim, **_):
    """One layer of one Mamba state: page first to layer first."""
    transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim)


def _no_pinning(buffer, registration_granularity_bytes=None):
    """Stands in for cudaHostRegister: memory that no GPU reads needs no pinning."""


def install():
    """Puts the stand-ins above into SGLang's host pool modules; does nothing the second time."""
    kernels = {name: value for name, value in globals().items() if name.startswith("transfer_kv_")}
    for name in ("pool_host.mha", "pool_host.mla", "pool_host.dsa", "pool_host.mamba", "memory_pool_host"):
        module = importlib.import_module(f"sglang.srt.mem_cache.{name}")
        for kernel, function in kernels.items():
            setattr(module, kernel, function)
    common = importlib.import_module("sglang.srt.mem_cache.pool_host.common")
    common._cuda_host_register = _no_pinning


def unpin(host_pools):
    """Marks `host_pools` as not pinned, so that the scratch pages which they allocate later are not either."""
    for pool in host_pools:
        pool.pin_memory = False
