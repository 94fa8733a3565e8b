"""Certificates in the LPIPS metric."""
