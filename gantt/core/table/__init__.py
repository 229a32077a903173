# SPDX-License-Identifier: Apache-2.0
"""The host table: what is believed of every host, one NumPy column per fact.

It reads no database and makes no decision; filters and weighers read it.
"""
