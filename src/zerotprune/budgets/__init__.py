"""Budgets: what a model may cost, and the schedule that costs it."""

from .budget import TOLERANCE, Budget
from .solving import schedule_for

__all__ = ["TOLERANCE", "Budget", "schedule_for"]
