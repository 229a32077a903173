# SPDX-License-Identifier: Apache-2.0
"""Preferences, a plug-in each: for every host that is left, a number."""
