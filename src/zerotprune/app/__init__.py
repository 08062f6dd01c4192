"""A local web page on which anyone can try pruning on their own image."""
