# SPDX-License-Identifier: Apache-2.0
"""Resources promised on a host: how claims begin, change and end, as pure folds.

Choosing a place is in ``core.placement``, storage in ``db.claims``.
"""
