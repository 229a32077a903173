# SPDX-License-Identifier: Apache-2.0
"""OpenStack Placement's HTTP interface, 1.0 to 1.39, beside ours.

It has its own versions, error form and rules, so it is an application of its own.  ``app`` has
all routes on one screen; ``handlers`` has a module for each concept.
"""
