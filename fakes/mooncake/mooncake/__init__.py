# SPDX-License-Identifier: Apache-2.0
"""Stands in for the package `mooncake` in tests: fakes/mooncake/mooncake/store.py."""
