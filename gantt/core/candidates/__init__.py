# SPDX-License-Identifier: Apache-2.0
"""Candidates by search: which providers, of trees and of what is shared, fit a query.

``query`` is what is wanted, ``table`` the providers in columns, ``eligible`` who fits one group by
itself, ``tree_search`` the choice within one tree, ``find`` the answer.
"""
