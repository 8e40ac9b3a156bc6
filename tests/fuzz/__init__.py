"""Drawn configurations and mutated files: no exception but declared ones, and whatever must hold, holds.

python -m tests.fuzz simulations --cases 10000 --seed 0
python -m tests.fuzz case 'allocator=paged kv_slots=37 ... requests=0:5>3;700:4>2,n2'
python -m tests.fuzz readers --seconds 600 --seed 0
python -m tests.fuzz compiled --cases 1000 --seed 0
"""
