"""`python -m zerotprune`, and `torchrun -m zerotprune` for several processes."""

from .cli import main

main()
