"""Exact minimal adversarial perturbations, a solver a file."""
