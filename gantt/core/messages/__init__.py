# SPDX-License-Identifier: Apache-2.0
"""Messages between processes: requests, reports, builds, and the one decoder of all of them.

No state, no decision, nothing that reads a host.
"""
