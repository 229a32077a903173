# SPDX-License-Identifier: Apache-2.0
"""Many hosts in one process: played ones, and those that a source reports for."""
