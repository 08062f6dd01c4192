"""Budgets: what a model may cost, and the schedule that costs it."""
