# SPDX-License-Identifier: Apache-2.0
"""The store in memory: a plain reference for tests and the simulator.

No service imports it.
"""
