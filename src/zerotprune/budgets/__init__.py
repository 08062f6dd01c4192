"""Budgets: find the schedule that meets a cost, GMACs or a speedup."""

from ..schedule import Budget
from .solving import TOLERANCE, fit, schedule_for, solve_at

__all__ = ["TOLERANCE", "Budget", "fit", "schedule_for", "solve_at"]
