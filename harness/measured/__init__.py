"""`experiment=measured`: rows of measured serving runs, predicted from operator tables, one beside the other."""
