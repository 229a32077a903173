# SPDX-License-Identifier: Apache-2.0
"""Hosts in one process: fake ones, and those that a source reports for."""
