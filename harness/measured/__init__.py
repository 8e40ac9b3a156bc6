"""`experiment=measured`: measured serving runs, a row each, beside their predictions from operator tables."""
