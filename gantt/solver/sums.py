# SPDX-License-Identifier: Apache-2.0
"""Sums of variables and numbers, with their upper bounds."""

from typing import Any

from ortools.sat.python import cp_model


class Sum:
    """A weighted sum.

    :ivar most: its upper bound, whatever the variables are, where their bounds were given
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._weights: list[int] = []
        self._constant = 0
        self.most = 0

    def add(self, x: Any, weight: int, most: int = 0) -> None:
        """Add a variable, or a number, times a weight.

        :param most: upper bound of the variable
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
        """True where it has no variables."""
        return not self._variables

    def expression(self) -> Any:
        """Return it as CP-SAT takes it."""
        return cp_model.LinearExpr.weighted_sum(self._variables, self._weights) + self._constant

    def at_most(self, cp: cp_model.CpModel, bound: int) -> None:
        """Bound it; no constraint is created where it cannot exceed the bound."""
        if self.most > bound or (self.is_number and self._constant > bound):
            cp.add(self.expression() <= bound)


class Sums:
    """Builder of constraints on sums."""

    def __init__(self, cp: cp_model.CpModel) -> None:
        self.cp = cp

    def number(self, most: int) -> Any:
        """Return a variable from 0 on."""
        return self.cp.new_int_var(0, max(most, 0), '')

    def flag(self) -> Any:
        """Return a variable that is 0 or 1."""
        return self.cp.new_bool_var('')

    def total(self, variables: list[Any], weight: int = 1, most: int = 0) -> Sum:
        """Return a sum of variables that weigh the same."""
        result = Sum()
        for x in variables:
            result.add(x, weight, most)
        return result
