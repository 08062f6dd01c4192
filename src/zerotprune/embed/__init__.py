"""Vectors of many images: one callable, shards of images, and two engines that run it."""
