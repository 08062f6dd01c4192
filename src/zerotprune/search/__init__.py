"""Monte-Carlo search for the best schedule of a budget, on a user's own model and images."""
