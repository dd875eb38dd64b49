"""GPUs and the machine: detected, named, measured, without CUDA."""
