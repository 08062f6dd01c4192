"""Budgets: what a model may cost, and the schedule that costs it."""

from .solving import TOLERANCE, Budget, schedule_for

__all__ = ["TOLERANCE", "Budget", "schedule_for"]
