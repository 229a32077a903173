# SPDX-License-Identifier: Apache-2.0
"""The host table: the assumed state of every host, one NumPy column per fact.

It reads no database and makes no decision; filters and weighers read it.
"""
