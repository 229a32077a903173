# SPDX-License-Identifier: Apache-2.0
"""Keys of flavors, images, hints and aggregates: their readers, and their fields in requests."""
