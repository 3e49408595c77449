# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, as folders that SGLang loads. Answers change when bytes of a page do."""

import json

import safetensors.torch
import torch

VOCABULARY = 512
_LAYERS = 3
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _INNER = 64, 4, 2, 16, 128

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class _Weights:
    """Tensors by name, drawn one after the other."""

    def __init__(self, seed):
        self.tensors = {}
        self._source = torch.Generator().manual_seed(seed)

    def draw(self, name, *shape, scale=None):
        """Normal, of a size that keeps activations at about one."""
        values = torch.randn(*shape, generator=self._source)
        self.tensors[name] = values * (shape[-1] ** -0.5 if scale is None else scale)

    def ones(self, name, size):
        self.tensors[name] = torch.ones(size)


_LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "conv_L_cache": 4,  # a state reaches the three tokens after it
    "conv_bias": False,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
    "norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def qwen2(folder, seed=0):
    """Writes a model of full attention (GQA) to `folder`; returns its path."""
    weights = _Weights(seed)
    weights.draw("model.embed_tokens.weight", VOCABULARY, _HIDDEN, scale=1.0)
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        for name, rows in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            weights.draw(f"{at}.self_attn.{name}_proj.weight", rows * _HEAD_DIM, _HIDDEN, scale=0.25)
            weights.draw(f"{at}.self_attn.{name}_proj.bias", rows * _HEAD_DIM, scale=0.1)
        weights.draw(f"{at}.self_attn.o_proj.weight", _HIDDEN, _HEADS * _HEAD_DIM)
        weights.draw(f"{at}.mlp.gate_proj.weight", _INNER, _HIDDEN)
        weights.draw(f"{at}.mlp.up_proj.weight", _INNER, _HIDDEN)
        weights.draw(f"{at}.mlp.down_proj.weight", _HIDDEN, _INNER)
        weights.ones(f"{at}.input_layernorm.weight", _HIDDEN)
        weights.ones(f"{at}.post_attention_layernorm.weight", _HIDDEN)
    weights.ones("model.norm.weight", _HIDDEN)
    weights.draw("lm_head.weight", VOCABULARY, _HIDDEN, scale=0.5)
    return _write(folder, _QWEN2, weights)


def lfm2(folder):
    """Writes a hybrid model, half of whose layers are short convolutions with a recurrent state, to `folder`."""
    weights = _Weights(0)
    weights.draw("model.embed_tokens.weight", VOCABULARY, _HIDDEN, scale=1.0)
    for layer, kind in enumerate(_LFM2["layer_types"]):
        at = f"model.layers.{layer}"
        if kind == "conv":
            weights.draw(f"{at}.conv.in_proj.weight", 3 * _HIDDEN, _HIDDEN)
            weights.draw(f"{at}.conv.conv.weight", _HIDDEN, 1, _LFM2["conv_L_cache"], scale=1.0)
            weights.draw(f"{at}.conv.out_proj.weight", _HIDDEN, _HIDDEN)
        else:
            for name, rows in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
                weights.draw(f"{at}.self_attn.{name}_proj.weight", rows * _HEAD_DIM, _HIDDEN, scale=0.25)
            weights.ones(f"{at}.self_attn.q_layernorm.weight", _HEAD_DIM)
            weights.ones(f"{at}.self_attn.k_layernorm.weight", _HEAD_DIM)
            weights.draw(f"{at}.self_attn.out_proj.weight", _HIDDEN, _HEADS * _HEAD_DIM)
        weights.draw(f"{at}.feed_forward.w1.weight", _INNER, _HIDDEN)
        weights.draw(f"{at}.feed_forward.w3.weight", _INNER, _HIDDEN)
        weights.draw(f"{at}.feed_forward.w2.weight", _HIDDEN, _INNER)
        weights.ones(f"{at}.operator_norm.weight", _HIDDEN)
        weights.ones(f"{at}.ffn_norm.weight", _HIDDEN)
    weights.ones("model.embedding_norm.weight", _HIDDEN)
    weights.draw("lm_head.weight", VOCABULARY, _HIDDEN, scale=0.5)
    return _write(folder, _LFM2, weights)


def _write(folder, config, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(weights.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
