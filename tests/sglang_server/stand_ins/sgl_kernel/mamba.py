# SPDX-License-Identifier: Apache-2.0
"""Kernels of models with recurrent states; see the package."""

from sgl_kernel import __getattr__  # noqa: F401
