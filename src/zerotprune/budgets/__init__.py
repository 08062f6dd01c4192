"""Budgets: what a model may cost, and the schedule that costs it."""

from ..schedule import Budget
from .solving import TOLERANCE, fit, schedule_for, solve_at

__all__ = ["TOLERANCE", "Budget", "fit", "schedule_for", "solve_at"]
