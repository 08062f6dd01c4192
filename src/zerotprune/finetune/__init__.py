"""Fine-tuning: train a model while its tokens are pruned, each method in the form it learns in."""
