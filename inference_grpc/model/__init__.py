"""Models: reading weight files, and the forward pass over paged memory. The engine knows `interface.py` of a model."""
