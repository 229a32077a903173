# SPDX-License-Identifier: Apache-2.0
"""Templates of other tools, read as descriptions of groups.

A converter is a function in an entry point of the group ``gantt.templates``: it takes a
``TemplateSource``, the file with its options and the flavors, and returns an ``ImportedGroup``.
"""
