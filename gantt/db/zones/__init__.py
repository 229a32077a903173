# SPDX-License-Identifier: Apache-2.0
"""Tables of zones: who this one is, those around it, what it has claimed below."""
