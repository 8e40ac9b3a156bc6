"""Attention and cache-move kernels: one file per backend behind `kernels.dispatch`.

This package imports nothing on purpose: `transformers` looks for a Hugging Face package of the same name, and an
empty package that has no version cannot be mistaken for it.
"""
