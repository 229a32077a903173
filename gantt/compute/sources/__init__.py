# SPDX-License-Identifier: Apache-2.0
"""Reports for hosts that have no agent of ours."""
