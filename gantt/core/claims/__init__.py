# SPDX-License-Identifier: Apache-2.0
"""Resources promised on a host: how claims begin, change and end, as pure folds.

Not here: how a place is chosen (``core.placement``) and how it is stored (``db.claims``).
"""
