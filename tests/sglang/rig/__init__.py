# SPDX-License-Identifier: Apache-2.0
"""Runs the real SGLang cache (tree, controller, host pools, storage threads) on a CPU against any storage backend.

Modules: cpu (what stands in for a GPU), pools (device pools per model kind), world (one rank, driven as the
scheduler drives it), content (the bytes in the slots), ranks (several processes), dict_store (a backend to test
the rig itself), cases (the checks that every backend has to pass).
"""
