"""Triton kernels that score on GPUs. Imported only where they are used."""
