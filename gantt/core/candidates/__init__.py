# SPDX-License-Identifier: Apache-2.0
"""Candidates by search: providers, of one tree or sharing with it, that fit a query.

``query`` holds the query, ``table`` the providers in columns; ``tree_search`` chooses within one
tree, ``find`` returns the candidates, ``one_tree`` the best one where there is but one tree.
"""
