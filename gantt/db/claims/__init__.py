# SPDX-License-Identifier: Apache-2.0
"""Rows of claims, requests and server groups: the commit, and all that changes a claim later."""
