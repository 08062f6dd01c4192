"""Files written whole or not at all, Ctrl-C, and numbers within their ranges."""
