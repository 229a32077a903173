# SPDX-License-Identifier: Apache-2.0
"""Templates of other tools, read as descriptions of groups.

A converter is a function in an entry point of the group ``gantt.templates``: it takes the parsed
document and the flavors by name and id, and returns an ``ImportedGroup``.
"""
