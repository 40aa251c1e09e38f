"""The hybrid on an NVIDIA GPU: its matrices, its memory, and the two ways in which a step is computed."""
