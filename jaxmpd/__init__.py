"""Message passing descent: exact global minimisation along parameters of PWL networks."""
