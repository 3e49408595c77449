# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, as folders that SGLang loads. Answers change when bytes of a page do."""

import json

import safetensors.torch
import torch

VOCABULARY = 512
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _INNER = 64, 4, 2, 16, 128

_EVERYWHERE = {
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_QWEN2 = _EVERYWHERE | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}

_LFM2 = _EVERYWHERE | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "conv_L_cache": 4,  # a state reaches the three tokens after it
    "conv_bias": False,
    "norm_eps": 1e-6,
}

_MELLUM = _EVERYWHERE | {
    "architectures": ["MellumForCausalLM"],
    "model_type": "mellum",
    "num_hidden_layers": 4,
    "head_dim": _HEAD_DIM,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense"] * 4,
    "sliding_window": 64,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")
    },
    "rms_norm_eps": 1e-6,
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

    def ones(self, *names, size=_HIDDEN):
        """For norms."""
        for name in names:
            self.tensors[name] = torch.ones(size)

    def vocabulary(self):
        """What tokens become, and what becomes of the last layer."""
        self.draw("model.embed_tokens.weight", VOCABULARY, _HIDDEN, scale=1.0)
        self.draw("lm_head.weight", VOCABULARY, _HIDDEN, scale=0.5)

    def attention(self, at, output):
        """Projections of attention `at`; the last one is called `output`."""
        for name, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            self.draw(f"{at}.{name}_proj.weight", heads * _HEAD_DIM, _HIDDEN, scale=0.25)
        self.draw(f"{at}.{output}.weight", _HIDDEN, _HEADS * _HEAD_DIM)

    def feed_forward(self, gate, up, down):
        """A gated layer of those names."""
        self.draw(f"{gate}.weight", _INNER, _HIDDEN)
        self.draw(f"{up}.weight", _INNER, _HIDDEN)
        self.draw(f"{down}.weight", _HIDDEN, _INNER)


def qwen2(folder, seed=0):
    """Writes a model of full attention (GQA) to `folder`; returns its path."""
    weights = _Weights(seed)
    weights.vocabulary()
    for layer in range(_QWEN2["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        weights.attention(f"{at}.self_attn", "o_proj")
        for name, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            weights.draw(f"{at}.self_attn.{name}_proj.bias", heads * _HEAD_DIM, scale=0.1)
        weights.feed_forward(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj", f"{at}.mlp.down_proj")
        weights.ones(f"{at}.input_layernorm.weight", f"{at}.post_attention_layernorm.weight")
    weights.ones("model.norm.weight")
    return _write(folder, _QWEN2, weights)


def lfm2(folder):
    """Writes a hybrid model, half of whose layers are short convolutions with a recurrent state, to `folder`; returns
    its path."""
    weights = _Weights(0)
    weights.vocabulary()
    for layer, kind in enumerate(_LFM2["layer_types"]):
        at = f"model.layers.{layer}"
        if kind == "conv":
            weights.draw(f"{at}.conv.in_proj.weight", 3 * _HIDDEN, _HIDDEN)
            weights.draw(f"{at}.conv.conv.weight", _HIDDEN, 1, _LFM2["conv_L_cache"], scale=1.0)
            weights.draw(f"{at}.conv.out_proj.weight", _HIDDEN, _HIDDEN)
        else:
            weights.attention(f"{at}.self_attn", "out_proj")
            weights.ones(
                f"{at}.self_attn.q_layernorm.weight", f"{at}.self_attn.k_layernorm.weight", size=_HEAD_DIM
            )
        weights.feed_forward(f"{at}.feed_forward.w1", f"{at}.feed_forward.w3", f"{at}.feed_forward.w2")
        weights.ones(f"{at}.operator_norm.weight", f"{at}.ffn_norm.weight")
    weights.ones("model.embedding_norm.weight")
    return _write(folder, _LFM2, weights)


def mellum(folder):
    """Writes a model half of whose layers have a sliding window to `folder`; returns its path."""
    weights = _Weights(0)
    weights.vocabulary()
    for layer in range(_MELLUM["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        weights.attention(f"{at}.self_attn", "o_proj")
        weights.ones(f"{at}.self_attn.q_norm.weight", f"{at}.self_attn.k_norm.weight", size=_HEAD_DIM)
        weights.feed_forward(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj", f"{at}.mlp.down_proj")
        weights.ones(f"{at}.input_layernorm.weight", f"{at}.post_attention_layernorm.weight")
    weights.ones("model.norm.weight")
    return _write(folder, _MELLUM, weights)


def _write(folder, config, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(weights.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
