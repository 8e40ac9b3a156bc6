"""Attention and cache-move kernels: one file per backend behind `kvlab_kernels.dispatch`.

Not imported as `kernels`, the folder's name: a Hugging Face package is called so, and both must be usable side by side.
"""
