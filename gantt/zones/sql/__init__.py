# SPDX-License-Identifier: Apache-2.0
"""Tables of zones: this zone, those around it, and its claims in child zones."""
