# SPDX-License-Identifier: Apache-2.0
"""Sums of variables and numbers, with the most that they can be."""

from typing import Any

from ortools.sat.python import cp_model


class Sum:
    """A weighted sum.

    :ivar most: it is at most so much, whatever the variables are, where their bounds were given
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._weights: list[int] = []
        self._constant = 0
        self.most = 0

    def add(self, x: Any, weight: int, most: int = 0) -> None:
        """Add a variable, or a number, times a weight.

        :param most: of the variable
        """
        if not weight:
            return
        if isinstance(x, int):
            self._constant += x * weight
            self.most += x * weight
            return
        self._variables.append(x)
        self._weights.append(weight)
        self.most += weight * most

    def extend(self, other: 'Sum') -> None:
        """Add another sum."""
        self._variables += other._variables
        self._weights += other._weights
        self._constant += other._constant
        self.most += other.most

    @property
    def is_number(self) -> bool:
        """Whether nothing of it is to be decided."""
        return not self._variables

    def expression(self) -> Any:
        """As CP-SAT takes it."""
        return cp_model.LinearExpr.weighted_sum(self._variables, self._weights) + self._constant

    def at_most(self, cp: cp_model.CpModel, bound: int) -> None:
        """Have it no larger; nothing is made where it cannot be."""
        if self.most > bound or (self.is_number and self._constant > bound):
            cp.add(self.expression() <= bound)


class Sums:
    """What constraints on sums are made with."""

    def __init__(self, cp: cp_model.CpModel) -> None:
        self.cp = cp

    def number(self, most: int) -> Any:
        """A variable from 0 on."""
        return self.cp.new_int_var(0, max(most, 0), '')

    def flag(self) -> Any:
        """A variable that is 0 or 1."""
        return self.cp.new_bool_var('')

    def total(self, variables: list[Any], weight: int = 1, most: int = 0) -> Sum:
        """A sum of variables that weigh the same."""
        found = Sum()
        for x in variables:
            found.add(x, weight, most)
        return found
