# SPDX-License-Identifier: Apache-2.0
"""The pure part: values and functions over the standard library, NumPy and msgspec.

No I/O, no clock, no randomness of its own.  Modules beside the folders are used by several.
"""
