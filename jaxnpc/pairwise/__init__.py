"""rho for one (point, own prototype, rival prototype), a norm pair a file."""
