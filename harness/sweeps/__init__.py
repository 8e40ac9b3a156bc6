"""Sweeps: planned, launched, gone on with and reported, whatever fails in them."""
