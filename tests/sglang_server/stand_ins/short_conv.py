# SPDX-License-Identifier: Apache-2.0
"""The short convolution of SGLang's hybrid models with PyTorch, in the place of its Triton kernels.

A state of a sequence holds the inputs before its next token: [slot, channel, width - 1].
"""

import torch


def _convolve(before, values, weight):
    """Each channel of `values` [channel, tokens] with its weights, after the inputs `before` [channel, width - 1];
    returns the result and what is before the next token."""
    joined = torch.cat([before, values], dim=1)
    windows = joined.unfold(1, weight.shape[1], 1)  # [channel, tokens, width]
    return (windows * weight[:, None, :]).sum(-1), joined[:, -before.shape[1] :]


def conv_fn(
    x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, cache_indices, has_initial_state, activation,
    pad_slot_id=-1, **_
):  # fmt: skip
    """Prompts, one after the other: x [channel, tokens of all]."""
    assert bias is None and activation is None, "LFM2 has neither"
    result = torch.zeros_like(x)
    begin = 0
    for number, length in enumerate(seq_lens_cpu):
        slot = int(cache_indices[number])
        tokens = slice(begin, begin + length)
        begin += length
        if slot == pad_slot_id:
            continue
        before = conv_states[slot]
        if not bool(has_initial_state[number]):
            before = torch.zeros_like(before)
        result[:, tokens], after = _convolve(before, x[:, tokens], weight)
        conv_states[slot] = after
    return result


def conv_update(x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, pad_slot_id=-1, **_):
    """One token of each sequence: x [sequence, channel]."""
    assert bias is None and activation is None, "LFM2 has neither"
    result = torch.zeros_like(x)
    for number, slot in enumerate(conv_state_indices.tolist()):
        if slot == pad_slot_id:
            continue
        out, after = _convolve(conv_state[slot], x[number][:, None], weight)
        result[number] = out[:, 0]
        conv_state[slot] = after
    return result


def install():
    """Puts them where SGLang's layers look for the kernels."""
    from sglang.srt.layers.attention.mamba import causal_conv1d

    causal_conv1d._causal_conv1d_fn_triton = conv_fn
    causal_conv1d._causal_conv1d_update_triton = conv_update
