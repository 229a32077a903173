# SPDX-License-Identifier: Apache-2.0
"""A report source for hosts that an unmodified Nova runs.

    read Nova's and Placement's API → one picture → per host: guests, then a report
    → aggregates, server groups → moves that have not ended

An ordinary client of both, with keystone credentials; it changes nothing there.
Needs neither database nor scheduler in its process: it sends what a host's agent
sends, for many hosts.
"""
