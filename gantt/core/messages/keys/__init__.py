# SPDX-License-Identifier: Apache-2.0
"""Keys of flavors, images, hints and aggregates: who reads them, and what they are as fields."""
