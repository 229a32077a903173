# SPDX-License-Identifier: Apache-2.0
"""Ports: the outside world as the service sees it, one protocol for each concern.

A port has at most a dozen methods, and code takes the ports that it uses; ``Stores`` holds those of
the base together, for whoever wires up a process, and a capability extends it by its own.  Stores
raise ``DatabaseUnavailable`` after their own bounded retries, ``Busy`` where another process keeps
indispensable rows locked; no other database error leaks out.
"""
