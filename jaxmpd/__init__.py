"""Message passing descent: exact global minimisation along the parameters of piecewise-linear networks."""
