# SPDX-License-Identifier: Apache-2.0
"""Parts of tools/bench_sglang.py: host (pools), sides (the backends), measure (turns and clocks), report (text)."""
