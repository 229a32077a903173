# SPDX-License-Identifier: Apache-2.0
"""A report source for hosts that an unmodified Nova runs.

    read Nova's and Placement's API → one picture → per host: guests, then a report
    → aggregates, server groups → moves that nobody ended

An ordinary client of both, with keystone credentials; it changes nothing there.
Needs neither database nor scheduler in its process: it talks as a host's agent
does, for many hosts.
"""
