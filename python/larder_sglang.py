# SPDX-License-Identifier: Apache-2.0
"""What SGLang's `dynamic` storage backend imports: module_path "larder_sglang", class_name "LarderStorage"."""

from larder.sglang import LarderStorage

__all__ = ["LarderStorage"]
