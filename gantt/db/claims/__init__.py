# SPDX-License-Identifier: Apache-2.0
"""Rows of claims, requests and server groups: the commit, and all later changes of a claim."""
