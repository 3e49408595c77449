# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's compiled kernels, which need a GPU or a processor with AMX: SGLang's modules import names from
here and from `torch.ops.sgl_kernel`, and where a kernel is missing its layers compute with PyTorch. To call a kernel
fails."""

import torch


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_, **__):
        raise NotImplementedError(f"stand-in: sgl_kernel's {name} does not run without SGLang's compiled kernels")

    return kernel


# SGLang takes these at import; of others it asks whether they are there.
for _name in ("chunk_gated_delta_rule_cpu", "fused_gdn_gating_cpu",
              "fused_sigmoid_gating_delta_rule_update_cpu"):
    setattr(torch.ops.sgl_kernel, _name, __getattr__(_name))
