"""The scoring steps fused for GPUs, in Triton. Imported only where they are used."""
