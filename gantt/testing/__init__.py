# SPDX-License-Identifier: Apache-2.0
"""Helps for the tests of plugins, ours and others': random clouds and a conformance kit.

>>> from gantt.testing import conformance
>>> conformance.check(MyFilter)  # raises AssertionError with every finding
"""
