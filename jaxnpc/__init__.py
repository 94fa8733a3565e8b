"""Nearest-prototype classifiers with proved robustness."""
