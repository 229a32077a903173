# SPDX-License-Identifier: Apache-2.0
"""Machines and their guests: this one, and a fake one."""
