# SPDX-License-Identifier: Apache-2.0
"""Two small services that request places without a host, and without Nova: volumes, addresses.

They use ``gantt.client`` alone, as any service may; see ``doc/source/user/pools.rst``.
"""
