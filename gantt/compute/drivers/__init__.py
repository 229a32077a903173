# SPDX-License-Identifier: Apache-2.0
"""Drivers of machines and their guests: this one, and a fake one."""
