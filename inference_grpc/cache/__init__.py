"""Memory of keys and values: which pages exist, who holds them, which can be found again. Plain Python, no tensors."""
