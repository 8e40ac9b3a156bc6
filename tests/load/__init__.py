"""A long sweep of small simulations: what a job costs, where its time goes, and whether memory stays flat.

python -m tests.load --jobs 2000 --out results/reference/load      # some 4 minutes on one quiet core
python -m tests.load --jobs 100 --profile                          # where the harness's own part goes
python -m tests.load --launchers --out results/reference/sweeps    # some 3 minutes: joblib and Ray by workers
"""
